// Gated DeltaNet, one token of each sequence, in one launch: convolution, gates, delta rule, gated norm, quantisation.
//
//   u = silu(conv4(raw q | k | v));  q, k L2-normalised, q / sqrt(128);  g = exp(rate * softplus(a + dt)), beta = sigmoid(b)
//   S <- g S;  e = beta (v - S k);  S <- S + e k^T;  o = S q;  y = rms_norm(o) * w * silu(z);  e4m3(y / input_scale)
//
// Bytes per sequence: 2 * Hv * 64 KB of state, read and written once; the rest is 2 % of it. A block is one value head of
// one sequence. Its 8 warps own 16 rows of S each and a lane 4 columns of every row, so all of S is in registers, loaded
// before the predecessor has finished. Both products with S come from the old state in one pass, since
//
//   o = (g S + e k^T) q = g (S q) + e (k . q)
//
// and the warp's 32 sums (16 rows x {S k, S q}) are reduced together: 31 shuffles instead of 160.
//
// The value heads of one key head all need its convolved q and k, and each computes them; the last of them to have read
// the convolution state writes it (a counter that returns to zero). Rejected: one block per key head (16 blocks at batch 1
// cannot stream 3 MB); a cluster that shares q and k (sm_121a has none).
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int DIM = 128;                // Dk and Dv
constexpr int WARPS = 8;
constexpr int ROWS = DIM / WARPS;       // of S, per warp
constexpr int TAPS_KEPT = 3;
constexpr float L2_EPS = 1e-6f;

struct GdnArgs {
    const bf16* qkvz;           // [m][C + Hv * 128]: q | k | v | z
    const bf16* ba;             // [m][2 * Hv]: b | a
    bf16* conv_state;           // [slots][C][3], oldest first
    float* state;               // [slots][Hv][Dv][Dk]
    const int64_t* slots;       // [m], all different
    const float* conv;          // [C][4]
    const float* decay_rate;    // [Hv], -exp(A_log)
    const float* dt_bias;       // [Hv]
    const float* norm;          // [128]
    const float* input_scale;   // []; of out_proj; null: bf16 out
    void* out;                  // [m][Hv * 128], e4m3 or bf16
    int* readers;               // [m][Hk], zero before and after
    int key_heads, value_heads;
    float eps;
};

// Sums 2 * HALF values over the warp: lane i returns the sum of value i. Each step halves the values and doubles the lanes
// that have been added. A template, not a loop: the indices must be constants for the array to stay in registers.
template <int HALF>
__device__ __forceinline__ float warp_sum_each(float (&value)[2 * HALF], int lane) {
    float kept[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float send = lane & HALF ? value[i] : value[i + HALF];
        kept[i] = (lane & HALF ? value[i + HALF] : value[i]) + __shfl_xor_sync(~0u, send, HALF);
    }
    if constexpr (HALF == 1) return kept[0];
    else return warp_sum_each<HALF / 2>(kept, lane);
}

struct Window {
    float tap[4];   // three kept inputs, then the current one
    int channel;
};

