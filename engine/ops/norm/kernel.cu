// Residual add + zero-centred RMSNorm + static E4M3 quantisation of each token, and the small bf16 product behind it.
//
//   x = bf16(sum of the fp32 planes a sliced product left, or of a token's bf16 pairs, each times its weight)
//   residual = bf16(residual + x), or a row of the embedding
//   y = bf16(residual * rsqrt(mean(residual^2) + eps) * scale);  quantised = e4m3(y / input_scale);  small = w . y
//
// Bytes per token: slices * 4n (pairs: slots * 2n) + 2n read, 2n to 5n written: nothing, for the few of a decoding step. What
// counts is latency, so the row is in registers (8 columns a thread) and everything that no kernel writes is loaded before the
// predecessor has finished.
//
// Pairs are what many tokens' experts leave (ops/moe/many.cu), and one pair a token without a weight what a library's FP8
// product leaves. A pair's weight is multiplied in here, not fused with the addition: to the bit what planes of the products
// add up to, of which the mixture's nine would be twice the bytes, written and read.
//
// `small` is in_proj_b and in_proj_a of a Gated DeltaNet layer (96 rows of 5120), or a router with the shared expert's gate
// (257 rows of 2048): too few for a launch of their own. Each
// of a token's `parts` blocks repeats the norm (51 KB from the L2) and multiplies its own rows. Rejected: one block per
// token (96 rows x 10 KB through one multiprocessor: 10 us); in the product that reads y (its x is E4M3, this one's bf16).
//
// A router's rows may be followed by the routing (kernels/route.cuh): whichever block finishes last does it, with a warp per
// token up to ROUTE_WARPS, more of them than the norm needs if need be. Rejected: a last block per token and then one over
// all, a second trip through the L2 that only more than ROUTE_WARPS tokens could gain from; 32 warps, which would fill a
// multiprocessor's registers and keep the next launch's blocks from being there when this one ends.
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"
#include "../../kernels/route.cuh"

