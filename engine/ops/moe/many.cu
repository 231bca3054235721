// Routing of more than 32 tokens, and the W4A16 products of the experts they chose, for prefill.
//
// Routing, two launches: a block per 32 tokens routes them as a decoding step's are (kernels/route.cuh) and leaves, for each
// expert, a mask of which of them chose it; then a block per 32 tokens adds up the masks of all, so that it knows where each
// expert's pairs begin and how many of them are of tokens before its own, and writes its own tokens' pairs and where they
// lie (prefill.cu moves rows by that). The first one writes the entries and each expert's end. Order: by expert, then by token. Reads of the masks grow with the square of the tokens: 270 MB from
// the L2 at 16,384, where the experts take a hundred times as long.
//
// The product: an entry is up to 64 pairs, so that weights are unpacked once for that many. A task is an entry and as many
// row tiles as a block's warps take at a time; blocks take tasks in turn, beginning with the last entries, which are the
// shared expert's and the longest. One warp more gathers the pairs' x, 256 columns at a time, into shared memory; the
// others each stream their own tiles' units through a private ring and multiply them with all of it:
//
//        columns ->   0..255   256..511  ...          x of 64 pairs in 3 stages (sm_121: 2), a row of 512 bytes by one
//   warp 0   tile 0   unit     unit                   16-byte copy of each lane; given back by an arrival of each warp
//            tile 1   unit     unit                   an x operand read serves both tiles (sm_121: one tile)
//
// Bytes read: an expert's weights once per entry, n * k * 9 / 16; x of a pair once per task. No sums are shared, so nothing
// depends on which block did what. `down` leaves bf16 by pair, half of the bytes of a decoding step's planes; the next norm
// multiplies by the pairs' weights and adds up (ops/norm), so this kernel does not read them.
//
// Rejected: torch's sort, scatter and searchsorted (62 launches a layer; 10 % of a prefill of 1024 tokens); entries of 8
// pairs (the weights are unpacked for each, and each of their tiles reads x from the L1 again).
#include "../../kernels/grouped.cuh"
#include "../../kernels/route.cuh"
#include "../../kernels/stage.cuh"
#include "../../kernels/turn.cuh"

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

// Shared memory of a block: per warp a ring of stages, a stage being a column's units of all its tiles; x; barriers.
constexpr bool SCARCE = MAX_SHARED_BYTES < 128 * 1024;
constexpr int MANY_WARPS = 8;
constexpr int MANY_TILES = SCARCE ? 1 : 2;           // of a warp
constexpr int MANY_DEPTH = SCARCE ? 1 : 3;
constexpr int X_STAGES = SCARCE ? 2 : 3;
constexpr int STAGE_BYTES = MANY_TILES * W4A16::UNIT_BYTES;
constexpr int X_COLUMN_BYTES = W4A16::UNIT_K * W4A16::X_BYTES;
constexpr int X_ROW_BYTES = X_COLUMN_BYTES + W4A16::X_PAD;
constexpr size_t MANY_RING_BYTES = size_t(MANY_WARPS) * MANY_DEPTH * STAGE_BYTES;
constexpr size_t X_SHARED_BYTES = size_t(X_STAGES) * MANY_PAIRS * X_ROW_BYTES;
constexpr size_t MANY_SHARED_BYTES = MANY_RING_BYTES + X_SHARED_BYTES + (MANY_WARPS * MANY_DEPTH + 2 * X_STAGES) * sizeof(uint64_t);
static_assert(MANY_SHARED_BYTES <= MAX_SHARED_BYTES, "ring and x must fit");
static_assert(X_COLUMN_BYTES == 32 * 16, "a warp copies a row at a time");

// What becomes of the sums of a group's two pairs of this lane. pair: the entry's pairs lane and 32 + lane, which were loaded
// when its task began: read here, they would be a trip to the L2 for every group, with nothing beside it.
template <Output O>
__device__ __forceinline__ Columns<O> columns_known(const GroupedArgs& args, const int (&pair)[MANY_PAIRS / 32], int group, int count, int lane) {
    Columns<O> columns;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int column = group * TOKENS + lane % 4 * 2 + j;
        const int p = __shfl_sync(~0u, pair[group * TOKENS / 32], column % 32);
        columns.out[j] = column >= count ? -1 : out_offset<O>(args, p);
    }
    return columns;
}

