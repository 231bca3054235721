// The W8A8 unit: FP8 weights times x in E4M3.   out = w . x in fp32, times a row scale.
//
// Bytes read: n * k, once. Unit: 16 rows x 128 columns = 2,048 B. Lane 4g + t holds, per 64 columns, columns 16t..16t+15
// of row g (16 bytes) and of row g + 8 (16 bytes): two mma.m16n8k32, each of which takes 8 bytes of either row.
#pragma once
#include "mma.cuh"
#include "skinny.cuh"

namespace engine {

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

    // The same for one group of tokens whose columns are in registers. x: from the lane's columns of its token on.
    using Loaded = uint4[2];
    static constexpr int X_LANE_BYTES = 16;   // of a lane's columns, one after the other
    static __device__ __forceinline__ void load(const uint8_t* x, Loaded& tokens) {
#pragma unroll
        for (int part = 0; part < 2; part++) tokens[part] = *reinterpret_cast<const uint4*>(x + part * 64);
    }
    template <int CHAINS>
    static __device__ __forceinline__ void multiply_loaded(const uint8_t* unit, const Loaded& tokens, int lane, float (&sums)[CHAINS][LANE_SUMS]) {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const uint4 low = reinterpret_cast<const uint4*>(unit)[(part * 2 + 0) * 32 + lane];
            const uint4 high = reinterpret_cast<const uint4*>(unit)[(part * 2 + 1) * 32 + lane];
            mma_e4m3(sums[0], low.x, high.x, low.y, high.y, tokens[part].x, tokens[part].y);
            mma_e4m3(sums[CHAINS - 1], low.z, high.z, low.w, high.w, tokens[part].z, tokens[part].w);
        }
    }
};

}  // namespace engine
