// Emulated: engine/kernels/mma.cuh. Fragments as PTX ISA 9.0, section 9.7.15.5.8 (m16n8k16) lays them out.
#pragma once
#include "emulator.hpp"

namespace engine {

inline float half_of(uint32_t word, int index) { return __uint_as_float(index ? word & 0xFFFF0000u : word << 16); }

inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
    return __float2bfloat16(half_of(a, 0) * half_of(b, 0)).bits | uint32_t(__float2bfloat16(half_of(a, 1) * half_of(b, 1)).bits) << 16;
}

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    // Word i of lane 4g + t of A: row g + 8 (i % 2), columns 2t + 8 (i / 2) and the next; of B: rows 2t + 8 i, column g.
    std::array<std::array<uint32_t, 32>, 4> rows;
    for (int i = 0; i < 4; i++) rows[i] = emulator::gather(a[i]);
    const std::array<std::array<uint32_t, 32>, 2> columns{emulator::gather(b0), emulator::gather(b1)};
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int out = 0; out < 4; out++) {
        const int row = g, column = 2 * t + out % 2;
        double sum = d[out];
        for (int k = 0; k < 16; k++) {
            const int holder = k % 8 / 2;
            const float x = half_of(rows[out / 2 + 2 * (k / 8)][4 * row + holder], k % 2);
            sum += double(x) * half_of(columns[k / 8][4 * column + holder], k % 2);
        }
        d[out] = float(sum);
    }
}

}  // namespace engine