// sums[tile][group] += a column of the warp's units times x of `groups` groups; FULL: of all, without a branch between them,
// so that the compiler may load x as far ahead as it likes. Otherwise a group's x is loaded before the last one's products.
template <bool FULL>
__device__ __forceinline__ void multiply_many(const uint8_t* units, const uint8_t* x, int groups, int lane, float (&sums)[MANY_TILES][MANY_GROUPS][LANE_SUMS]) {
    uint2 scales[MANY_TILES];
#pragma unroll
    for (int t = 0; t < MANY_TILES; t++) scales[t] = reinterpret_cast<const uint2*>(units + t * W4A16::UNIT_BYTES + 2048)[lane];
    const uint8_t* row = x + lane / 4 * X_ROW_BYTES + lane % 4 * 32;
#pragma unroll
    for (int part = 0; part < 4; part++) {   // 64 columns each
        uint4 codes[MANY_TILES];
#pragma unroll
        for (int t = 0; t < MANY_TILES; t++) codes[t] = reinterpret_cast<const uint4*>(units + t * W4A16::UNIT_BYTES)[part * 32 + lane];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[MANY_TILES][2][4];
#pragma unroll
            for (int t = 0; t < MANY_TILES; t++) {
                const uint32_t pair = part < 2 ? scales[t].x : scales[t].y;
                const uint32_t low = W4A16::scale(pair, part % 2 * 2), high = W4A16::scale(pair, part % 2 * 2 + 1);
                W4A16::operand(half ? codes[t].z : codes[t].x, low, high, a[t][0]);
                W4A16::operand(half ? codes[t].w : codes[t].y, low, high, a[t][1]);
            }
            asm volatile("" ::: "memory");   // no loads of the next half in this one: they would spill
            auto load = [&](int group) { return *reinterpret_cast<const uint4*>(row + group * TOKENS * X_ROW_BYTES + part * 128 + half * 16); };
            uint4 upcoming = load(0);
#pragma unroll
            for (int group = 0; group < MANY_GROUPS; group++) {
                if (!FULL && group >= groups) break;
                const uint4 tokens = upcoming;
                if (group + 1 < MANY_GROUPS) upcoming = load(group + 1);   // past the last one: any bytes, not multiplied
#pragma unroll
                for (int t = 0; t < MANY_TILES; t++) mma_bf16(sums[t][group], a[t][0], tokens.x, tokens.y);
#pragma unroll
                for (int t = 0; t < MANY_TILES; t++) mma_bf16(sums[t][group], a[t][1], tokens.z, tokens.w);
            }
        }
    }
}

