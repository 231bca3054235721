// The W4A16 unit: NVFP4 weights times x in bf16.   out = (e2m1 * e4m3 block scale) . x, times a row scale in fp32.
//
// Bytes read: n * k * 9 / 16, once. Unit: 16 rows x 256 columns = 2,048 B of codes + 256 B of block scales, contiguous.
// A group of 16 columns is owned by one lane: lane 4g + t holds, per 64 columns, rows g and g + 8 of columns 16t..16t+15,
// so its 32 codes need two scales, and its 16 activations are 32 contiguous bytes.
//
// e2m1 -> bf16 without a table: sign to bit 15, the three magnitude bits to bits 8..6. The value is then 2^-126 times
// the code's (code 1 = 0.5 is a bf16 subnormal, which is exact). Codes are stored four to a half word so that a whole
// pair of halves is unpacked by one shift and one mask where possible:
//
//      bit  15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
//           s0 s2 s3 s1  m3 m3 m3 m0 m0 m0 m1 m1 m1 m2 m2 m2       low half: even column, high half: odd column
//
// Block scales are stored as 5 exponent and 3 mantissa bits (e4m3 with subnormals normalised; never negative; a zero
// scale zeroes its codes instead), so that one multiply-add turns a byte into bf16 2^107 times its value. Code x scale
// has at most 6 significant bits: exact in bf16. What is left, 2^19, goes to the fp32 epilogue.
#pragma once
#include "mma.cuh"
#include "skinny.cuh"

namespace engine {

struct W4A16 {
    static constexpr int UNIT_K = 256;
    static constexpr int UNIT_BYTES = 2304;
    static constexpr int X_BYTES = 2;
    static constexpr int X_PAD = 16;
    static constexpr float EPILOGUE_SCALE = 524288.f;   // 2^19

    // The byte at `index` of `bytes`, as bf16 in both halves, times 2^107.
    static __device__ __forceinline__ uint32_t scale(uint32_t bytes, int index) {
        return __byte_perm(bytes, 0, 0x4040 | index | index << 8) * 16u + 0x70007000u;
    }

    // 16 columns of 16 rows from this lane's codes of them and the scales of its two rows.
    static __device__ __forceinline__ void operand(uint32_t w, uint32_t low, uint32_t high, uint32_t (&a)[4]) {
        a[0] = multiply_bf16x2(w & 0x81C081C0u, low);
        a[1] = multiply_bf16x2((w << 3) & 0x81C081C0u, high);
        a[2] = multiply_bf16x2(((w << 6) & 0x01C001C0u) | ((w << 1) & 0x80008000u), low);
        a[3] = multiply_bf16x2(((w >> 3) & 0x01C001C0u) | ((w << 2) & 0x80008000u), high);
    }

    template <int CHAINS, int MT>
    static __device__ __forceinline__ void multiply(const uint8_t* unit, const uint8_t* x, const int (&token_row)[MT], int lane,
                                                    float (&sums)[CHAINS][MT][LANE_SUMS]) {
        const uint2 scales = reinterpret_cast<const uint2*>(unit + 2048)[lane];
        const uint8_t* columns = x + (lane % 4) * 32;
#pragma unroll
        for (int part = 0; part < 4; part++) {   // 64 columns each
            const uint4 codes = reinterpret_cast<const uint4*>(unit)[part * 32 + lane];
            const uint32_t pair = part < 2 ? scales.x : scales.y;
            const uint32_t low = scale(pair, part % 2 * 2), high = scale(pair, part % 2 * 2 + 1);
            const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
            uint4 tokens[MT][2];
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    tokens[i][j] = *reinterpret_cast<const uint4*>(columns + token_row[i] + part * 128 + j * 16);
#pragma unroll
            for (int step = 0; step < 4; step++) {
                uint32_t a[4];
                operand(words[step], low, high, a);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint4 t = tokens[i][step / 2];
                    mma_bf16(sums[step % CHAINS][i], a, step % 2 ? t.z : t.x, step % 2 ? t.w : t.y);
                }
            }
        }
    }

    // The same for one group of tokens whose columns are in registers. x: from the lane's columns of its token on.
    using Loaded = uint4[4][2];
    static constexpr int X_LANE_BYTES = 32;   // of a lane's columns, one after the other
    static __device__ __forceinline__ void load(const uint8_t* x, Loaded& tokens) {
#pragma unroll
        for (int i = 0; i < 8; i++) tokens[i / 2][i % 2] = *reinterpret_cast<const uint4*>(x + i / 2 * 128 + i % 2 * 16);
    }
    template <int CHAINS>
    static __device__ __forceinline__ void multiply_loaded(const uint8_t* unit, const Loaded& tokens, int lane, float (&sums)[CHAINS][LANE_SUMS]) {
        const uint2 scales = reinterpret_cast<const uint2*>(unit + 2048)[lane];
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const uint4 codes = reinterpret_cast<const uint4*>(unit)[part * 32 + lane];
            const uint32_t pair = part < 2 ? scales.x : scales.y;
            const uint32_t low = scale(pair, part % 2 * 2), high = scale(pair, part % 2 * 2 + 1);
            const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int step = 0; step < 4; step++) {
                uint32_t a[4];
                operand(words[step], low, high, a);
                const uint4 t = tokens[part][step / 2];
                mma_bf16(sums[step % CHAINS], a, step % 2 ? t.z : t.x, step % 2 ? t.w : t.y);
            }
        }
    }
};

}  // namespace engine