namespace engine {
namespace {

constexpr int ROWS = 4;             // of small_weight, at a time: what registers hold beside the row
constexpr int MAX_PART_ROWS = 96;   // per block
constexpr int MIN_BLOCKS = 128;     // about one per multiprocessor; more would repeat the norm for nothing
constexpr int COLUMNS = 8;          // per thread: one 16-byte access of bf16
constexpr int MAX_WARPS = 20;       // n <= 5120
// Planes in flight at a time. Few tokens: a mixture's nine are two trips to the L2; all nine at once would spill. Many tokens
// are bound by memory and want warps more than loads in flight: the norms of four layers of the 27B at 16,384 tokens take
// 3.4 ms with five and 2.5 with one (results/h200/bench/20261130-209203f-prefill-4-layers.txt, and -60614b8-).
constexpr int FEW_PLANES = 5, MANY_PLANES = 1, FEW_TOKENS = 32;
constexpr int PAIRS = 0;            // in place of planes in flight: there are none, x is bf16 by pair
constexpr int ROUTE_WARPS = 16;     // of a block that may have to route, at least where there are as many tokens

struct NormArgs {
    const float* planes;        // [slices][m][n]
    const bf16* residual_in;    // [m][n]; with token_ids the embedding, [its rows][n]
    const int64_t* token_ids;   // [m]: which row of it is a token's; null: the token's own
    const int64_t* fed_ids;     // -1 - r in token_ids stands for fed_ids[r]
    bf16* residual_out;         // [m][n]; may be residual_in; null: not wanted
    const float* scale;         // [n], 1 + weight
    bf16* out;                  // [m][n]; null: not wanted
    uint8_t* quantised;         // [m][n] e4m3; null: not wanted
    const float* input_scale;   // []; of quantised
    const bf16* small_weight;   // [small_rows][n]
    bf16* small_out;            // [m][small_rows]
    int m, n, slices, small_rows, part_rows;   // slices: planes, or pairs of a token; part_rows: of small_weight, per block
    float eps;
    RouteArgs route;            // of small_out
    int* arrived;               // blocks that have written their logits: zero before and after
    const bf16* pairs;          // [m][slices][n], in place of planes
    const float* pair_weights;  // [m][slices]; null: 1
};

__host__ __device__ constexpr int warps_of(int columns) { return (columns + 32 * COLUMNS - 1) / (32 * COLUMNS); }

enum class Behind : int { NOTHING, SMALL, ROUTE };   // the norm; ROUTE: SMALL, and then the routing

// x += the token's pairs times their weights, slot after slot; never fused, as planes of the products would be added.
//
// The weights are not of the launch before, as the pairs are, but of one before that. The wait covers them all the same:
// `down` has ended, so it has waited for gate_up, which has waited for the routing's second launch, which has waited for the
// first, their writer. No kernel between may do without its wait, not even one that reads nothing of the kernel before it.
__device__ __forceinline__ void add_pairs(const NormArgs& args, int token, int column, float (&x)[COLUMNS]) {
    const size_t first = size_t(token) * args.slices;
    const bf16* rows = args.pairs + first * args.n + column;
    const float* weights = args.pair_weights ? args.pair_weights + first : nullptr;
#pragma unroll 4
    for (int slot = 0; slot < args.slices; slot++, rows += args.n) {
        const uint4 loaded = __ldcg(reinterpret_cast<const uint4*>(rows));
        const float weight = weights ? weights[slot] : 1.f;
        const uint32_t word[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 value = unpack_bf16(word[i]);
            x[2 * i] = __fadd_rn(x[2 * i], __fmul_rn(value.x, weight));
            x[2 * i + 1] = __fadd_rn(x[2 * i + 1], __fmul_rn(value.y, weight));
        }
    }
}

// Grid: m x parts; the first part of a token writes y and the residual.
template <Behind B, int PLANES>
__global__ void __launch_bounds__(MAX_WARPS * 32, B == Behind::ROUTE) add_norm_kernel(const NormArgs args) {
    constexpr bool SMALL = B != Behind::NOTHING, ROUTE = B == Behind::ROUTE;
    __shared__ float warp_sums[MAX_WARPS];
    __shared__ float row_sums[SMALL ? MAX_PART_ROWS : 1][MAX_WARPS];
    const int token = blockIdx.x, row_begin = blockIdx.y * args.part_rows;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int all_warps = blockDim.x / 32, warps = ROUTE ? warps_of(args.n) : all_warps;   // warps: with columns of the row
    const int column = threadIdx.x * COLUMNS;
    const bool active = column < args.n;
    const size_t offset = size_t(token) * args.n + column;

    let_next_kernel_start();
    float4 scale[2] = {};
    const int row_end = min(row_begin + args.part_rows, args.small_rows);
    uint4 weights[ROWS];   // of the rows to multiply next
    auto load_rows = [&](int row) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            weights[r] = active && row + r < row_end ? *reinterpret_cast<const uint4*>(args.small_weight + size_t(row + r) * args.n + column)
                                                     : make_uint4(0, 0, 0, 0);
    };
    if constexpr (SMALL) load_rows(row_begin);
    if (active) {
        scale[0] = reinterpret_cast<const float4*>(args.scale + column)[0];
        scale[1] = reinterpret_cast<const float4*>(args.scale + column)[1];
    }
    const float inverse_scale = args.quantised ? 1.f / *args.input_scale : 0.f;
    wait_for_previous_kernel();

