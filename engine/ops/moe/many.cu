// Routing of more than 32 tokens, and the products of the experts they chose, W4A16 or W8A8, for prefill.
//
// Routing, two launches: kernels/route_many.cuh.
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
// In FP8 a unit is 128 columns, and x of it, codes, by one copy of four rows. Five units a warp are in flight (sm_121: four).
//
// Bytes read: an expert's weights once per entry, n * k * 9 / 16, in FP8 n * k; x of a pair once per task. No sums are shared,
// so nothing depends on which block did what. `down` leaves bf16 by pair, half of the bytes of a decoding step's planes; the
// next norm multiplies by the pairs' weights and adds up (ops/norm), so this kernel does not read them.
//
// Rejected: entries of 8 pairs (the weights are unpacked for each, and each of their tiles reads x from the L1 again).
#include "../../kernels/grouped.cuh"
#include "../../kernels/route_many.cuh"
#include "../../kernels/stage.cuh"
#include "../../kernels/turn.cuh"

namespace engine {
namespace {

// Shared memory of a block: per warp a ring of stages, a stage being a column's units of all its tiles; x; barriers.
constexpr bool SCARCE = MAX_SHARED_BYTES < 128 * 1024;
constexpr int MANY_WARPS = 8;
constexpr int MANY_TILES = SCARCE ? 1 : 2;           // of a warp
template <class W>
constexpr int MANY_DEPTH = SCALED<W> ? (SCARCE ? 4 : 5) : SCARCE ? 1 : 3;
constexpr int X_STAGES = SCARCE ? 2 : 3;
template <class W>
constexpr int STAGE_BYTES = MANY_TILES * W::UNIT_BYTES;
template <class W>
constexpr int X_COLUMN_BYTES = W::UNIT_K * W::X_BYTES;
template <class W>
constexpr int X_ROW_BYTES = X_COLUMN_BYTES<W> + W::X_PAD;
template <class W>
constexpr int X_ROW_LANES = X_COLUMN_BYTES<W> / 16;  // of the warp that copies: the others have the next rows
template <class W>
constexpr size_t MANY_RING_BYTES = size_t(MANY_WARPS) * MANY_DEPTH<W> * STAGE_BYTES<W>;
template <class W>
constexpr size_t X_SHARED_BYTES = size_t(X_STAGES) * MANY_PAIRS * X_ROW_BYTES<W>;
template <class W>
constexpr size_t MANY_SHARED_BYTES = MANY_RING_BYTES<W> + X_SHARED_BYTES<W> + (MANY_WARPS * MANY_DEPTH<W> + 2 * X_STAGES) * sizeof(uint64_t);
static_assert(MANY_SHARED_BYTES<W4A16> <= MAX_SHARED_BYTES && MANY_SHARED_BYTES<W8A8> <= MAX_SHARED_BYTES, "ring and x must fit");
static_assert(X_ROW_LANES<W4A16> == 32 && 32 % X_ROW_LANES<W8A8> == 0, "a warp copies whole rows at a time");

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
template <class W, bool FULL, std::enable_if_t<!SCALED<W>, int> = 0>
__device__ __forceinline__ void multiply_many(const uint8_t* units, const uint8_t* x, int groups, int lane, float (&sums)[MANY_TILES][MANY_GROUPS][LANE_SUMS]) {
    uint2 scales[MANY_TILES];
#pragma unroll
    for (int t = 0; t < MANY_TILES; t++) scales[t] = reinterpret_cast<const uint2*>(units + t * W4A16::UNIT_BYTES + 2048)[lane];
    const uint8_t* row = x + lane / 4 * X_ROW_BYTES<W> + lane % 4 * 32;
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
            auto load = [&](int group) { return *reinterpret_cast<const uint4*>(row + group * TOKENS * X_ROW_BYTES<W> + part * 128 + half * 16); };
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

// The same of FP8, whose operands need no unpacking.
template <class W, bool FULL, std::enable_if_t<SCALED<W>, int> = 0>
__device__ __forceinline__ void multiply_many(const uint8_t* units, const uint8_t* x, int groups, int lane, float (&sums)[MANY_TILES][MANY_GROUPS][LANE_SUMS]) {
    const uint8_t* row = x + lane / 4 * X_ROW_BYTES<W> + lane % 4 * W::X_LANE_BYTES;
#pragma unroll
    for (int part = 0; part < 2; part++) {   // 64 columns each
        uint4 low[MANY_TILES], high[MANY_TILES];
#pragma unroll
        for (int t = 0; t < MANY_TILES; t++) {
            const uint4* codes = reinterpret_cast<const uint4*>(units + t * W::UNIT_BYTES) + part * 64 + lane;
            low[t] = codes[0], high[t] = codes[32];
        }
#pragma unroll
        for (int group = 0; group < MANY_GROUPS; group++) {
            if (!FULL && group >= groups) break;
            const uint4 tokens = *reinterpret_cast<const uint4*>(row + group * TOKENS * X_ROW_BYTES<W> + part * 64);
#pragma unroll
            for (int t = 0; t < MANY_TILES; t++) mma_e4m3(sums[t][group], low[t].x, high[t].x, low[t].y, high[t].y, tokens.x, tokens.y);
#pragma unroll
            for (int t = 0; t < MANY_TILES; t++) mma_e4m3(sums[t][group], low[t].z, high[t].z, low[t].w, high[t].w, tokens.z, tokens.w);
        }
    }
}

template <class W, Output O>
__global__ void __launch_bounds__((MANY_WARPS + 1) * 32, 1) grouped_many_kernel(const ArgsOf<W> args) {
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t* x_stages = shared + MANY_RING_BYTES<W>;
    uint64_t* x_full = reinterpret_cast<uint64_t*>(x_stages + X_SHARED_BYTES<W>);
    uint64_t* x_empty = x_full + X_STAGES;
    uint64_t* full = x_empty + X_STAGES + warp * MANY_DEPTH<W>;   // of a multiplying warp
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_STAGES; i++) barrier_init(x_full + i, 32), barrier_init(x_empty + i, MANY_WARPS * ARRIVALS_PER_WARP);
        for (int i = 0; i < MANY_WARPS * MANY_DEPTH<W>; i++) barrier_init(x_empty + X_STAGES + i, 1);
        barrier_init_fence();
    }
    __syncthreads();

