// Routing of up to 32 tokens, and the products of the experts they chose: W4A16, or W8A8 of x that quantize.cu leaves.
//
// A pair is one token at one of its experts: pair = token * slots + slot. The shared expert is one more expert, which every
// token chooses at its last slot. Pairs lie sorted by expert; an entry is one expert and up to 8 of its pairs:
//
//   entries   {expert, first, count}   [0, 0, 2] [3, 2, 1] [255, 3, 1] [256, 4, 2]        of 2 tokens, 3 slots
//   pairs                               0 3       1         4           2 5
//
// A decoding step's routing is the end of its norm launch (ops/norm); the launch here is for logits that were made elsewhere.
//
// The product treats the row tiles of all entries as one matrix and cuts it into equal runs, one per multiprocessor, and a
// block's run into one per warp, so that a block takes the end of one expert and the beginning of the next, and nothing
// depends on how many there are. One mma takes all pairs of an entry, so every tile costs the same: with up to 32 pairs an
// entry, the blocks of the shared expert, which has them all, took four times as long as the others. Its next entries find
// the weights in the L2.
//
// A warp's run is streamed through a private ring of bulk copies. Its x comes from the L1, into registers, while it waits for
// the weights. What the epilogue needs is loaded when an entry begins (pairs, weights) or a tile (row scales, which come
// from DRAM: they are prefetched with the tile's first unit). Where K is short (`down`: 2 units) warps own whole tiles;
// where it is not, the sums of tiles in which warps meet are added in shared memory at the end, in the order of k.
// Bytes read: every chosen expert's weights once, n * k * 9 / 16 each; in FP8 n * k.
//
// Rejected: a block per (token, expert), which reads an expert once per token; atomics into one output, whose order of
// additions would change from run to run: `down` leaves one fp32 plane per slot, and the next norm adds them up.
#include "../../kernels/grouped.cuh"
#include "../../kernels/route.cuh"

