// The W4A16 products of the chosen experts for prefill on Hopper: what many.cu computes, by warpgroup products (wgmma).
//
// Two warpgroups multiply, each two tiles of 64 rows at a time; one gathers the pairs' x. A block's task is an entry of up to
// 64 pairs and 256 rows of its expert. Weights go from a warp's private ring to registers, where they become bf16, and from
// there straight into the product as its A operand: its layout is mma.sync's, so that units serve both. x is B, read by the
// product itself from shared memory: no instruction of a warp loads it, and a weight is unpacked once for 64 pairs.
//
//        columns ->     0..255   256..511 ...      x of 64 pairs in 3 stages, swizzled as the product reads it
//   warps 0-3  64 rows  unit     unit              part of 64 columns: unpack into one set of registers while the product
//              64 rows  unit     unit              of the part before reads the other
//   warps 4-7  128 rows more
//   warps 8-11 gather x
//
// Order of columns. A lane owns 16 columns of each 64 in a unit (w4a16.cuh), so that one product's 16 columns are, of lane t
// of four, columns 16 t + 4 step to 16 t + 4 step + 3. x is put in that order on its way into shared memory, by 4-byte copies:
// word 8 t + 2 s + h of a row's 64 columns goes to word 8 s + 4 h + t. Rejected: x in that order in global memory (16-byte
// copies, a quarter as many): the norm, the router's columns and SwiGLU's stores would all have to know it.
//
// Instructions a unit: 16 steps of 15 to unpack, and one product a step; many.cu took 1,245 for two units and 64 pairs.
#include "../../kernels/grouped.cuh"
#include "../../kernels/wgmma.cuh"