template <Output O>
__global__ void __launch_bounds__((MANY_WARPS + 1) * 32, 1) grouped_many_kernel(const GroupedArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t* x_stages = shared + MANY_RING_BYTES;
    uint64_t* x_full = reinterpret_cast<uint64_t*>(x_stages + X_SHARED_BYTES);
    uint64_t* x_empty = x_full + X_STAGES;
    uint64_t* full = x_empty + X_STAGES + warp * MANY_DEPTH;   // of a multiplying warp
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) barrier_init(x_full + i, 32), barrier_init(x_empty + i, MANY_WARPS * ARRIVALS_PER_WARP);
        for (int i = 0; i < MANY_WARPS * MANY_DEPTH; i++) barrier_init(x_empty + X_STAGES + i, 1);
        barrier_init_fence();
    }
    __syncthreads();

    // As in kernel.cu: gate_up lets `down` start only once the routing is there, which `down` reads before gate_up has ended.
    if constexpr (O == Output::SWIGLU) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
    const int tiles_each = args.n / TILE_ROWS, units = args.k / W4A16::UNIT_K;
    const int tasks_each = (tiles_each + MANY_WARPS * MANY_TILES - 1) / (MANY_WARPS * MANY_TILES);
    const int count = __ldcg(args.entry_count), tasks = count * tasks_each;
    auto entry_of = [&](int task) { return __ldcg(args.entries + (count - 1 - task / tasks_each)); };

    if (warp == MANY_WARPS) {   // gathers x
        if constexpr (O == Output::PAIR) {
            let_next_kernel_start();
            wait_for_previous_kernel();
        }
        Turn turn;
        for (int task = blockIdx.x; task < tasks; task += gridDim.x) {
            const int4 entry = entry_of(task);
            int offset[MANY_PAIRS / 32];   // of pairs lane, 32 + lane
#pragma unroll
            for (int i = 0; i < MANY_PAIRS / 32; i++) offset[i] = x_offset<O>(args, __ldcg(args.pairs + entry.y + min(i * 32 + lane, entry.z - 1)));
            for (int column = 0; column < units; column++, turn.advance(X_STAGES)) {
                barrier_wait(x_empty + turn.stage, turn.parity ^ 1);   // the first time round nobody has to give it back
                uint8_t* stage = x_stages + turn.stage * MANY_PAIRS * X_ROW_BYTES + lane * 16;
                const uint8_t* source = args.x + column * X_COLUMN_BYTES + lane * 16;
#pragma unroll
                for (int i = 0; i < MANY_PAIRS / 32; i++)
#pragma unroll 8
                    for (int r = 0; r < min(entry.z - i * 32, 32); r++)
                        async_load16(stage + (i * 32 + r) * X_ROW_BYTES, source + __shfl_sync(~0u, offset[i], r));
                async_arrive(x_full + turn.stage);
            }
        }
        for (int i = 0; i < X_STAGES; i++, turn.advance(X_STAGES)) barrier_wait(x_empty + turn.stage, turn.parity ^ 1);   // all has landed
        return;
    }

    // Units in the order in which they are multiplied, across tasks. Lane 0 alone keeps these.
    uint8_t* ring = shared + size_t(warp) * MANY_DEPTH * STAGE_BYTES;
    const uint64_t policy = evict_first_policy();
    auto tile_of = [&](int task) { return (task % tasks_each * MANY_WARPS + warp) * MANY_TILES; };   // the warp's first one
    int ahead = blockIdx.x, ahead_tiles = 0, ahead_column = 0;
    const uint8_t* next = nullptr;
    auto open_task = [&] {   // the next one in which this warp has a tile
        for (; ahead < tasks; ahead += gridDim.x) {
            const int tile = tile_of(ahead);
            ahead_tiles = min(tiles_each - tile, MANY_TILES), ahead_column = 0;
            if (ahead_tiles <= 0) continue;
            const size_t first = size_t(entry_of(ahead).x) * tiles_each + tile;
            next = args.weight + first * units * W4A16::UNIT_BYTES;
            prefetch_l2(args.row_scale + first * TILE_ROWS, ahead_tiles * TILE_ROWS * sizeof(float));
            return;
        }
    };
    auto fetch = [&](int stage) {
        if (ahead >= tasks) return;
        barrier_expect_bytes(full + stage, ahead_tiles * W4A16::UNIT_BYTES);
#pragma unroll
        for (int t = 0; t < MANY_TILES; t++)
            if (t < ahead_tiles) bulk_load(ring + stage * STAGE_BYTES + t * W4A16::UNIT_BYTES, next + size_t(t) * units * W4A16::UNIT_BYTES, W4A16::UNIT_BYTES, full + stage, policy);
        next += W4A16::UNIT_BYTES;
        if (++ahead_column == units) ahead += gridDim.x, open_task();
    };
    if (lane == 0) {
        open_task();
        for (int i = 0; i < MANY_DEPTH; i++) fetch(i);
    }
    if constexpr (O == Output::PAIR) {
        let_next_kernel_start();
        wait_for_previous_kernel();
    }

    Turn turn, x_turn;
    // `down`, whose tasks are short, asks for an entry one task ahead; gate_up has no registers for it.
    constexpr bool AHEAD = O == Output::PAIR;
    int4 upcoming = AHEAD && blockIdx.x < tasks ? entry_of(blockIdx.x) : int4{};
    for (int task = blockIdx.x; task < tasks; task += gridDim.x) {
        const int4 entry = AHEAD ? upcoming : entry_of(task);
        if (AHEAD && task + int(gridDim.x) < tasks) upcoming = entry_of(task + gridDim.x);
        int pair[MANY_PAIRS / 32];
#pragma unroll
        for (int i = 0; i < MANY_PAIRS / 32; i++) pair[i] = __ldcg(args.pairs + entry.y + min(i * 32 + lane, entry.z - 1));
        const int tile = tile_of(task), tiles = min(tiles_each - tile, MANY_TILES);
        // Through a reduction, so that the compiler knows it to be the same in all lanes.
        const int groups = int(__reduce_max_sync(~0u, unsigned(entry.z + TOKENS - 1) / TOKENS));
        float2 scales[MANY_TILES] = {};
#pragma unroll
        for (int t = 0; t < MANY_TILES; t++)
            if (t < tiles) scales[t] = expert_scales(args, entry.x, tile + t, lane);
        float sums[MANY_TILES][MANY_GROUPS][LANE_SUMS] = {};
        for (int column = 0; column < units; column++, x_turn.advance(X_STAGES)) {
            barrier_wait(x_full + x_turn.stage, x_turn.parity);
            if (tiles > 0) {   // of a tile that is not there the ring holds any; its sums are not written
                barrier_wait(full + turn.stage, turn.parity);
                const uint8_t *units_at = ring + turn.stage * STAGE_BYTES, *x_at = x_stages + size_t(x_turn.stage) * MANY_PAIRS * X_ROW_BYTES;
                // `down`, and sm_121, have no registers for loads that far ahead.
                if (O == Output::SWIGLU && !SCARCE && groups == MANY_GROUPS) multiply_many<true>(units_at, x_at, groups, lane, sums);
                else multiply_many<false>(units_at, x_at, groups, lane, sums);
            }
            __syncwarp();   // every lane has read both stages before they are given back
            if (gives_back(lane)) {
                barrier_arrive(x_empty + x_turn.stage);
                if (goes_on(lane) && tiles > 0) fetch(turn.stage);
            }
            if (tiles > 0) turn.advance(MANY_DEPTH);
        }
        if (tiles <= 0) continue;
#pragma unroll
        for (int group = 0; group < MANY_GROUPS; group++) {
            if (group >= groups) break;
            const Columns<O> columns = columns_known<O>(args, pair, group, entry.z, lane);
#pragma unroll
            for (int t = 0; t < MANY_TILES; t++) {
                const float (&s)[LANE_SUMS] = sums[t][group];
                if (t < tiles) write_pairs<O>(args, columns, tile + t, lane, scales[t], make_float4(s[0], s[1], s[2], s[3]));
            }
        }
    }
}

