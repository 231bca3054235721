// W4A16: x bf16 [m, k] times NVFP4 weights, m <= 32. The unit is in kernels/w4a16.cuh.
//
// Bytes read: n * k * 9 / 16, once.
#include "../../kernels/w4a16.cuh"

// epilogue: engine::Epilogue. slices, phases: parts of k; blocks: per slice; windows: parts of a block's row tiles.
// Returns a cudaError_t; cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_w4a16_skinny(const void* weight, const float* row_scale, const void* x, void* out, int m, int n, int k,
                                   int slices, int blocks, int phases, int windows, int epilogue, int dependent, void* stream) {
    using namespace engine;
    const SkinnyArgs args{static_cast<const uint8_t*>(weight), row_scale, x, out, m, n, k, slices, phases, windows, 0};
    if (!valid_skinny<W4A16>(args, blocks, Epilogue(epilogue))) return cudaErrorInvalidValue;
    switch (Epilogue(epilogue)) {
        case Epilogue::PARTIAL: return dispatch_skinny<W4A16, Epilogue::PARTIAL>(args, blocks, dependent, stream);
        case Epilogue::BF16: return dispatch_skinny<W4A16, Epilogue::BF16>(args, blocks, dependent, stream);
        case Epilogue::SWIGLU: return dispatch_skinny<W4A16, Epilogue::SWIGLU>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}