    float value[COLUMNS] = {};
    if (active) {
        int64_t row = token;
        if (args.token_ids) {
            row = args.token_ids[token];
            if (row < 0) row = args.fed_ids[-1 - row];
        }
        // Asked for together with the first planes: it would be one more trip to the L2 behind them.
        const uint4 words = *reinterpret_cast<const uint4*>(args.residual_in + size_t(row) * args.n + column);
        float x[COLUMNS] = {};
        if constexpr (PLANES == PAIRS) {
            add_pairs(args, token, column, x);
        } else {
            const size_t plane = size_t(args.m) * args.n;
#pragma unroll(PLANES == 1 ? 4 : 1)
            for (int first = 0; first < args.slices; first += PLANES) {
                float4 low[PLANES], high[PLANES];
#pragma unroll
                for (int s = 0; s < PLANES; s++) {
                    const float4* source = reinterpret_cast<const float4*>(args.planes + (first + s) * plane + offset);
                    if (first + s < args.slices) low[s] = source[0], high[s] = source[1];
                }
#pragma unroll
                for (int s = 0; s < PLANES; s++) {
                    if (first + s >= args.slices) break;
                    x[0] += low[s].x, x[1] += low[s].y, x[2] += low[s].z, x[3] += low[s].w;
                    x[4] += high[s].x, x[5] += high[s].y, x[6] += high[s].z, x[7] += high[s].w;
                }
            }
        }
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 r = unpack_bf16(word[i]);
            value[2 * i] = args.slices ? round_bf16(r.x + round_bf16(x[2 * i])) : r.x;
            value[2 * i + 1] = args.slices ? round_bf16(r.y + round_bf16(x[2 * i + 1])) : r.y;
        }
    }
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) squares += value[i] * value[i];
    squares = warp_sum(squares);
    if (lane == 0) warp_sums[warp] = squares;
    __syncthreads();
    const float total = warp_sum(lane < warps ? warp_sums[lane] : 0.f);
    const float inverse = rsqrtf(total / args.n + args.eps);

    const float by_column[COLUMNS] = {scale[0].x, scale[0].y, scale[0].z, scale[0].w, scale[1].x, scale[1].y, scale[1].z, scale[1].w};
    float y[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) y[i] = round_bf16(value[i] * inverse * by_column[i]);
    if (active && blockIdx.y == 0) {
        if (args.residual_out)
            *reinterpret_cast<uint4*>(args.residual_out + offset) =
                make_uint4(pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3]), pack_bf16(value[4], value[5]), pack_bf16(value[6], value[7]));
        if (args.out)
            *reinterpret_cast<uint4*>(args.out + offset) =
                make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
        if (args.quantised)
            *reinterpret_cast<uint2*>(args.quantised + offset) =
                make_uint2(pack_e4m3(y[0] * inverse_scale, y[1] * inverse_scale, y[2] * inverse_scale, y[3] * inverse_scale),
                           pack_e4m3(y[4] * inverse_scale, y[5] * inverse_scale, y[6] * inverse_scale, y[7] * inverse_scale));
    }

    if constexpr (SMALL) {
        for (int row = row_begin; row < row_end && (!ROUTE || warp < warps); row += ROWS) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const uint32_t word[4] = {weights[r].x, weights[r].y, weights[r].z, weights[r].w};
                float sum = 0.f;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 w = unpack_bf16(word[i]);
                    sum += w.x * y[2 * i] + w.y * y[2 * i + 1];
                }
                sum = warp_sum(sum);
                if (lane == 0) row_sums[row - row_begin + r][warp] = sum;
            }
            if (row + ROWS < row_end) load_rows(row + ROWS);
        }
        __syncthreads();
        for (int row = row_begin + warp; row < row_end; row += all_warps) {
            const float sum = warp_sum(lane < warps ? row_sums[row - row_begin][lane] : 0.f);
            if (lane == 0) args.small_out[size_t(token) * args.small_rows + row] = __float2bfloat16(sum);
        }
    }
    if constexpr (ROUTE) {
        __shared__ RouteShared routes;
        __shared__ bool last_block;
        clear_routes(routes, args.route.experts);
        __threadfence();   // this block's logits, before its arrival
        __syncthreads();
        if (threadIdx.x == 0) {
            last_block = atomicAdd(args.arrived, 1) == int(gridDim.x * gridDim.y) - 1;
            if (last_block) *args.arrived = 0;
        }
        __syncthreads();
        if (!last_block) return;
        __threadfence();   // their arrivals, before the others' logits
        route(args.route, routes);
    }
}

