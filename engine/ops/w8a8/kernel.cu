// W8A8: x e4m3 [m, k] times FP8 weights, m <= 32.   out = w . x in fp32, times a row scale (weight scale x input scale).
//
// The unit is kernels/w8a8.cuh's, the product kernels/skinny.cuh's.
#include "../../kernels/w8a8.cuh"

// epilogue: engine::Epilogue. slices, phases: parts of k; blocks: per slice; windows: parts of a block's row tiles.
// Returns a cudaError_t; cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_w8a8_skinny(const void* weight, const float* row_scale, const void* x, void* out, int m, int n, int k,
                                   int slices, int blocks, int phases, int windows, int epilogue, int dependent, void* stream) {
    using namespace engine;
    const SkinnyArgs args{static_cast<const uint8_t*>(weight), row_scale, x, out, m, n, k, slices, phases, windows, 0, nullptr, nullptr, nullptr};
    if (!valid_skinny<W8A8>(args, blocks, Epilogue(epilogue))) return cudaErrorInvalidValue;
    switch (Epilogue(epilogue)) {
        case Epilogue::PARTIAL: return dispatch_skinny<W8A8, Epilogue::PARTIAL>(args, blocks, dependent, stream);
        case Epilogue::BF16: return dispatch_skinny<W8A8, Epilogue::BF16>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}
