// Routing of up to 32 tokens, and the W4A16 products of the experts they chose.
//
// A pair is one token at one of its experts: pair = token * slots + slot. The shared expert is one more expert, which every
// token chooses at its last slot. Pairs lie sorted by expert; an entry is one expert and up to 32 of its pairs:
//
//   entries   {expert, first, count}   [0, 0, 2] [3, 2, 1] [255, 3, 1] [256, 4, 2]        of 2 tokens, 3 slots
//   pairs                               0 3       1         4           2 5
//
// A decoding step's routing is the end of its norm launch (ops/norm); the launch here is for logits that were made elsewhere.
//
// The product treats the row tiles of all entries as one matrix and cuts it into equal runs, one per multiprocessor, so
// that a block takes the end of one expert and the beginning of the next, and nothing depends on how many there are.
// Bytes read: every chosen expert's weights once, n * k * 9 / 16 each.
//
// Rejected: a block per (token, expert), which reads an expert once per token; atomics into one output, whose order of
// additions would change from run to run: `down` leaves one fp32 plane per slot, and the next norm adds them up.
#include "../../kernels/math.cuh"
#include "../../kernels/route.cuh"
#include "../../kernels/w4a16.cuh"

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

// What becomes of a pair's finished sums.
enum class Output : int {
    SWIGLU = 0,     // x by token; rows g, g + 8 of a tile are gate, up: bf16 [pair][n / 2]
    WEIGHTED = 1,   // x by pair; rounded to bf16, times the pair's weight: fp32 [slot][token][n]
};

struct GroupedArgs {
    const uint8_t* weight;      // units, [experts][n / 16][k / 256][2304]
    const float* row_scale;     // [experts][n]
    const uint8_t* x;           // bf16 [tokens or pairs][k]
    void* out;
    const int4* entries;
    const int* entry_count;
    const int* pairs;
    const float* weights;       // by pair; of WEIGHTED
    int m, slots, n, k;
};

// Units in flight per warp, and the floats that a warp leaves of a tile it shares: at most two, its first and its last.
constexpr int GROUPED_DEPTH = 3;
constexpr int GROUPED_WARPS = WARPS<1>;
constexpr int GROUPS = MAX_ROUTED / TOKENS;

template <int MAX_GROUPS>
constexpr size_t grouped_shared_bytes() {
    return size_t(GROUPED_WARPS) * (GROUPED_DEPTH * (W4A16::UNIT_BYTES + sizeof(uint64_t)) + 2 * MAX_GROUPS * 32 * LANE_SUMS * sizeof(float));
}

template <Output O>
__device__ __forceinline__ void write_pairs(const GroupedArgs& args, int4 entry, int tile, int lane, int group, float4 sums) {
    const float* scale = args.row_scale + size_t(entry.x) * args.n + tile * TILE_ROWS + lane / 4;
    const float low = __ldg(scale) * W4A16::EPILOGUE_SCALE, high = __ldg(scale + 8) * W4A16::EPILOGUE_SCALE;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int index = group * TOKENS + (lane % 4) * 2 + j;
        if (index >= entry.z) continue;
        const int pair = __ldcg(args.pairs + entry.y + index);
        const float a = (j ? sums.y : sums.x) * low, b = (j ? sums.w : sums.z) * high;
        if constexpr (O == Output::SWIGLU) {
            const float gate = round_bf16(a), up = round_bf16(b);
            static_cast<bf16*>(args.out)[size_t(pair) * (args.n / 2) + tile * (TILE_ROWS / 2) + lane / 4] =
                __float2bfloat16(round_bf16(gate / (1.f + __expf(-gate))) * up);
        } else {
            const int token = pair / args.slots, slot = pair - token * args.slots;
            const float weight = __ldcg(args.weights + pair);
            float* out = static_cast<float*>(args.out) + (size_t(slot) * args.m + token) * args.n + tile * TILE_ROWS + lane / 4;
            out[0] = round_bf16(a) * weight, out[8] = round_bf16(b) * weight;
        }
    }
}