    // As in kernel.cu: gate_up lets `down` start only once the routing is there, which `down` reads before gate_up has ended.
    if constexpr (O == Output::SWIGLU) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
    const int tiles_each = args.n / TILE_ROWS, units = args.k / W::UNIT_K;
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
            for (int i = 0; i < MANY_PAIRS / 32; i++) offset[i] = x_offset<O, W>(args, __ldcg(args.pairs + entry.y + min(i * 32 + lane, entry.z - 1)));
            for (int column = 0; column < units; column++, turn.advance(X_STAGES)) {
                barrier_wait(x_empty + turn.stage, turn.parity ^ 1);   // the first time round nobody has to give it back
                constexpr int LANES = X_ROW_LANES<W>;
                const int row = lane / LANES;   // of those copied together
                uint8_t* stage = x_stages + turn.stage * MANY_PAIRS * X_ROW_BYTES<W> + row * X_ROW_BYTES<W> + lane % LANES * 16;
                const uint8_t* source = args.x + column * X_COLUMN_BYTES<W> + lane % LANES * 16;
#pragma unroll
                for (int i = 0; i < MANY_PAIRS / 32; i++)
#pragma unroll 8
                    for (int r = 0; r < min(entry.z - i * 32, 32); r += 32 / LANES)
                        async_load16(stage + (i * 32 + r) * X_ROW_BYTES<W>, source + __shfl_sync(~0u, offset[i], r + row));
                async_arrive(x_full + turn.stage);
            }
        }
        for (int i = 0; i < X_STAGES; i++, turn.advance(X_STAGES)) barrier_wait(x_empty + turn.stage, turn.parity ^ 1);   // all has landed
        return;
    }

    // Units in the order in which they are multiplied, across tasks. Lane 0 alone keeps these.
    uint8_t* ring = shared + size_t(warp) * MANY_DEPTH<W> * STAGE_BYTES<W>;
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
            next = args.weight + first * units * W::UNIT_BYTES;
            prefetch_l2(args.row_scale + first * TILE_ROWS, ahead_tiles * TILE_ROWS * sizeof(float));
            return;
        }
    };
    auto fetch = [&](int stage) {
        if (ahead >= tasks) return;
        barrier_expect_bytes(full + stage, ahead_tiles * W::UNIT_BYTES);
#pragma unroll
        for (int t = 0; t < MANY_TILES; t++)
            if (t < ahead_tiles) bulk_load(ring + stage * STAGE_BYTES<W> + t * W::UNIT_BYTES, next + size_t(t) * units * W::UNIT_BYTES, W::UNIT_BYTES, full + stage, policy);
        next += W::UNIT_BYTES;
        if (++ahead_column == units) ahead += gridDim.x, open_task();
    };
    if (lane == 0) {
        open_task();
        for (int i = 0; i < MANY_DEPTH<W>; i++) fetch(i);
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
        [[maybe_unused]] float x_scale[MANY_PAIRS / 32];   // of pairs lane, 32 + lane
        if constexpr (SCALED<W>) {
#pragma unroll
            for (int i = 0; i < MANY_PAIRS / 32; i++) x_scale[i] = __ldcg(args.x_scale + x_row<O>(args, pair[i]));
        }
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
                const uint8_t *units_at = ring + turn.stage * STAGE_BYTES<W>, *x_at = x_stages + size_t(x_turn.stage) * MANY_PAIRS * X_ROW_BYTES<W>;
                // `down`, FP8 and sm_121 have no registers for loads that far ahead.
                if (O == Output::SWIGLU && !SCALED<W> && !SCARCE && groups == MANY_GROUPS) multiply_many<W, true>(units_at, x_at, groups, lane, sums);
                else multiply_many<W, false>(units_at, x_at, groups, lane, sums);
            }
            __syncwarp();   // every lane has read both stages before they are given back
            if (gives_back(lane)) {
                barrier_arrive(x_empty + x_turn.stage);
                if (goes_on(lane) && tiles > 0) fetch(turn.stage);
            }
            if (tiles > 0) turn.advance(MANY_DEPTH<W>);
        }
        if (tiles <= 0) continue;
