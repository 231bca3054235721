// A router's product and the routing of its up to 32 tokens in one launch, for norms whose launch should not repeat itself.
//
//   logits = bf16(x . router);   then kernels/route.cuh, by whichever block finishes last
//
// Bytes: (experts + 1) * 2n + m * 2n, 1.2 MB of the 35B at 32 tokens. A block multiplies 8 rows of the router (the columns of
// mma.sync, which so has its 16 rows for tokens) with up to 16 tokens, its warps taking 32 of the n columns in turn: a lane's
// 16 bytes are two steps of an mma, since any order of columns will do that both operands share. The router, which no kernel
// writes, is loaded before the predecessor has ended.
//
// Rejected: in the launch of the norm (ops/norm), as for few tokens. There each of a token's blocks reads its planes again and
// a part of the router, and at 32 tokens the part is 64 rows, 4 at a time.
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"
#include "../../kernels/mma.cuh"
#include "../../kernels/route.cuh"

namespace engine {
namespace {

constexpr int ROUTER_WARPS = 16;
constexpr int ROUTER_ROWS = 8;      // of the router, per block
constexpr int ROUTER_TOKENS = 16;   // per block
constexpr int CHUNK = 32;           // columns that a warp takes at a time
constexpr int AHEAD = 4;            // chunks loaded together

struct RouterArgs {
    const bf16* x;        // [m][n]
    const bf16* router;   // [experts + 1][n]
    bf16* logits;         // [m][experts + 1]
    int n;
    int* arrived;         // blocks that have written their logits: zero before and after
    RouteArgs route;
};

__global__ void __launch_bounds__(ROUTER_WARPS * 32, 1) router_kernel(const RouterArgs args) {
    __shared__ float sums[ROUTER_WARPS][ROUTER_TOKENS * ROUTER_ROWS];
    __shared__ RouteShared routes;
    __shared__ bool last_block;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = args.route.experts + 1, m = args.route.m;
    const int row_begin = blockIdx.x * ROUTER_ROWS, token_begin = blockIdx.y * ROUTER_TOKENS;
    // Rows and tokens past the last may be any: their sums are not written.
    const bf16* w = args.router + size_t(min(row_begin + lane / 4, columns - 1)) * args.n;
    const bf16* low = args.x + size_t(min(token_begin + lane / 4, m - 1)) * args.n;
    const bf16* high = args.x + size_t(min(token_begin + lane / 4 + 8, m - 1)) * args.n;
    auto load = [&](const bf16* row, int column) {
        return column < args.n ? *reinterpret_cast<const uint4*>(row + column) : make_uint4(0, 0, 0, 0);
    };
    auto column_of = [&](int i) { return (i * ROUTER_WARPS + warp) * CHUNK + lane % 4 * 8; };   // of chunk i of this warp
    const int chunks = (args.n + ROUTER_WARPS * CHUNK - 1) / (ROUTER_WARPS * CHUNK);

    let_next_kernel_start();
    uint4 weights[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) weights[i] = load(w, column_of(i));
    clear_routes(routes, args.route.experts);
    wait_for_previous_kernel();

    float sum[4] = {};
    for (int begin = 0; begin < chunks; begin += AHEAD) {
        uint4 a[AHEAD], b[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) a[i] = load(low, column_of(begin + i)), b[i] = load(high, column_of(begin + i));
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint4 v = weights[i];
            mma_bf16(sum, {a[i].x, b[i].x, a[i].y, b[i].y}, v.x, v.y);
            mma_bf16(sum, {a[i].z, b[i].z, a[i].w, b[i].w}, v.z, v.w);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) weights[i] = load(w, column_of(begin + AHEAD + i));
    }
    // Lane 4g + t holds tokens g and g + 8 of rows 2t and 2t + 1.
    float* mine = sums[warp] + lane / 4 * ROUTER_ROWS + lane % 4 * 2;
    mine[0] = sum[0], mine[1] = sum[1], mine[8 * ROUTER_ROWS] = sum[2], mine[8 * ROUTER_ROWS + 1] = sum[3];
    __syncthreads();
    for (int i = threadIdx.x; i < ROUTER_TOKENS * ROUTER_ROWS; i += blockDim.x) {
        const int token = token_begin + i / ROUTER_ROWS, row = row_begin + i % ROUTER_ROWS;
        float total = 0.f;
#pragma unroll
        for (int from = 0; from < ROUTER_WARPS; from++) total += sums[from][i];
        if (token < m && row < columns) args.logits[size_t(token) * columns + row] = __float2bfloat16(total);
    }

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

}  // namespace
}  // namespace engine

// m <= 32 tokens, slots - 1 of `experts` <= 256 each, n a multiple of 8; arrived [1] zero before and after. The outputs are
// engine_moe_route's. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_moe_router(const void* x, const void* router, void* logits, void* entries, int* entry_count, int* pairs,
                                 float* weights, int* ids, int* arrived, int m, int n, int experts, int slots, int dependent, void* stream) {
    using namespace engine;
    const RouteArgs route{static_cast<const bf16*>(logits), static_cast<int4*>(entries), entry_count, pairs, weights, ids, m, experts, slots};
    if (!route.valid() || n < 8 || n % 8) return cudaErrorInvalidValue;
    const RouterArgs args{static_cast<const bf16*>(x), static_cast<const bf16*>(router), static_cast<bf16*>(logits), n, arrived, route};
    const dim3 grid((experts + ROUTER_ROWS) / ROUTER_ROWS, (m + ROUTER_TOKENS - 1) / ROUTER_TOKENS);
    return launch(router_kernel, grid, ROUTER_WARPS * 32, 0, dependent, stream, args);
}