// MAX_GROUPS: 1 where no expert can have more than 8 tokens.
template <int MAX_GROUPS, Output O>
__global__ void __launch_bounds__(GROUPED_WARPS * 32, 1) grouped_kernel(const GroupedArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t* ring = shared + size_t(warp) * GROUPED_DEPTH * W4A16::UNIT_BYTES;
    uint64_t* full = reinterpret_cast<uint64_t*>(shared + size_t(GROUPED_WARPS) * GROUPED_DEPTH * W4A16::UNIT_BYTES) + warp * GROUPED_DEPTH;
    float4* parts = reinterpret_cast<float4*>(shared + size_t(GROUPED_WARPS) * GROUPED_DEPTH * (W4A16::UNIT_BYTES + sizeof(uint64_t)));
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
    const int tiles_each = args.n / TILE_ROWS, units = args.k / W4A16::UNIT_K;
    const int all_tiles = __ldcg(args.entry_count) * tiles_each;
    const int tile_begin = share_begin(all_tiles, gridDim.x, blockIdx.x);
    const int tiles = share_begin(all_tiles, gridDim.x, blockIdx.x + 1) - tile_begin;
    const int begin = share_begin(tiles * units, GROUPED_WARPS, warp), end = share_begin(tiles * units, GROUPED_WARPS, warp + 1);
    auto entry_of = [&](int tile) { return __ldcg(args.entries + (tile_begin + tile) / tiles_each); };

    const uint64_t policy = evict_first_policy();
    int next_unit = begin;
    const uint8_t* next = nullptr;
    auto fetch = [&](int stage) {   // lane 0 alone
        const int tile = next_unit / units, column = next_unit - tile * units;
        if (column == 0 || next_unit == begin)
            next = args.weight + ((size_t(entry_of(tile).x) * tiles_each + (tile_begin + tile) % tiles_each) * units + column) * W4A16::UNIT_BYTES;
        barrier_expect_bytes(full + stage, W4A16::UNIT_BYTES);
        bulk_load(ring + stage * W4A16::UNIT_BYTES, next, W4A16::UNIT_BYTES, full + stage, policy);
        next_unit++, next += W4A16::UNIT_BYTES;
    };
    if (lane == 0)
        for (int i = 0; i < GROUPED_DEPTH && next_unit < end; i++) fetch(i);
    if constexpr (O == Output::WEIGHTED) {
        let_next_kernel_start();
        wait_for_previous_kernel();
    }

    auto part = [&](int owner, bool last, int i) -> float4& { return parts[((owner * 2 + last) * MAX_GROUPS + i) * 32 + lane]; };
    int stage = 0, parity = 0;
    for (int unit = begin; unit < end;) {
        const int tile = unit / units, tile_end = min((tile + 1) * units, end);
        const bool whole = unit == tile * units && tile_end == (tile + 1) * units, at_begin = unit == begin;
        const int4 entry = entry_of(tile);
        const int groups = (entry.z + TOKENS - 1) / TOKENS;
        int row[MAX_GROUPS][1];   // bytes from x to the row of this lane's column; one past the last may be any
#pragma unroll
        for (int i = 0; i < MAX_GROUPS; i++) {
            const int pair = __ldcg(args.pairs + entry.y + min(i * TOKENS + lane / 4, entry.z - 1));
            row[i][0] = (O == Output::SWIGLU ? pair / args.slots : pair) * args.k * W4A16::X_BYTES;
        }
        constexpr int CHAINS = MAX_GROUPS == 1 ? 2 : 1;
        float chains[MAX_GROUPS][CHAINS][1][LANE_SUMS] = {};
        for (int column = unit - tile * units; unit < tile_end; unit++, column++) {
            barrier_wait(full + stage, parity);
#pragma unroll
            for (int i = 0; i < MAX_GROUPS; i++)
                if (i == 0 || i < groups)
                    W4A16::multiply<CHAINS>(ring + stage * W4A16::UNIT_BYTES, args.x + size_t(column) * W4A16::UNIT_K * W4A16::X_BYTES, row[i], lane, chains[i]);
            __syncwarp();   // every lane has read the stage before it is refilled
            if (lane == 0 && next_unit < end) fetch(stage);
            if (++stage == GROUPED_DEPTH) stage = 0, parity ^= 1;
        }
#pragma unroll
        for (int i = 0; i < MAX_GROUPS; i++) {
            if (i >= groups) break;
            float4 sums = make_float4(chains[i][0][0][0], chains[i][0][0][1], chains[i][0][0][2], chains[i][0][0][3]);
            if constexpr (CHAINS == 2)
                sums.x += chains[i][1][0][0], sums.y += chains[i][1][0][1], sums.z += chains[i][1][0][2], sums.w += chains[i][1][0][3];
            if (whole) write_pairs<O>(args, entry, (tile_begin + tile) % tiles_each, lane, i, sums);
            else part(warp, !at_begin, i) = sums;
        }
    }
    __syncthreads();

    // Tiles in which warps met, one per warp in turn, their parts in the order of k.
    for (int tile = warp; tile < tiles; tile += GROUPED_WARPS) {
        const int first = share_owner(tiles * units, GROUPED_WARPS, tile * units);
        const int last = share_owner(tiles * units, GROUPED_WARPS, (tile + 1) * units - 1);
        if (first == last) continue;
        const int4 entry = entry_of(tile);
        for (int i = 0; i * TOKENS < entry.z; i++) {
            float4 sums = make_float4(0.f, 0.f, 0.f, 0.f);
            for (int owner = first; owner <= last; owner++) {
                const int run = share_begin(tiles * units, GROUPED_WARPS, owner);
                if (run == share_begin(tiles * units, GROUPED_WARPS, owner + 1)) continue;   // fewer units than warps
                const float4 p = part(owner, run < tile * units, i);
                sums.x += p.x, sums.y += p.y, sums.z += p.z, sums.w += p.w;
            }
            write_pairs<O>(args, entry, (tile_begin + tile) % tiles_each, lane, i, sums);
        }
    }
}

