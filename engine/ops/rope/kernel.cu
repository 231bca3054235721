// Attention's inputs from one projection: query and key norm, partial rotation, and the new key and value into the cache.
//
//   row [q 0 | gate 0 | q 1 | gate 1 | ... | k 0.. | v 0..]:  q, k -> bf16(x rsqrt(mean x^2 + eps) scale), the first 64 of
//   256 dimensions rotated in pairs (i, i + 32);  q to its own tensor, k and v to their slot, in bf16 or e4m3(x / scale).
//
// Bytes per token: 2 * (heads + 2 kv_heads) * 256 read, about as many written: latency is all there is. One warp is one
// head (kernels/rotary.cuh). Runs of tokens come here; decoding rows do the same inside ops/attention's launch.
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/rotary.cuh"

namespace engine {
namespace {

constexpr int WARPS = 4;

struct RopeArgs {
    const bf16* qkv;            // [m][(2 heads + 2 kv_heads) * 256]
    const float* q_scale;       // [256], 1 + weight
    const float* k_scale;       // [256]
    const bf16* cos_sin;        // [positions][64]: cos | sin
    const int64_t* positions;   // [m]
    const int64_t* kv_slots;    // [m]; below 0: a row of padding, which the caches do not get
    bf16* q_out;                // [m][heads][256]
    void* k_cache;              // [tokens][kv_heads][256]
    void* v_cache;
    int heads, kv_heads;
    float eps, k_cache_scale, v_cache_scale;
};

template <bool FP8>
__global__ void __launch_bounds__(WARPS * 32) qk_norm_rope_kernel(const RopeArgs args) {
    const int token = blockIdx.y, lane = threadIdx.x % 32, job = blockIdx.x * WARPS + threadIdx.x / 32;
    let_next_kernel_start();
    if (job >= args.heads + 2 * args.kv_heads) {
        wait_for_previous_kernel();
        return;
    }
    const bool is_q = job < args.heads, is_v = job >= args.heads + args.kv_heads;
    const int head = is_q ? job : (job - args.heads) % args.kv_heads;
    // Written by a copy long before this step's kernels; the tables by nobody.
    const int64_t position = args.positions[token], slot = args.kv_slots[token];
    const HeadConstants constants = head_constants(is_q ? args.q_scale : args.k_scale, args.cos_sin + position * ROTARY_DIM, lane);
    wait_for_previous_kernel();

    const size_t row = size_t(token) * (2 * args.heads + 2 * args.kv_heads) * HEAD_DIM;
    const size_t column = is_q ? 2 * size_t(head) * HEAD_DIM : size_t(2 * args.heads + (is_v ? args.kv_heads : 0) + head) * HEAD_DIM;
    float x[PER_LANE];
    load_head(args.qkv + row + column, lane, x);
    if (!is_v) norm_and_rotate(x, constants, args.eps, lane);
    if (is_q) store_head<false>(args.q_out, (size_t(token) * args.heads + head) * HEAD_DIM, lane, x, 1.f);
    else if (slot >= 0) store_head<FP8>(is_v ? args.v_cache : args.k_cache, (size_t(slot) * args.kv_heads + head) * HEAD_DIM, lane, x, is_v ? args.v_cache_scale : args.k_cache_scale);
}

}  // namespace
}  // namespace engine

// fp8: the caches are e4m3 with these scales, else bf16. head_dim is 256 and the rotation 64 dimensions wide. kv_slots below 0:
// the row's key and value are not written; its position is read as any row's.
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
