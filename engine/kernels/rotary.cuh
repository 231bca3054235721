// One head of queries, keys or values by one warp: RMSNorm, partial rotation, store. For ops/rope and ops/attention.
//
//   y = bf16(x rsqrt(mean x^2 + eps) scale), of which the first 64 of 256 dimensions turn in pairs (i, i + 32) and are
//   rounded again;  stored in bf16 or as e4m3(y / cache scale)
//
// A lane holds 8 dimensions, so that a rotation's partner is the lane four away. A product of two bf16 numbers is exact in
// fp32: whether the compiler fuses it with the addition behind it changes no bit, so all callers make the same values.
#pragma once
#include "math.cuh"

namespace engine {

constexpr int HEAD_DIM = 256;
constexpr int ROTARY_DIM = 64;
constexpr int PER_LANE = HEAD_DIM / 32;

// What a lane needs beside the head itself; no kernel writes it.
struct HeadConstants {
    float scale[PER_LANE], cos[PER_LANE], sin[PER_LANE];
};

// scale: [256], 1 + weight; cos_sin: the position's row of [64] = cos | sin.
__device__ __forceinline__ HeadConstants head_constants(const float* scale, const bf16* cos_sin, int lane) {
    HeadConstants constants;
    const int dim = lane * PER_LANE;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        constants.scale[i] = scale[dim + i];
        constants.cos[i] = dim < ROTARY_DIM ? __bfloat162float(cos_sin[dim % (ROTARY_DIM / 2) + i]) : 1.f;
        constants.sin[i] = dim < ROTARY_DIM ? __bfloat162float(cos_sin[ROTARY_DIM / 2 + dim % (ROTARY_DIM / 2) + i]) : 0.f;
    }
    return constants;
}

__device__ __forceinline__ void load_head(const bf16* head, int lane, float (&x)[PER_LANE]) {
    const uint4 words = *reinterpret_cast<const uint4*>(head + lane * PER_LANE);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpack_bf16(word[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}

__device__ __forceinline__ void norm_and_rotate(float (&x)[PER_LANE], const HeadConstants& constants, float eps, int lane) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i += 2) squares += x[i] * x[i] + x[i + 1] * x[i + 1];
    const float inverse = rsqrtf(warp_sum(squares) / HEAD_DIM + eps);
    // The partner of dimension i < 32 is i + 32, and the first 32 dimensions are the first four lanes.
    const bool rotated = lane * PER_LANE < ROTARY_DIM;
    const float sign = lane * PER_LANE < ROTARY_DIM / 2 ? -1.f : 1.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        x[i] = round_bf16(x[i] * inverse * constants.scale[i]);
        const float partner = __shfl_xor_sync(~0u, x[i], ROTARY_DIM / 2 / PER_LANE);
        if (rotated) x[i] = round_bf16(x[i] * constants.cos[i] + sign * partner * constants.sin[i]);
    }
}

// head: where its 256 elements begin, in bf16, or in e4m3 of x / scale.
template <bool FP8>
__device__ __forceinline__ void store_head(void* out, size_t head, int lane, const float (&x)[PER_LANE], float scale) {
    const size_t at = head + lane * PER_LANE;
    if constexpr (FP8)
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(out) + at) =
            make_uint2(pack_e4m3(x[0] / scale, x[1] / scale, x[2] / scale, x[3] / scale),
                       pack_e4m3(x[4] / scale, x[5] / scale, x[6] / scale, x[7] / scale));
    else
        *reinterpret_cast<uint4*>(static_cast<bf16*>(out) + at) =
            make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

}  // namespace engine