namespace engine {
namespace {

constexpr int ROUTE_THREADS = 1024;       // one warp per token, one thread per expert

__global__ void __launch_bounds__(ROUTE_THREADS, 1) route_kernel(const RouteArgs args) {
    __shared__ RouteShared shared;
    clear_routes(shared, args.experts);
    let_next_kernel_start();
    wait_for_previous_kernel();
    __syncthreads();
    route(args, shared);
}

// Units in flight per warp, and up to how many units of K a warp takes whole tiles.
constexpr int GROUPED_DEPTH = 3;
constexpr int GROUPED_WARPS = WARPS<1>;
template <class W>
constexpr int SHORT_K = 512 / W::UNIT_K;
constexpr int CHAINS = 2;   // sums per tile, so that a multiply-add need not wait for the one before

// Ring, barriers, and the sums that a warp leaves of the tiles it shares: at most two, its first and its last.
template <class W>
constexpr size_t RING_BYTES = size_t(GROUPED_WARPS) * GROUPED_DEPTH * W::UNIT_BYTES;
constexpr size_t BARRIER_BYTES = size_t(GROUPED_WARPS) * GROUPED_DEPTH * sizeof(uint64_t);
template <class W>
constexpr size_t GROUPED_SHARED_BYTES = RING_BYTES<W> + BARRIER_BYTES + size_t(GROUPED_WARPS) * 2 * 32 * sizeof(float4);
static_assert(GROUPED_SHARED_BYTES<W4A16> <= MAX_SHARED_BYTES && GROUPED_SHARED_BYTES<W8A8> <= MAX_SHARED_BYTES, "ring and sums must fit");

// A place in the list of all entries' row tiles.
struct Place {
    int entry, tile;   // tile: of the entry's expert
    __device__ Place(int index, int tiles_each) : entry(index / tiles_each), tile(index - entry * tiles_each) {}
    __device__ void advance(int tiles_each) {
        if (++tile == tiles_each) tile = 0, entry++;
    }
};

template <class W, Output O>
__global__ void __launch_bounds__(GROUPED_WARPS * 32, 1) grouped_kernel(const ArgsOf<W> args) {
    static_assert(ENTRY_PAIRS == TOKENS);
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t* ring = shared + size_t(warp) * GROUPED_DEPTH * W::UNIT_BYTES;
    uint64_t* full = reinterpret_cast<uint64_t*>(shared + RING_BYTES<W>) + warp * GROUPED_DEPTH;
    float4* parts = reinterpret_cast<float4*>(shared + RING_BYTES<W> + BARRIER_BYTES);
    if (lane == 0) {
        for (int i = 0; i < GROUPED_DEPTH; i++) barrier_init(full + i, 1);
        barrier_init_fence();
    }
    __syncwarp();

    // gate_up follows the routing, which says what to read. It lets its successor start only after that, so `down` may
    // read the routing, and the weights it names, while gate_up drains.
    if constexpr (O == Output::SWIGLU) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
    // The first entries' experts, asked for together with their number: the first copies wait for one trip and not for two.
    const int listed = __ldcg(&args.entries[min(lane, args.m * args.slots - 1)].x);
    const int tiles_each = args.n / TILE_ROWS, units = args.k / W::UNIT_K;
    const int all_tiles = __ldcg(args.entry_count) * tiles_each;
    const int tile_begin = share_begin(all_tiles, gridDim.x, blockIdx.x);
    const int tiles = share_begin(all_tiles, gridDim.x, blockIdx.x + 1) - tile_begin;
    const int grain = units <= SHORT_K<W> ? units : 1, grains = tiles * units / grain;   // units that one warp takes together
    const int begin = share_begin(grains, GROUPED_WARPS, warp) * grain, end = share_begin(grains, GROUPED_WARPS, warp + 1) * grain;

    // An expert's tiles lie one after the other, so only a new entry needs an address. Lane 0 alone keeps these.
    const uint64_t policy = evict_first_policy();
    Place ahead(tile_begin + begin / units, tiles_each);
    int next_unit = begin, next_column = begin % units;
    const uint8_t* next = nullptr;
    const float* next_scales = nullptr;
    auto open_entry = [&](int expert) {
        const int tile = expert * tiles_each + ahead.tile;
        next = args.weight + (size_t(tile) * units + next_column) * W::UNIT_BYTES;
        next_scales = args.row_scale + size_t(tile) * TILE_ROWS;
    };
    auto fetch = [&](int stage) {
        barrier_expect_bytes(full + stage, W::UNIT_BYTES);
        bulk_load(ring + stage * W::UNIT_BYTES, next, W::UNIT_BYTES, full + stage, policy);
        if (next_column == 0 || next_unit == begin) prefetch_l2(next_scales, TILE_ROWS * sizeof(float));
        next_unit++, next += W::UNIT_BYTES;
        if (++next_column < units) return;
        next_column = 0, next_scales += TILE_ROWS;
        ahead.advance(tiles_each);
        if (ahead.tile == 0 && next_unit < end) open_entry(__ldcg(&args.entries[ahead.entry].x));
    };
    const int first_expert = __shfl_sync(~0u, listed, ahead.entry % 32);
    if (lane == 0 && begin < end) {
        open_entry(ahead.entry < 32 ? first_expert : __ldcg(&args.entries[ahead.entry].x));
        for (int i = 0; i < GROUPED_DEPTH && next_unit < end; i++) fetch(i);
    }
    if constexpr (O == Output::WEIGHTED) let_next_kernel_start();

    // What the lane needs of an entry. x_begin, rows: of its column's pair, of its two sums'; one past the last may be any.
    const uint8_t* x_begin = nullptr;
    Columns<O> columns;
    [[maybe_unused]] int2 rows = make_int2(0, 0);
    auto load_entry = [&](int index) {
        const int4 entry = __ldcg(args.entries + index);
        const int pair = __ldcg(args.pairs + entry.y + min(lane / 4, entry.z - 1));
        x_begin = args.x + x_offset<O, W>(args, pair) + lane % 4 * W::X_LANE_BYTES;
        columns = columns_of<O>(args, pair, 0, entry.z, lane);
        if constexpr (SCALED<W>) rows = x_rows<O>(args, pair, lane);
        return entry.x;
    };
    auto part = [&](int owner, bool last) -> float4& { return parts[(owner * 2 + last) * 32 + lane]; };
    Place place(tile_begin + begin / units, tiles_each);
    int stage = 0, parity = 0, loaded = -1, expert = 0;
    float2 scales = make_float2(0.f, 0.f);
    auto load_tile = [&] {
        if (place.entry != loaded) expert = load_entry(place.entry), loaded = place.entry;
        scales = expert_scales(args, expert, place.tile, lane);
    };
    if (begin < end) load_tile();
    if constexpr (O == Output::WEIGHTED) wait_for_previous_kernel();   // only x is of the previous kernel
    // Of the tile's two columns, loaded before its products, which they are waited for behind.
    auto x_scales_of = [&] {
        if constexpr (SCALED<W>) return make_float2(__ldcg(args.x_scale + rows.x), __ldcg(args.x_scale + rows.y));
        else return float2{};
    };
    for (int unit = begin, column = begin % units; unit < end; column = 0) {
        const int last = min(unit + units - column, end);
        const bool whole = last - unit == units, at_begin = unit == begin;
        float chains[CHAINS][LANE_SUMS] = {};
        const uint8_t* x = x_begin + column * W::UNIT_K * W::X_BYTES;
        [[maybe_unused]] const float2 x_scales = x_scales_of();
        for (; unit < last; unit++, x += W::UNIT_K * W::X_BYTES) {
            typename W::Loaded tokens;
            W::load(x, tokens);
            barrier_wait(full + stage, parity);
            W::template multiply_loaded<CHAINS>(ring + stage * W::UNIT_BYTES, tokens, lane, chains);
            __syncwarp();   // every lane has read the stage before it is refilled
            if (lane == 0 && next_unit < end) fetch(stage);
            if (++stage == GROUPED_DEPTH) stage = 0, parity ^= 1;
        }
        float4 sums = make_float4(chains[0][0] + chains[1][0], chains[0][1] + chains[1][1], chains[0][2] + chains[1][2], chains[0][3] + chains[1][3]);
        if constexpr (SCALED<W>) sums = times_columns(sums, x_scales);
        if (whole) write_pairs<O, W>(args, columns, place.tile, lane, scales, sums);
        else part(warp, !at_begin) = sums;
        place.advance(tiles_each);
        if (unit < end) load_tile();
    }
    if (grain == units) return;

    // Tiles in which warps met, one per warp in turn, their parts in the order of k.
    for (int tile = warp; tile < tiles + GROUPED_WARPS; tile += GROUPED_WARPS) {
        const bool mine = tile < tiles;
        place = Place(tile_begin + min(tile, tiles - 1), tiles_each);
        if (mine) load_tile();
        if (tile == warp) __syncthreads();   // behind the loads
        if (!mine) break;
        const int first = share_owner(grains, GROUPED_WARPS, tile * units);
        const int last = share_owner(grains, GROUPED_WARPS, (tile + 1) * units - 1);
        if (first == last) continue;
        float4 sums = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int owner = first; owner <= last; owner++) {
            const int run = share_begin(grains, GROUPED_WARPS, owner);
            if (run == share_begin(grains, GROUPED_WARPS, owner + 1)) continue;   // fewer units than warps
            const float4 p = part(owner, run < tile * units);
            sums.x += p.x, sums.y += p.y, sums.z += p.z, sums.w += p.w;
        }
        write_pairs<O, W>(args, columns, place.tile, lane, scales, sums);
    }
}

template <class W, Output O>
cudaError_t launch_grouped(const ArgsOf<W>& args, int blocks, bool dependent, void* stream) {
    if (cudaError_t error = cudaFuncSetAttribute(grouped_kernel<W, O>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(GROUPED_SHARED_BYTES<W>))) return error;
    return launch(grouped_kernel<W, O>, dim3(blocks), GROUPED_WARPS * 32, GROUPED_SHARED_BYTES<W>, dependent, stream, args);
}

template <class W>
int dispatch_grouped(const ArgsOf<W>& args, int output, int blocks, bool dependent, void* stream) {
    if (!args.template valid<W>() || blocks < 1) return cudaErrorInvalidValue;
    switch (Output(output)) {
        case Output::SWIGLU: return launch_grouped<W, Output::SWIGLU>(args, blocks, dependent, stream);
        case Output::WEIGHTED: return launch_grouped<W, Output::WEIGHTED>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace
}  // namespace engine

// m <= 32 tokens, slots - 1 of `experts` <= 256 each. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_moe_route(const void* logits, void* entries, int* entry_count, int* pairs, float* weights, int* ids, int m,
                                int experts, int slots, int dependent, void* stream) {
    using namespace engine;
    const RouteArgs args{static_cast<const bf16*>(logits), static_cast<int4*>(entries), entry_count, pairs, weights, ids, m, experts, slots};
    if (!args.valid()) return cudaErrorInvalidValue;
    return launch(route_kernel, dim3(1), ROUTE_THREADS, 0, dependent, stream, args);
}

// Entries of up to 8 pairs. output: engine::Output. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_moe_grouped(const void* weight, const float* row_scale, const void* x, void* out, const void* entries,
                                  const int* entry_count, const int* pairs, const float* weights, int m, int slots, int n, int k,
                                  int output, int blocks, int dependent, void* stream) {
    using namespace engine;
    const GroupedArgs args{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, static_cast<const int4*>(entries),
                           entry_count, pairs, weights, m, slots, n, k};
    return dispatch_grouped<W4A16>(args, output, blocks, dependent, stream);
}

// The same of FP8 experts: x e4m3, whose rows' scales are x_scale [tokens or pairs].
extern "C" int engine_moe_grouped_fp8(const void* weight, const float* row_scale, const void* x, const float* x_scale, void* out,
                                      const void* entries, const int* entry_count, const int* pairs, const float* weights, int m,
                                      int slots, int n, int k, int output, int blocks, int dependent, void* stream) {
    using namespace engine;
    const ScaledArgs args{{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, static_cast<const int4*>(entries),
                           entry_count, pairs, weights, m, slots, n, k}, x_scale};
    return dispatch_grouped<W8A8>(args, output, blocks, dependent, stream);
}