namespace engine {
namespace {

constexpr int WIDE_PAIRS = 64, WIDE_GROUPS = WIDE_PAIRS / TOKENS;
constexpr int GROUP_WARPS = 4;                          // of a warpgroup
constexpr int PRODUCT_WARPS = 2 * GROUP_WARPS;
constexpr int WIDE_WARPS = PRODUCT_WARPS + GROUP_WARPS;
constexpr int WIDE_TILES = 2;                           // of a warp
constexpr int WIDE_ROWS = PRODUCT_WARPS * WIDE_TILES * TILE_ROWS;
constexpr int WIDE_DEPTH = 3, WIDE_X_STAGES = 3;
constexpr int PARTS = 4, STEPS = 4;                     // of a unit: 64 columns; of a part: one product's 16
constexpr int PART_BYTES = WIDE_PAIRS * 128;            // x of one part
constexpr int WIDE_X_BYTES = PARTS * PART_BYTES;
constexpr int WIDE_STAGE_BYTES = WIDE_TILES * W4A16::UNIT_BYTES;
constexpr size_t WIDE_RING_AT = size_t(WIDE_X_STAGES) * WIDE_X_BYTES;
constexpr size_t WIDE_BARRIERS_AT = WIDE_RING_AT + size_t(PRODUCT_WARPS) * WIDE_DEPTH * WIDE_STAGE_BYTES;
constexpr size_t WIDE_SHARED_BYTES = WIDE_BARRIERS_AT + (PRODUCT_WARPS * WIDE_DEPTH + 2 * WIDE_X_STAGES) * sizeof(uint64_t);
constexpr bool WIDE_FITS = WIDE_SHARED_BYTES <= MAX_SHARED_BYTES;   // not on sm_121, which has no such products either
static_assert(W4A16::UNIT_K * W4A16::X_BYTES == PARTS * 128, "a part is a row of the swizzled atom");
// Registers of a thread: 65,536 for 384 threads, moved from those that gather.
constexpr int GATHER_REGISTERS = 40, PRODUCT_REGISTERS = 232;

struct Turn {
    int stage = 0, parity = 0;
    __device__ void advance(int count) {
        if (++stage == count) stage = 0, parity ^= 1;
    }
};

// Tasks, largest entries last: the blocks take them from there, so that what is left at the end is short.
struct Tasks {
    const GroupedArgs& args;
    int count, each;
    __device__ explicit Tasks(const GroupedArgs& args) : args(args), count(__ldcg(args.entry_count)), each(args.n / WIDE_ROWS) {}
    __device__ int all() const { return count * each; }
    // Asked for ahead, by tasks that may not be there: the last entry then.
    __device__ int4 entry(int task) const { return __ldcg(args.entries + max(count - 1 - task / each, 0)); }
    __device__ int tile(int task, int warp) const {   // a warpgroup's tiles of one product are neighbours
        return task % each * (WIDE_ROWS / TILE_ROWS) + warp / GROUP_WARPS * (GROUP_WARPS * WIDE_TILES) + warp % GROUP_WARPS;
    }
};

// One warp of four: rows 4 i + warp of x.
template <Output O>
__device__ __forceinline__ void gather(const GroupedArgs& args, const Tasks& tasks, uint8_t* stages, uint64_t* full, uint64_t* empty, int warp, int lane) {
    const int units = args.k / W4A16::UNIT_K;
    const int word = lane % 4 * 8 + lane / 4;   // that this lane brings, of 32: it becomes word `lane`
    // An entry is asked for two tasks ahead and its pairs one: `down` has two columns a task, in whose time no two trips fit.
    auto pair_of = [&](int4 entry) { return __ldcg(args.pairs + entry.y + min(lane * GROUP_WARPS + warp, entry.z - 1)); };   // lanes 0 to 15
    Turn turn;
    if (int(blockIdx.x) >= tasks.all()) return;
    int4 entry = tasks.entry(blockIdx.x), next = tasks.entry(blockIdx.x + gridDim.x);
    int pair = pair_of(entry);
    for (int task = blockIdx.x; task < tasks.all(); task += gridDim.x) {
        const int rows = (entry.z - warp + GROUP_WARPS - 1) / GROUP_WARPS;   // may be none
        const int offset = x_offset<O>(args, pair);
        entry = next, next = tasks.entry(task + 2 * gridDim.x), pair = pair_of(entry);
        for (int column = 0; column < units; column++, turn.advance(WIDE_X_STAGES)) {
            barrier_wait(empty + turn.stage, turn.parity ^ 1);   // the first time round nobody has to give it back
            uint8_t* stage = stages + turn.stage * WIDE_X_BYTES + lane % 4 * 4;
            const uint8_t* source = args.x + column * (PARTS * 128) + word * 4;
#pragma unroll 4
            for (int i = 0; i < rows; i++) {
                const int row = i * GROUP_WARPS + warp;
                uint8_t* target = stage + row * 128 + ((lane / 4 ^ row % 8) << 4);
                const uint8_t* from = source + __shfl_sync(~0u, offset, i);
#pragma unroll
                for (int part = 0; part < PARTS; part++) async_load4(target + part * PART_BYTES, from + part * 128);
            }
            async_arrive(full + turn.stage);
        }
    }
    for (int i = 0; i < WIDE_X_STAGES; i++, turn.advance(WIDE_X_STAGES)) barrier_wait(empty + turn.stage, turn.parity ^ 1);   // all has landed
}

// A warp's units in the order in which they are multiplied, across tasks. Lane 0 alone has a use for it.
struct Ring {
    const GroupedArgs& args;
    const Tasks& tasks;
    uint8_t* stages;
    uint64_t* full;
    const uint64_t policy = evict_first_policy();
    const int units, warp;
    int task = blockIdx.x, column = 0;
    const uint8_t* next = nullptr;