// The launch of one instantiation: blocks per token as many as keep the multiprocessors busy.
template <Behind B>
cudaError_t launch_norm(NormArgs args, int threads, bool dependent, void* stream) {
    int parts = MIN_BLOCKS / args.m;
    const int chunks = (args.small_rows + ROWS - 1) / ROWS;   // chunks of rows, dealt out to the parts
    parts = parts > chunks ? chunks : parts < 1 ? 1 : parts;
    args.part_rows = args.small_rows ? (chunks + parts - 1) / parts * ROWS : 0;
    if (args.part_rows > MAX_PART_ROWS) return cudaErrorInvalidValue;
    const int grid_y = args.small_rows ? (args.small_rows + args.part_rows - 1) / args.part_rows : 1;
    const dim3 grid(args.m, grid_y);
    if constexpr (B == Behind::NOTHING)
        if (args.pairs) return launch(add_norm_kernel<B, PAIRS>, grid, threads, 0, dependent, stream, args);
    if (args.m <= FEW_TOKENS) return launch(add_norm_kernel<B, FEW_PLANES>, grid, threads, 0, dependent, stream, args);
    if constexpr (B == Behind::ROUTE) return cudaErrorInvalidValue;
    else return launch(add_norm_kernel<B, MANY_PLANES>, grid, threads, 0, dependent, stream, args);
}

bool valid(const NormArgs& args) {
    return args.m >= 1 && args.n >= COLUMNS && args.n % COLUMNS == 0 && args.n <= MAX_WARPS * 32 * COLUMNS && args.slices >= 0 &&
           !(args.token_ids && args.slices) && !(args.pairs && (args.planes || args.small_rows)) && args.small_rows >= 0 && (args.small_rows == 0 || args.residual_in != args.residual_out);
}

}  // namespace
}  // namespace engine

// slices 0: no addition, planes unused. pairs: in place of planes, `slices` of a token; pair_weights may be null: all 1; no small
// product then. token_ids (then slices 0): residual_in is the embedding, residual_out its rows, or
// null; fed_ids may be null where no id is negative. small_rows 0: no small product. In place only without a small product: its
// blocks read the residual that the first one writes. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_add_norm(const float* planes, const void* pairs, const float* pair_weights, const void* residual_in, const int64_t* token_ids, const int64_t* fed_ids,
                               void* residual_out, const float* scale, void* out, void* quantised, const float* input_scale, const void* small_weight, void* small_out, int m,
                               int n, int slices, int small_rows, float eps, int dependent, void* stream) {
    using namespace engine;
    const NormArgs args{planes, static_cast<const bf16*>(residual_in), token_ids, fed_ids, static_cast<bf16*>(residual_out), scale, static_cast<bf16*>(out),
                        static_cast<uint8_t*>(quantised), input_scale, static_cast<const bf16*>(small_weight), static_cast<bf16*>(small_out),
                        m, n, slices, small_rows, 0, eps, {}, nullptr, static_cast<const bf16*>(pairs), pair_weights};
    if (!valid(args)) return cudaErrorInvalidValue;
    if (small_rows == 0) return launch_norm<Behind::NOTHING>(args, warps_of(n) * 32, dependent, stream);
    return launch_norm<Behind::SMALL>(args, warps_of(n) * 32, dependent, stream);
}

// The same with a router of experts + 1 rows and the routing of its m <= 32 tokens, slots - 1 experts each, behind it; as
// engine_moe_route (ops/moe/kernel.cu) would leave it. arrived [1] zero before and after.
extern "C" int engine_add_norm_route(const float* planes, const void* residual_in, void* residual_out, const float* scale, void* out,
                                     const void* router, void* logits, void* entries, int* entry_count, int* pairs, float* weights,
                                     int* ids, int* arrived, int m, int n, int slices, int experts, int slots, float eps,
                                     int dependent, void* stream) {
    using namespace engine;
    const RouteArgs route{static_cast<const bf16*>(logits), static_cast<int4*>(entries), entry_count, pairs, weights, ids, m, experts, slots};
    const NormArgs args{planes, static_cast<const bf16*>(residual_in), nullptr, nullptr, static_cast<bf16*>(residual_out), scale, static_cast<bf16*>(out),
                        nullptr, nullptr, static_cast<const bf16*>(router), static_cast<bf16*>(logits),
                        m, n, slices, experts + 1, 0, eps, route, arrived, nullptr, nullptr};
    if (!route.valid() || !valid(args)) return cudaErrorInvalidValue;
    int threads = 32 * (m < ROUTE_WARPS ? m : ROUTE_WARPS);
    threads = threads > warps_of(n) * 32 ? threads : warps_of(n) * 32;
    threads = threads > route.least_threads() ? threads : route.least_threads();
    return launch_norm<Behind::ROUTE>(args, threads, dependent, stream);
}