template <int MAX_GROUPS, Output O>
cudaError_t launch_grouped(const GroupedArgs& args, int blocks, bool dependent, void* stream) {
    auto kernel = grouped_kernel<MAX_GROUPS, O>;
    constexpr size_t bytes = grouped_shared_bytes<MAX_GROUPS>();
    static_assert(bytes <= MAX_SHARED_BYTES, "the ring and the parts must fit");
    if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes))) return error;
    return launch(kernel, dim3(blocks), GROUPED_WARPS * 32, bytes, dependent, stream, args);
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

// output: engine::Output. most: pairs of the largest entry, at most 32, which chooses the instantiation.
// cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_moe_grouped(const void* weight, const float* row_scale, const void* x, void* out, const void* entries,
                                  const int* entry_count, const int* pairs, const float* weights, int m, int slots, int n, int k,
                                  int most, int output, int blocks, int dependent, void* stream) {
    using namespace engine;
    if (m < 1 || slots < 1 || n < TILE_ROWS || n % TILE_ROWS || k < W4A16::UNIT_K || k % W4A16::UNIT_K || most < 1 ||
        most > MAX_ROUTED || blocks < 1 || (Output(output) != Output::SWIGLU && Output(output) != Output::WEIGHTED))
        return cudaErrorInvalidValue;
    const GroupedArgs args{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, static_cast<const int4*>(entries),
                           entry_count, pairs, weights, m, slots, n, k};
    const bool few = most <= TOKENS;
    if (Output(output) == Output::SWIGLU)
        return few ? launch_grouped<1, Output::SWIGLU>(args, blocks, dependent, stream) : launch_grouped<GROUPS, Output::SWIGLU>(args, blocks, dependent, stream);
    return few ? launch_grouped<1, Output::WEIGHTED>(args, blocks, dependent, stream) : launch_grouped<GROUPS, Output::WEIGHTED>(args, blocks, dependent, stream);
}