template <Output O>
cudaError_t launch_many(const GroupedArgs& args, int blocks, bool dependent, void* stream) {
    if (cudaError_t error = cudaFuncSetAttribute(grouped_many_kernel<O>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(MANY_SHARED_BYTES))) return error;
    return launch(grouped_many_kernel<O>, dim3(blocks), (MANY_WARPS + 1) * 32, MANY_SHARED_BYTES, dependent, stream, args);
}

}  // namespace
}  // namespace engine

// Any number of tokens m, slots - 1 of `experts` <= 256 each. positions: by pair, its place in `pairs`; ends: [experts + 1], of
// an expert's pairs there; chosen: [ceil(m / 32)][experts + 1], scratch. count: null, or [1] on the device, 1 to m: only so many
// tokens are routed. Of the others weights and ids are not written, positions are their own pairs', behind all in `pairs`. Two
// launches, the second dependent on the first. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_moe_route_many(const void* logits, void* entries, int* entry_count, int* pairs, float* weights, int* ids,
                                     int* positions, int* ends, void* chosen, const int* count, int m, int experts, int slots, int dependent,
                                     void* stream) {
    using namespace engine;
    const ManyRoutes args{{static_cast<const bf16*>(logits), static_cast<int4*>(entries), entry_count, pairs, weights, ids, m, experts, slots},
                          positions, ends, static_cast<unsigned*>(chosen), count};
    RouteArgs chunk = args.route;
    chunk.m = m < CHUNK_TOKENS ? m : CHUNK_TOKENS;
    if (!chunk.valid()) return cudaErrorInvalidValue;
    const dim3 grid((m + CHUNK_TOKENS - 1) / CHUNK_TOKENS);
    if (cudaError_t error = launch(route_chunk_kernel, grid, CHUNK_WARPS * 32, 0, dependent, stream, args)) return error;
    return launch(route_layout_kernel, grid, chunk.least_threads(), 0, true, stream, args);
}

// As engine_moe_grouped, of entries of up to 64 pairs; `down` as PAIR, and `weights` is not read.
extern "C" int engine_moe_grouped_many(const void* weight, const float* row_scale, const void* x, void* out, const void* entries,
                                       const int* entry_count, const int* pairs, const float* weights, int m, int slots, int n, int k,
                                       int output, int blocks, int dependent, void* stream) {
    using namespace engine;
    const GroupedArgs args{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, static_cast<const int4*>(entries),
                           entry_count, pairs, weights, m, slots, n, k};
    if (!args.valid() || blocks < 1) return cudaErrorInvalidValue;
    switch (Output(output)) {
        case Output::SWIGLU: return launch_many<Output::SWIGLU>(args, blocks, dependent, stream);
        case Output::PAIR: return launch_many<Output::PAIR>(args, blocks, dependent, stream);
    }
    return cudaErrorInvalidValue;
}