__global__ void __launch_bounds__(WARPS * 32, 2) gdn_decode_kernel(const GdnArgs args) {
    __shared__ __align__(16) float heads[3][DIM];   // convolved q, k, v
    __shared__ float warp_squares[WARPS];
    __shared__ bool last_reader;
    const int head = blockIdx.x, sequence = blockIdx.y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int repeat = args.value_heads / args.key_heads, key_head = head / repeat;
    const int key_width = args.key_heads * DIM, channels = 2 * key_width + args.value_heads * DIM;
    const int64_t slot = args.slots[sequence];

    let_next_kernel_start();
    // The state was written a step ago, so it may be read before the predecessor has finished.
    float4* rows = reinterpret_cast<float4*>(args.state + ((slot * args.value_heads + head) * DIM + warp * ROWS) * DIM) + lane;
    float4 s[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) s[r] = __ldcs(rows + r * (DIM / 4));

    // Threads 0..127 take q and v, 128..255 take k.
    const int within = threadIdx.x % DIM;
    const bool takes_v = threadIdx.x < DIM;
    Window window[2];
    window[0].channel = (takes_v ? 0 : key_width) + key_head * DIM + within;
    window[1].channel = 2 * key_width + head * DIM + within;
    bf16* kept = args.conv_state + slot * channels * TAPS_KEPT;
    float4 taps[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !takes_v) break;
        taps[i] = reinterpret_cast<const float4*>(args.conv)[window[i].channel];
#pragma unroll
        for (int t = 0; t < TAPS_KEPT; t++) window[i].tap[t] = __bfloat162float(kept[window[i].channel * TAPS_KEPT + t]);
    }
    const float rate = args.decay_rate[head], bias = args.dt_bias[head];
    const float inverse_scale = args.input_scale ? 1.f / *args.input_scale : 0.f;
    wait_for_previous_kernel();

    const int width = channels + args.value_heads * DIM;
    const bf16* raw = args.qkvz + size_t(sequence) * width;
    const float b = __bfloat162float(args.ba[sequence * 2 * args.value_heads + head]);
    const float a = __bfloat162float(args.ba[sequence * 2 * args.value_heads + args.value_heads + head]) + bias;
    // Lane L < 16 finishes row L of its warp; the other lanes' z is never used.
    const int out_row = warp * ROWS + lane % ROWS;
    const float z = __bfloat162float(raw[channels + head * DIM + out_row]), norm = args.norm[out_row];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !takes_v) break;
        window[i].tap[3] = __bfloat162float(raw[window[i].channel]);
        const float u = window[i].tap[0] * taps[i].x + window[i].tap[1] * taps[i].y + window[i].tap[2] * taps[i].z + window[i].tap[3] * taps[i].w;
        heads[i == 1 ? 2 : !takes_v][within] = round_bf16(silu(u));
    }
    __syncthreads();

    auto keep = [&](const Window& w) {
#pragma unroll
        for (int t = 0; t < TAPS_KEPT; t++) kept[w.channel * TAPS_KEPT + t] = __float2bfloat16(w.tap[t + 1]);
    };
    if (takes_v) keep(window[1]);   // this block alone reads them
    if (threadIdx.x == 0) {
        int* readers = args.readers + sequence * args.key_heads + key_head;
        last_reader = atomicAdd(readers, 1) == repeat - 1;
        if (last_reader) *readers = 0;
    }

    const float4 q = reinterpret_cast<const float4*>(heads[0])[lane], k = reinterpret_cast<const float4*>(heads[1])[lane];
    const float qq = warp_sum(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
    const float kk = warp_sum(k.x * k.x + k.y * k.y + k.z * k.z + k.w * k.w);
    const float qk = warp_sum(q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w);
    const float q_inverse = rsqrtf(qq + L2_EPS) * 0.08838834764831845f, k_inverse = rsqrtf(kk + L2_EPS);   // 128^-1/2
    const float softplus = a > 20.f ? a : log1pf(__expf(a));
    const float decay = __expf(rate * softplus), beta = sigmoid(b);

    float sums[32];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sums[r] = s[r].x * k.x + s[r].y * k.y + s[r].z * k.z + s[r].w * k.w;
        sums[ROWS + r] = s[r].x * q.x + s[r].y * q.y + s[r].z * q.z + s[r].w * q.w;
    }
    const float sum = warp_sum_each<16>(sums, lane);                     // lane r: S k of row r; lane 16 + r: S q
    const float s_q = __shfl_down_sync(~0u, sum, ROWS) * q_inverse;   // meaningful in lanes 0..15
    const float e = beta * (heads[2][out_row] - decay * sum * k_inverse);
    const float o = round_bf16(decay * s_q + e * (qk * q_inverse * k_inverse));
    const float step = e * k_inverse;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float by_row = __shfl_sync(~0u, step, r);
        s[r].x = decay * s[r].x + by_row * k.x, s[r].y = decay * s[r].y + by_row * k.y;
        s[r].z = decay * s[r].z + by_row * k.z, s[r].w = decay * s[r].w + by_row * k.w;
        __stcs(rows + r * (DIM / 4), s[r]);
    }
    const float squares = warp_sum(lane < ROWS ? o * o : 0.f);
    if (lane == 0) warp_squares[warp] = squares;
    __syncthreads();

    if (last_reader) keep(window[0]);
    const float total = warp_sum(lane < WARPS ? warp_squares[lane] : 0.f);
    const float y = round_bf16(o * rsqrtf(total / DIM + args.eps) * norm * silu(z));
    if (lane < ROWS) {
        const size_t at = (size_t(sequence) * args.value_heads + head) * DIM + out_row;
        if (args.input_scale) static_cast<uint8_t*>(args.out)[at] = to_e4m3(y * inverse_scale);
        else static_cast<bf16*>(args.out)[at] = __float2bfloat16(y);
    }
}

}  // namespace
}  // namespace engine

// Returns a cudaError_t; cudaErrorInvalidValue for a shape outside the contract. With `dependent`, the kernel before it in
// the stream must write none of state, conv_state and slots: they are read before it has finished.
extern "C" int engine_gdn_decode(const void* qkvz, const void* ba, void* conv_state, float* state, const int64_t* slots,
                                 const float* conv, const float* decay_rate, const float* dt_bias, const float* norm,
                                 const float* input_scale, void* out, int* readers, int m, int key_heads, int value_heads,
                                 float eps, int dependent, void* stream) {
    using namespace engine;
    if (m < 1 || key_heads < 1 || value_heads < 1 || value_heads % key_heads) return cudaErrorInvalidValue;
    const GdnArgs args{static_cast<const bf16*>(qkvz), static_cast<const bf16*>(ba), static_cast<bf16*>(conv_state), state, slots, conv,
                       decay_rate, dt_bias, norm, input_scale, out, readers, key_heads, value_heads, eps};
    return launch(gdn_decode_kernel, dim3(value_heads, m), WARPS * 32, 0, dependent, stream, args);
}
