// E4M3 conversion, saturating and to nearest with ties to even.
#pragma once
#include "emulator.hpp"

enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3 };

inline uint8_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t, __nv_fp8_interpretation_t) {
    const uint8_t sign = std::signbit(value) ? 0x80 : 0;
    const float magnitude = std::fabs(value);
    if (value != value) return 0x7F;
    if (magnitude == 0) return sign;   // of which frexp says exponent 0
    if (magnitude >= 448.f) return sign | 0x7E;
    int exponent;
    std::frexp(magnitude, &exponent);
    exponent = exponent - 1 < -6 ? -6 : exponent - 1;   // below 2^-6 they are subnormal
    const float units = std::nearbyint(std::ldexp(magnitude, 3 - exponent));
    const int code = (exponent + 6) * 8 + int(units);   // a carry moves into the exponent
    return sign | uint8_t(code > 0x7E ? 0x7E : code);
}

inline uint16_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return uint16_t(__nv_cvt_float_to_fp8(v.x, s, i) | __nv_cvt_float_to_fp8(v.y, s, i) << 8);
}
