// Emulated: engine/kernels/mma.cuh. Fragments as PTX ISA 9.0, section 9.7.15.5.8 (m16n8k16) lays them out.
#pragma once
#include "emulator.hpp"

namespace engine {

inline float half_of(uint32_t word, int index) { return __uint_as_float(index ? word & 0xFFFF0000u : word << 16); }

inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
    return __float2bfloat16(half_of(a, 0) * half_of(b, 0)).bits | uint32_t(__float2bfloat16(half_of(a, 1) * half_of(b, 1)).bits) << 16;
}

// Of fp16 bits; of e4m3 bits with `exponent_bits` 4.
inline float small_float(unsigned bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1, exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1), sign = bits >> (exponent_bits + mantissa_bits) & 1;
    const float magnitude = exponent ? std::ldexp(float(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits)
                                     : std::ldexp(float(mantissa), 1 - bias - mantissa_bits);
    return sign ? -magnitude : magnitude;
}
inline float f16_of(uint32_t word, int index) {
    const unsigned bits = word >> 16 * index & 0xFFFF;
    if ((bits & 0x7C00) == 0x7C00) return bits & 0x3FF ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
    return small_float(bits, 5, 10);
}
inline unsigned to_f16(float value) {   // to nearest, ties to even
    const unsigned sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (value != value) return 0x7FFF;
    if (magnitude == 0) return sign;
    int exponent;
    std::frexp(magnitude, &exponent);
    exponent = exponent - 1 < -14 ? -14 : exponent - 1;
    const float units = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
    const int code = (exponent + 14) * 1024 + int(units);   // a carry moves into the exponent
    return sign | (exponent > 15 || code > 0x7C00 ? 0x7C00 : code);
}
inline uint32_t pack_f16(float low, float high) { return to_f16(low) | to_f16(high) << 16; }
inline uint32_t e4m3_to_f16x2(uint16_t pair) {
    auto half = [](unsigned bits) { return (bits & 0x7F) == 0x7F ? 0x7FFFu : to_f16(small_float(bits, 4, 3)); };
    return half(pair & 0xFF) | half(pair >> 8) << 16;
}

template <float (*Element)(uint32_t, int)>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    // Word i of lane 4g + t of A: row g + 8 (i % 2), columns 2t + 8 (i / 2) and the next; of B: rows 2t + 8 i, column g.
    struct Operands { uint32_t a[4], b[2]; };
    const auto all = emulator::gather(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float rows[2][16], columns[2][16];   // g and g + 8 of A, 2t and the next of B
    for (int k = 0; k < 16; k++) {
        const int holder = k % 8 / 2;
        for (int i = 0; i < 2; i++) {
            rows[i][k] = Element(all[4 * g + holder].a[i + 2 * (k / 8)], k % 2);
            columns[i][k] = Element(all[4 * (2 * t + i) + holder].b[k / 8], k % 2);
        }
    }
    for (int out = 0; out < 4; out++) {
        double sum = d[out];
        for (int k = 0; k < 16; k++) sum += double(rows[out / 2][k]) * columns[out % 2][k];
        d[out] = float(sum);
    }
}

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_m16n8k16<half_of>(d, a, b0, b1); }
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_m16n8k16<f16_of>(d, a, b0, b1); }

// m16n8k32. Word i of lane 4g + t of A: row g + 8 (i % 2), columns 4t + 16 (i / 2) and the next three; of B: rows 4t + 16 i, column g.
inline void mma_e4m3(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    struct Operands { uint32_t a[4], b[2]; };
    const auto all = emulator::gather(Operands{{a0, a1, a2, a3}, {b0, b1}});
    auto element = [](uint32_t word, int index) {
        const unsigned bits = word >> 8 * index & 0xFF;
        return (bits & 0x7F) == 0x7F ? NAN : small_float(bits, 4, 3);
    };
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int out = 0; out < 4; out++) {
        double sum = d[out];
        for (int k = 0; k < 32; k++) {
            const int holder = k % 16 / 4, half = k / 16;
            const float a = element(all[4 * g + holder].a[out / 2 + 2 * half], k % 4);
            sum += double(a) * element(all[4 * (2 * t + out % 2) + holder].b[half], k % 4);
        }
        d[out] = float(sum);
    }
}

}  // namespace engine
