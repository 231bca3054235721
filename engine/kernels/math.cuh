// Warp sums, bf16 and e4m3 conversions: what the small kernels share.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace engine {

using bf16 = __nv_bfloat16;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    return value;
}

__device__ __forceinline__ float round_bf16(float value) { return __bfloat162float(__float2bfloat16(value)); }

__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }
__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// Two bf16 in a word, low half first.
__device__ __forceinline__ float2 unpack_bf16(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// Two neighbours as bf16 terms: their sum is the value to 2⁻¹⁷ of its size.
__device__ __forceinline__ void split_bf16(float a, float b, uint32_t& high, uint32_t& low) {
    high = pack_bf16(a, b);
    const float2 kept = unpack_bf16(high);
    low = pack_bf16(a - kept.x, b - kept.y);
}

// Saturates at +-448, as the clamp in engine.ops.linear.quantize does.
__device__ __forceinline__ uint8_t to_e4m3(float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); }
__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
    return uint32_t(__nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3)) |
           uint32_t(__nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3)) << 16;
}

}  // namespace engine