    __device__ Ring(const GroupedArgs& args, const Tasks& tasks, uint8_t* stages, uint64_t* full, int warp)
        : args(args), tasks(tasks), stages(stages), full(full), units(args.k / W4A16::UNIT_K), warp(warp) {
        open();
    }
    __device__ void open() {
        if (task >= tasks.all()) return;
        const size_t first = size_t(tasks.entry(task).x) * (args.n / TILE_ROWS) + tasks.tile(task, warp);
        next = args.weight + first * units * W4A16::UNIT_BYTES;
        for (int t = 0; t < WIDE_TILES; t++) prefetch_l2(args.row_scale + (first + t * GROUP_WARPS) * TILE_ROWS, TILE_ROWS * sizeof(float));
    }
    __device__ void fetch(int stage) {
        if (task >= tasks.all()) return;
        barrier_expect_bytes(full + stage, WIDE_STAGE_BYTES);
#pragma unroll
        for (int t = 0; t < WIDE_TILES; t++)
            bulk_load(stages + stage * WIDE_STAGE_BYTES + t * W4A16::UNIT_BYTES, next + size_t(t) * GROUP_WARPS * units * W4A16::UNIT_BYTES, W4A16::UNIT_BYTES,
                      full + stage, policy);
        next += W4A16::UNIT_BYTES;
        if (++column == units) column = 0, task += gridDim.x, open();
    }
};

struct XStages {
    const uint8_t* stages;
    uint64_t *full, *empty;
    Turn turn;
};

// sums[tile][group] += the warpgroup's two tiles of one entry, all columns, for GROUPS groups of pairs.
template <int GROUPS>
__device__ __forceinline__ void multiply_task(Ring& ring, Turn& turn, XStages& x, int lane, float (&sums)[WIDE_TILES][WIDE_GROUPS][LANE_SUMS]) {
    uint32_t a[2][WIDE_TILES][STEPS][4];   // of the part being unpacked, and of the one being multiplied
#pragma unroll 1
    for (int column = 0; column < ring.units; column++) {
        barrier_wait(ring.full + turn.stage, turn.parity);
        const uint8_t* units = ring.stages + turn.stage * WIDE_STAGE_BYTES;
        uint2 scales[WIDE_TILES];
#pragma unroll
        for (int t = 0; t < WIDE_TILES; t++) scales[t] = reinterpret_cast<const uint2*>(units + t * W4A16::UNIT_BYTES + 2048)[lane];
        barrier_wait(x.full + x.turn.stage, x.turn.parity);
        wgmma_sees_shared();
        const uint8_t* tokens = x.stages + x.turn.stage * WIDE_X_BYTES;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
#pragma unroll
            for (int t = 0; t < WIDE_TILES; t++) {
                const uint4 codes = reinterpret_cast<const uint4*>(units + t * W4A16::UNIT_BYTES)[part * 32 + lane];
                const uint32_t pair = part < 2 ? scales[t].x : scales[t].y;
                const uint32_t low = W4A16::scale(pair, part % 2 * 2), high = W4A16::scale(pair, part % 2 * 2 + 1);
                W4A16::operand(codes.x, low, high, a[part % 2][t][0]);
                W4A16::operand(codes.y, low, high, a[part % 2][t][1]);
                W4A16::operand(codes.z, low, high, a[part % 2][t][2]);
                W4A16::operand(codes.w, low, high, a[part % 2][t][3]);
            }
#pragma unroll
            for (int t = 0; t < WIDE_TILES; t++)
#pragma unroll
                for (int step = 0; step < STEPS; step++) wgmma_operands(a[part % 2][t][step]);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int t = 0; t < WIDE_TILES; t++) wgmma_bf16<GROUPS>(sums[t], a[part % 2][t][step], swizzled_rows(tokens + part * PART_BYTES, step));
            wgmma_commit();
            // The part before: its registers are free. At the end of a column all: ptxas serialises products that are under
            // way when a loop begins anew (C7513); the other warpgroup's fill the gap.
            if (part < PARTS - 1) wgmma_wait<1>();
            else wgmma_wait<0>();
        }
#pragma unroll
        for (int t = 0; t < WIDE_TILES; t++) wgmma_sums(sums[t]);
        __syncwarp();   // every lane has read both stages before they are given back
        if (lane == 0) {
            barrier_arrive(x.empty + x.turn.stage);
            ring.fetch(turn.stage);
        }
        turn.advance(WIDE_DEPTH), x.turn.advance(WIDE_X_STAGES);
    }
}

