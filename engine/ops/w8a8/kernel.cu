// W8A8: x e4m3 [m, k] times FP8 weights, m <= 32.   out = w . x in fp32, times a row scale (weight scale x input scale).
//
// Bytes read: n * k, once. Unit: 16 rows x 128 columns = 2,048 B. Lane 4g + t holds, per 64 columns, columns 16t..16t+15
// of row g (16 bytes) and of row g + 8 (16 bytes): two mma.m16n8k32, each of which takes 8 bytes of either row.
#include "../../kernels/skinny.cuh"

namespace engine {
namespace {

__device__ __forceinline__ void mma_e4m3(float (&d)[LANE_SUMS], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct W8A8 {
    static constexpr int UNIT_K = 128;
    static constexpr int UNIT_BYTES = 2048;
    static constexpr int X_BYTES = 1;
    static constexpr int X_PAD = 64;
    static constexpr float EPILOGUE_SCALE = 1.f;

    template <int CHAINS, int MT>
    static __device__ __forceinline__ void multiply(const uint8_t* unit, const uint8_t* x, const int (&token_row)[MT], int lane,
                                                    float (&sums)[CHAINS][MT][LANE_SUMS]) {
        const uint8_t* columns = x + (lane % 4) * 16;
#pragma unroll
        for (int part = 0; part < 2; part++) {   // 64 columns each
            const uint4 low = reinterpret_cast<const uint4*>(unit)[(part * 2 + 0) * 32 + lane];
            const uint4 high = reinterpret_cast<const uint4*>(unit)[(part * 2 + 1) * 32 + lane];
#pragma unroll
            for (int i = 0; i < MT; i++) {
                const uint4 t = *reinterpret_cast<const uint4*>(columns + token_row[i] + part * 64);
                mma_e4m3(sums[0][i], low.x, high.x, low.y, high.y, t.x, t.y);
                mma_e4m3(sums[CHAINS - 1][i], low.z, high.z, low.w, high.w, t.z, t.w);
            }
        }
    }
};

}  // namespace
}  // namespace engine

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
