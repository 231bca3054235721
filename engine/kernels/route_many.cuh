// Routing of more than 32 tokens in two launches, for ops/moe/many.cu: which pairs each expert has, in entries of up to 64.
//
// A block per 32 tokens routes them as a decoding step's are (route.cuh) and leaves, for each expert, a mask of which of them
// chose it; then a block per 32 tokens adds up the masks of all, so that it knows where each expert's pairs begin and how many
// of them are of tokens before its own, and writes its own tokens' pairs and where they lie (ops/moe/prefill.cu moves rows by
// that). The first one writes the entries and each expert's end. Order: by expert, then by token. Reads of the masks grow with
// the square of the tokens: 270 MB from the L2 at 16,384, where the experts take a hundred times as long.
//
// Rejected: torch's sort, scatter and searchsorted (62 launches a layer; 10 % of a prefill of 1024 tokens).
#pragma once
#include "async.cuh"
#include "route.cuh"

namespace engine {
namespace {

constexpr int CHUNK_WARPS = 16;
constexpr int CHUNK_TOKENS = 32;   // bits of a mask

// Of all tokens: route.m may be any. chosen [chunks][experts + 1]: bit t: token t of that chunk chose it.
struct ManyRoutes {
    RouteArgs route;
    int* positions;   // [m * slots], by pair: its place in route.pairs
    int* ends;        // [experts + 1]: of an expert's pairs there
    unsigned* chosen;
    const int* count; // [1]: so many tokens are live; the others are routed nowhere; null: all of them

    // Behind the wait for the kernel before.
    __device__ __forceinline__ int live() const { return count ? __ldcg(count) : route.m; }
};

__global__ void __launch_bounds__(CHUNK_WARPS * 32, 1) route_chunk_kernel(const ManyRoutes args) {
    __shared__ RouteShared shared;
    const int first = blockIdx.x * CHUNK_TOKENS, experts = args.route.experts;
    RouteArgs mine = args.route;
    mine.logits += size_t(first) * (experts + 1), mine.weights += size_t(first) * mine.slots, mine.ids += size_t(first) * (mine.slots - 1);
    clear_routes(shared, experts);
    let_next_kernel_start();
    wait_for_previous_kernel();
    __syncthreads();
    mine.m = min(CHUNK_TOKENS, args.live() - first);   // none of a chunk of padding, whose masks stay empty
    for (int token = threadIdx.x / 32; token < mine.m; token += CHUNK_WARPS) route_token(mine, shared, token);
    __syncthreads();
    for (int e = threadIdx.x; e <= experts; e += blockDim.x) args.chosen[size_t(blockIdx.x) * (experts + 1) + e] = shared.tokens_of[e];
}

constexpr int MANY_PAIRS = 64;                       // of an entry at most
constexpr int MANY_GROUPS = MANY_PAIRS / TOKENS;

// At least one thread per expert.
__global__ void __launch_bounds__(1024, 1) route_layout_kernel(const ManyRoutes args) {
    __shared__ unsigned masks[MAX_EXPERTS + 1];      // of this chunk
    __shared__ int next[MAX_EXPERTS + 1];            // where this chunk's pairs of an expert begin
    __shared__ int2 warp_totals[32];
    const RouteArgs& route = args.route;
    const int expert = threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = gridDim.x, chunk = blockIdx.x;
    let_next_kernel_start();
    wait_for_previous_kernel();

    int count = 0, before = 0;
    if (expert <= route.experts) {
#pragma unroll 8
        for (int c = 0; c < chunks; c++) {
            const unsigned mask = __ldcg(args.chosen + size_t(c) * (route.experts + 1) + expert);
            if (c == chunk) masks[expert] = mask, before = count;
            count += __popc(mask);
        }
    }
    const int entries = (count + MANY_PAIRS - 1) / MANY_PAIRS;
    int2 until = make_int2(count, entries);   // sums of this and all lanes before
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const int more_pairs = __shfl_up_sync(~0u, until.x, offset), more_entries = __shfl_up_sync(~0u, until.y, offset);
        if (lane >= offset) until.x += more_pairs, until.y += more_entries;
    }
    if (lane == 31) warp_totals[warp] = until;
    __syncthreads();
    for (int w = 0; w < warp; w++) until.x += warp_totals[w].x, until.y += warp_totals[w].y;
    if (expert <= route.experts) next[expert] = until.x - count + before;
    if (chunk == 0) {
        if (expert <= route.experts) args.ends[expert] = until.x;
        for (int i = 0; i < entries; i++)
            route.entries[until.y - entries + i] = make_int4(expert, until.x - count + i * MANY_PAIRS, min(count - i * MANY_PAIRS, MANY_PAIRS), 0);
        if (threadIdx.x == blockDim.x - 1) *route.entry_count = until.y;
    }
    __syncthreads();
    const int first = chunk * CHUNK_TOKENS, live = args.live() - first, top_k = route.slots - 1;
    for (int i = threadIdx.x; i < min(CHUNK_TOKENS, route.m - first) * route.slots; i += blockDim.x) {
        const int token = i / route.slots, slot = i - token * route.slots;
        if (token >= live) {   // a place of its own behind all pairs: prefill.cu reads and writes by any token's
            args.positions[first * route.slots + i] = first * route.slots + i;
            continue;
        }
        const int e = slot == top_k ? route.experts : __ldcg(route.ids + size_t(first + token) * top_k + slot);
        const int pair = (first + token) * route.slots + slot, position = next[e] + __popc(masks[e] & ((1u << token) - 1));
        route.pairs[position] = pair, args.positions[pair] = position;
    }
}

}  // namespace
}  // namespace engine