template <Output O>
__global__ void __launch_bounds__(WIDE_WARPS * 32, 1) grouped_wide_kernel(const GroupedArgs args) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint64_t* x_full = reinterpret_cast<uint64_t*>(shared + WIDE_BARRIERS_AT);
    uint64_t *x_empty = x_full + WIDE_X_STAGES, *full = x_empty + WIDE_X_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_X_STAGES; i++) barrier_init(x_full + i, GROUP_WARPS * 32), barrier_init(x_empty + i, PRODUCT_WARPS);
        for (int i = 0; i < PRODUCT_WARPS * WIDE_DEPTH; i++) barrier_init(full + i, 1);
        barrier_init_fence();
    }
    __syncthreads();

    // As in many.cu: gate_up lets `down` start only once the routing is there, which `down` reads before gate_up has ended.
    if constexpr (O == Output::SWIGLU) {
        wait_for_previous_kernel();
        let_next_kernel_start();
    }
    const Tasks tasks(args);
    if (warp >= PRODUCT_WARPS) {
        fewer_registers<GATHER_REGISTERS>();
        if constexpr (O != Output::SWIGLU) {
            let_next_kernel_start();
            wait_for_previous_kernel();
        }
        gather<O>(args, tasks, shared, x_full, x_empty, warp - PRODUCT_WARPS, lane);
        return;
    }
    more_registers<PRODUCT_REGISTERS>();
    Ring ring(args, tasks, shared + WIDE_RING_AT + size_t(warp) * WIDE_DEPTH * WIDE_STAGE_BYTES, full + warp * WIDE_DEPTH, warp);
    if (lane == 0)
        for (int i = 0; i < WIDE_DEPTH; i++) ring.fetch(i);
    if constexpr (O != Output::SWIGLU) {
        let_next_kernel_start();
        wait_for_previous_kernel();
    }
    XStages x{shared, x_full, x_empty, {}};
    Turn turn;
    int4 upcoming = tasks.entry(blockIdx.x);
    for (int task = blockIdx.x; task < tasks.all(); task += gridDim.x) {
        const int4 entry = upcoming;
        upcoming = tasks.entry(task + gridDim.x);
        int pair[WIDE_PAIRS / 32];   // lane, 32 + lane of the entry's
#pragma unroll
        for (int i = 0; i < WIDE_PAIRS / 32; i++) pair[i] = __ldcg(args.pairs + entry.y + min(i * 32 + lane, entry.z - 1));
        const int tile = tasks.tile(task, warp), groups = (entry.z + TOKENS - 1) / TOKENS;
        float2 scales[WIDE_TILES];
#pragma unroll
        for (int t = 0; t < WIDE_TILES; t++) scales[t] = expert_scales(args, entry.x, tile + t * GROUP_WARPS, lane);
        float sums[WIDE_TILES][WIDE_GROUPS][LANE_SUMS] = {};
        switch ((groups + 1) / 2) {
            case 1: multiply_task<2>(ring, turn, x, lane, sums); break;
            case 2: multiply_task<4>(ring, turn, x, lane, sums); break;
            case 3: multiply_task<6>(ring, turn, x, lane, sums); break;
            default: multiply_task<8>(ring, turn, x, lane, sums);
        }
#pragma unroll
        for (int group = 0; group < WIDE_GROUPS; group++) {
            if (group >= groups) break;
            Columns<O> columns = {};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = group * TOKENS + lane % 4 * 2 + j, p = __shfl_sync(~0u, pair[group * TOKENS / 32], column % 32);
                columns.out[j] = column >= entry.z ? -1 : out_offset<O>(args, p);
            }
#pragma unroll
            for (int t = 0; t < WIDE_TILES; t++) {
                const float (&s)[LANE_SUMS] = sums[t][group];
                write_pairs<O>(args, columns, tile + t * GROUP_WARPS, lane, scales[t], make_float4(s[0], s[1], s[2], s[3]));
            }
        }
    }
}

template <Output O>
cudaError_t launch_wide(const GroupedArgs& args, int blocks, bool dependent, void* stream) {
    if constexpr (WIDE_FITS) {
        if (cudaError_t error = cudaFuncSetAttribute(grouped_wide_kernel<O>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(WIDE_SHARED_BYTES))) return error;
        return launch(grouped_wide_kernel<O>, dim3(blocks), WIDE_WARPS * 32, WIDE_SHARED_BYTES, dependent, stream, args);
    }
    return cudaErrorInvalidConfiguration;
}

}  // namespace
}  // namespace engine

// As engine_moe_grouped_many, for n a multiple of 256, on sm_90a; elsewhere cudaErrorInvalidConfiguration. output: SWIGLU or PAIR.
extern "C" int engine_moe_grouped_wide(const void* weight, const float* row_scale, const void* x, void* out, const void* entries,
                                       const int* entry_count, const int* pairs, const float* weights, int m, int slots, int n, int k,
                                       int output, int blocks, int dependent, void* stream) {
    using namespace engine;
    const GroupedArgs args{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, static_cast<const int4*>(entries),
                           entry_count, pairs, weights, m, slots, n, k};
    if (!args.valid() || n % WIDE_ROWS || blocks < 1) return cudaErrorInvalidValue;
    switch (Output(output)) {
        case Output::SWIGLU: return launch_wide<Output::SWIGLU>(args, blocks, dependent, stream);
        case Output::PAIR: return launch_wide<Output::PAIR>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}
