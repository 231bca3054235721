// W4A16: x bf16 [m, k] times NVFP4 weights, m <= 32. The unit is in kernels/w4a16.cuh.
//
// Bytes read: n * k * 9 / 16, once.
#include "../../kernels/w4a16.cuh"

// epilogue: engine::Epilogue. slices, phases: parts of k; blocks: per slice; windows: parts of a block's row tiles.
// Returns a cudaError_t; cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_w4a16_skinny(const void* weight, const float* row_scale, const void* x, void* out, int m, int n, int k,
                                   int slices, int blocks, int phases, int windows, int epilogue, int dependent, void* stream) {
    using namespace engine;
    const SkinnyArgs args{static_cast<const uint8_t*>(weight), row_scale, x, out, m, n, k, slices, phases, windows, 0, nullptr, nullptr, nullptr};
    if (!valid_skinny<W4A16>(args, blocks, Epilogue(epilogue))) return cudaErrorInvalidValue;
    switch (Epilogue(epilogue)) {
        case Epilogue::PARTIAL: return dispatch_skinny<W4A16, Epilogue::PARTIAL>(args, blocks, dependent, stream);
        case Epilogue::BF16: return dispatch_skinny<W4A16, Epilogue::BF16>(args, blocks, dependent, stream);
        case Epilogue::SWIGLU: return dispatch_skinny<W4A16, Epilogue::SWIGLU>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}

// BF16 as above, and ids[m]: each token's row of the largest value, the lowest of equals, NaN above all. best[m] and
// arrived[1] are zero before and after; one launch at a time may use them. A block has at most 65,536 rows.
extern "C" int engine_w4a16_argmax(const void* weight, const float* row_scale, const void* x, void* out, int64_t* ids, void* best,
                                   int* arrived, int m, int n, int k, int blocks, int phases, int windows, int dependent,
                                   void* stream) {
    using namespace engine;
    const SkinnyArgs args{static_cast<const uint8_t*>(weight), row_scale, x, out, m, n, k, 1, phases, windows, 0,
                          ids, static_cast<unsigned long long*>(best), arrived};
    if (!valid_skinny<W4A16>(args, blocks, Epilogue::ARGMAX)) return cudaErrorInvalidValue;
    return dispatch_skinny<W4A16, Epilogue::ARGMAX>(args, blocks, dependent, stream);
}
