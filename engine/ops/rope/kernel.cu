// Attention's inputs from one projection: query and key norm, partial rotation, and the new key and value into the cache.
//
//   row [q 0 | gate 0 | q 1 | gate 1 | ... | k 0.. | v 0..]:  q, k -> bf16(x rsqrt(mean x^2 + eps) scale), the first 64 of
//   256 dimensions rotated in pairs (i, i + 32);  q to its own tensor, k and v to their slot, in bf16 or e4m3(x / scale).
//
// Bytes per token: 2 * (heads + 2 kv_heads) * 256 read, about as many written: latency is all there is. One warp is one
// head, a lane 8 of its dimensions, so that a rotation's partner is the lane four away.
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int HEAD_DIM = 256;
constexpr int ROTARY_DIM = 64;
constexpr int PER_LANE = 8;
constexpr int WARPS = 4;

struct RopeArgs {
    const bf16* qkv;            // [m][(2 heads + 2 kv_heads) * 256]
    const float* q_scale;       // [256], 1 + weight
    const float* k_scale;       // [256]
    const bf16* cos_sin;        // [positions][64]: cos | sin
    const int64_t* positions;   // [m]
    const int64_t* kv_slots;    // [m]
    bf16* q_out;                // [m][heads][256]
    void* k_cache;              // [tokens][kv_heads][256]
    void* v_cache;
    int heads, kv_heads;
    float eps, k_cache_scale, v_cache_scale;
};

template <bool FP8>
__device__ __forceinline__ void store(void* out, size_t at, const float (&x)[PER_LANE], float scale) {
    if constexpr (FP8)
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(out) + at) =
            make_uint2(pack_e4m3(x[0] / scale, x[1] / scale, x[2] / scale, x[3] / scale),
                       pack_e4m3(x[4] / scale, x[5] / scale, x[6] / scale, x[7] / scale));
    else
        *reinterpret_cast<uint4*>(static_cast<bf16*>(out) + at) =
            make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

template <bool FP8>
__global__ void __launch_bounds__(WARPS * 32) qk_norm_rope_kernel(const RopeArgs args) {
    const int token = blockIdx.y, lane = threadIdx.x % 32, job = blockIdx.x * WARPS + threadIdx.x / 32;
    let_next_kernel_start();
    if (job >= args.heads + 2 * args.kv_heads) {
        wait_for_previous_kernel();
        return;
    }
    const bool is_q = job < args.heads, is_v = job >= args.heads + args.kv_heads;
    const int dim = lane * PER_LANE, head = is_q ? job : (job - args.heads) % args.kv_heads;
    // Written by a copy long before this step's kernels; the tables by nobody.
    const int64_t position = args.positions[token], slot = args.kv_slots[token];
    float scale[PER_LANE], cos[PER_LANE], sin[PER_LANE];
    const float* scales = (is_q ? args.q_scale : args.k_scale) + dim;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        scale[i] = scales[i];
        cos[i] = dim < ROTARY_DIM ? __bfloat162float(args.cos_sin[position * ROTARY_DIM + dim % (ROTARY_DIM / 2) + i]) : 1.f;
        sin[i] = dim < ROTARY_DIM ? __bfloat162float(args.cos_sin[position * ROTARY_DIM + ROTARY_DIM / 2 + dim % (ROTARY_DIM / 2) + i]) : 0.f;
    }
    wait_for_previous_kernel();

    const size_t row = size_t(token) * (2 * args.heads + 2 * args.kv_heads) * HEAD_DIM;
    const size_t column = is_q ? 2 * size_t(head) * HEAD_DIM : size_t(2 * args.heads + (is_v ? args.kv_heads : 0) + head) * HEAD_DIM;
    const uint4 words = *reinterpret_cast<const uint4*>(args.qkv + row + column + dim);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    float x[PER_LANE], squares = 0.f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = unpack_bf16(word[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
        squares += pair.x * pair.x + pair.y * pair.y;
    }
    if (!is_v) {
        const float inverse = rsqrtf(warp_sum(squares) / HEAD_DIM + args.eps);
        // The partner of dimension i < 32 is i + 32, and the first 32 dimensions are the first four lanes.
        const float sign = dim < ROTARY_DIM / 2 ? -1.f : 1.f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            x[i] = round_bf16(x[i] * inverse * scale[i]);
            const float partner = __shfl_xor_sync(~0u, x[i], ROTARY_DIM / 2 / PER_LANE);
            if (dim < ROTARY_DIM) x[i] = round_bf16(x[i] * cos[i] + sign * partner * sin[i]);
        }
    }
    if (is_q) store<false>(args.q_out, (size_t(token) * args.heads + head) * HEAD_DIM + dim, x, 1.f);
    else store<FP8>(is_v ? args.v_cache : args.k_cache, (size_t(slot) * args.kv_heads + head) * HEAD_DIM + dim, x, is_v ? args.v_cache_scale : args.k_cache_scale);
}

}  // namespace
}  // namespace engine

// fp8: the caches are e4m3 with these scales, else bf16. head_dim is 256 and the rotation 64 dimensions wide.
extern "C" int engine_qk_norm_rope(const void* qkv, const float* q_scale, const float* k_scale, const void* cos_sin,
                                   const int64_t* positions, const int64_t* kv_slots, void* q_out, void* k_cache, void* v_cache,
                                   int m, int heads, int kv_heads, float eps, float k_cache_scale, float v_cache_scale, int fp8,
                                   int dependent, void* stream) {
    using namespace engine;
    if (m < 1 || heads < 1 || kv_heads < 1 || heads % kv_heads) return cudaErrorInvalidValue;
    const RopeArgs args{static_cast<const bf16*>(qkv), q_scale, k_scale, static_cast<const bf16*>(cos_sin), positions, kv_slots,
                        static_cast<bf16*>(q_out), k_cache, v_cache, heads, kv_heads, eps, k_cache_scale, v_cache_scale};
    const dim3 grid((heads + 2 * kv_heads + WARPS - 1) / WARPS, m);
    return launch(fp8 ? qk_norm_rope_kernel<true> : qk_norm_rope_kernel<false>, grid, WARPS * 32, 0, dependent, stream, args);
}