#pragma unroll
        for (int group = 0; group < MANY_GROUPS; group++) {
            if (group >= groups) break;
            const Columns<O> columns = columns_known<O>(args, pair, group, entry.z, lane);
            [[maybe_unused]] float2 x_scales;
            if constexpr (SCALED<W>) {
                const int column = group * TOKENS % 32 + lane % 4 * 2;
                const float mine = x_scale[group * TOKENS / 32];
                x_scales = make_float2(__shfl_sync(~0u, mine, column), __shfl_sync(~0u, mine, column + 1));
            }
#pragma unroll
            for (int t = 0; t < MANY_TILES; t++) {
                const float (&s)[LANE_SUMS] = sums[t][group];
                float4 sum = make_float4(s[0], s[1], s[2], s[3]);
                if constexpr (SCALED<W>) sum = times_columns(sum, x_scales);
                if (t < tiles) write_pairs<O, W>(args, columns, tile + t, lane, scales[t], sum);
            }
        }
    }
}

template <class W, Output O>
cudaError_t launch_many(const ArgsOf<W>& args, int blocks, bool dependent, void* stream) {
    if (cudaError_t error = cudaFuncSetAttribute(grouped_many_kernel<W, O>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(MANY_SHARED_BYTES<W>))) return error;
    return launch(grouped_many_kernel<W, O>, dim3(blocks), (MANY_WARPS + 1) * 32, MANY_SHARED_BYTES<W>, dependent, stream, args);
}

template <class W>
int dispatch_many(const ArgsOf<W>& args, int output, int blocks, bool dependent, void* stream) {
    if (!args.template valid<W>() || blocks < 1) return cudaErrorInvalidValue;
    switch (Output(output)) {
        case Output::SWIGLU: return launch_many<W, Output::SWIGLU>(args, blocks, dependent, stream);
        case Output::PAIR: return launch_many<W, Output::PAIR>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
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
    return dispatch_many<W4A16>(args, output, blocks, dependent, stream);
}

// The same of FP8 experts: x e4m3, whose rows' scales are x_scale [tokens or pairs].
extern "C" int engine_moe_grouped_many_fp8(const void* weight, const float* row_scale, const void* x, const float* x_scale, void* out,
                                           const void* entries, const int* entry_count, const int* pairs, const float* weights, int m,
                                           int slots, int n, int k, int output, int blocks, int dependent, void* stream) {
    using namespace engine;
    const ScaledArgs args{{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, static_cast<const int4*>(entries),
                           entry_count, pairs, weights, m, slots, n, k}, x_scale};
    return dispatch_many<W8A8>(args, output, blocks, dependent, stream);
}
