// The W4A16 products of the chosen experts for many tokens on Hopper: what many.cu computes, and from 17 tokens on kernel.cu, by
// warpgroup products (wgmma).
//
// kernels/wide.cuh has how: two warpgroups multiply 256 rows of an expert by an entry of up to 64 pairs, whose x a third one
// gathers.
//
// Instructions a unit: 16 steps of 15 to unpack, and one product a step; many.cu took 1,245 for two units and 64 pairs.
#include "../../kernels/grouped.cuh"
#include "../../kernels/wide.cuh"

namespace engine {
namespace {

using Experts = Wide<64, 2, 3, 3>;

// Tasks, largest entries last: the blocks take them from there, so that what is left at the end is short.
struct Tasks {
    const GroupedArgs& args;
    int count, each, row_units;
    __device__ explicit Tasks(const GroupedArgs& args)
        : args(args), count(__ldcg(args.entry_count)), each(args.n / Experts::ROWS), row_units(args.k / W4A16::UNIT_K) {}
    __device__ int all() const { return count * each; }
    __device__ int columns(int) const { return row_units; }
    // Asked for ahead, by tasks that may not be there: the last entry then.
    __device__ int4 entry(int task) const { return __ldcg(args.entries + max(count - 1 - task / each, 0)); }
    __device__ int tile(int task, int warp) const {   // a warpgroup's tiles of one product are neighbours
        return task % each * (Experts::ROWS / TILE_ROWS) + warp / GROUP_WARPS * (GROUP_WARPS * Experts::TILES) + warp % GROUP_WARPS;
    }
    __device__ size_t first_tile(int task, int warp) const { return size_t(entry(task).x) * (args.n / TILE_ROWS) + tile(task, warp); }
    __device__ const uint8_t* units(int task, int warp) const { return args.weight + first_tile(task, warp) * row_units * W4A16::UNIT_BYTES; }
    __device__ const float* scales(int task, int warp) const { return args.row_scale + first_tile(task, warp) * TILE_ROWS; }
};

// An entry is asked for two tasks ahead and its pairs one: `down` has two columns a task, in whose time no two trips fit.
template <Output O>
__device__ __forceinline__ void gather(const GroupedArgs& args, const Tasks& tasks, WideGather<Experts> x) {
    auto pair_of = [&](int4 entry) { return __ldcg(args.pairs + entry.y + min(x.lane * GROUP_WARPS + x.warp, entry.z - 1)); };   // lanes 0 to 15
    if (int(blockIdx.x) >= tasks.all()) return;
    int4 entry = tasks.entry(blockIdx.x), next = tasks.entry(blockIdx.x + gridDim.x);
    int pair = pair_of(entry);
    for (int task = blockIdx.x; task < tasks.all(); task += gridDim.x) {
        const int rows = (entry.z - x.warp + GROUP_WARPS - 1) / GROUP_WARPS;   // may be none
        const int offset = x_offset<O>(args, pair);
        entry = next, next = tasks.entry(task + 2 * gridDim.x), pair = pair_of(entry);
        for (int column = 0; column < tasks.row_units; column++) x.column(args.x, column, offset, rows);
    }
    x.finish();
}

template <Output O>
__global__ void __launch_bounds__(WIDE_WARPS * 32, 1) grouped_wide_kernel(const GroupedArgs args) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const WideBarriers<Experts> barriers(shared);
    if (threadIdx.x == 0) barriers.init();
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
        gather<O>(args, tasks, {shared, barriers.x_full, barriers.x_empty, warp - PRODUCT_WARPS, lane});
        return;
    }
    more_registers<PRODUCT_REGISTERS>();
    WideRing<Experts, Tasks, true> ring(tasks, shared, barriers, warp, tasks.row_units);
    if (lane == 0) ring.fill();
    if constexpr (O != Output::SWIGLU) {
        let_next_kernel_start();
        wait_for_previous_kernel();
    }
    WideX<Experts> x{shared, barriers.x_full, barriers.x_empty};
    Turn turn;
    int4 upcoming = tasks.entry(blockIdx.x);
    for (int task = blockIdx.x; task < tasks.all(); task += gridDim.x) {
        const int4 entry = upcoming;
        upcoming = tasks.entry(task + gridDim.x);
        int pair[Experts::PAIRS / 32];   // lane, 32 + lane of the entry's
#pragma unroll
        for (int i = 0; i < Experts::PAIRS / 32; i++) pair[i] = __ldcg(args.pairs + entry.y + min(i * 32 + lane, entry.z - 1));
        const int tile = tasks.tile(task, warp), groups = (entry.z + TOKENS - 1) / TOKENS;
        float2 scales[Experts::TILES];
#pragma unroll
        for (int t = 0; t < Experts::TILES; t++) scales[t] = expert_scales(args, entry.x, tile + t * GROUP_WARPS, lane);
        Experts::Sums sums = {};
        switch ((groups + 1) / 2) {
            case 1: multiply_wide<Experts, 2>(ring, turn, x, tasks.row_units, lane, sums); break;
            case 2: multiply_wide<Experts, 4>(ring, turn, x, tasks.row_units, lane, sums); break;
            case 3: multiply_wide<Experts, 6>(ring, turn, x, tasks.row_units, lane, sums); break;
            default: multiply_wide<Experts, 8>(ring, turn, x, tasks.row_units, lane, sums);
        }
#pragma unroll
        for (int group = 0; group < Experts::GROUPS; group++) {
            if (group >= groups) break;
            Columns<O> columns = {};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = group * TOKENS + lane % 4 * 2 + j, p = __shfl_sync(~0u, pair[group * TOKENS / 32], column % 32);
                columns.weight[j] = O == Output::WEIGHTED ? __ldcg(args.weights + p) : 0.f;
                columns.out[j] = column >= entry.z ? -1 : out_offset<O>(args, p);
            }
#pragma unroll
            for (int t = 0; t < Experts::TILES; t++) {
                const float (&s)[LANE_SUMS] = sums[t][group];
                write_pairs<O>(args, columns, tile + t * GROUP_WARPS, lane, scales[t], make_float4(s[0], s[1], s[2], s[3]));
            }
        }
    }
}

template <Output O>
cudaError_t launch_wide(const GroupedArgs& args, int blocks, bool dependent, void* stream) {
    if constexpr (Experts::FITS) {
        if (cudaError_t error = cudaFuncSetAttribute(grouped_wide_kernel<O>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(Experts::SHARED_BYTES))) return error;
        return launch(grouped_wide_kernel<O>, dim3(blocks), WIDE_WARPS * 32, Experts::SHARED_BYTES, dependent, stream, args);
    }
    return cudaErrorInvalidConfiguration;
}

}  // namespace
}  // namespace engine

// As engine_moe_grouped_many, for n a multiple of 256, on sm_90a; elsewhere cudaErrorInvalidConfiguration. output: any.
extern "C" int engine_moe_grouped_wide(const void* weight, const float* row_scale, const void* x, void* out, const void* entries,
                                       const int* entry_count, const int* pairs, const float* weights, int m, int slots, int n, int k,
                                       int output, int blocks, int dependent, void* stream) {
    using namespace engine;
    const GroupedArgs args{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, static_cast<const int4*>(entries),
                           entry_count, pairs, weights, m, slots, n, k};
    if (!args.valid() || n % Experts::ROWS || blocks < 1) return cudaErrorInvalidValue;
    switch (Output(output)) {
        case Output::SWIGLU: return launch_wide<Output::SWIGLU>(args, blocks, dependent, stream);
        case Output::WEIGHTED: return launch_wide<Output::WEIGHTED>(args, blocks, dependent, stream);
        case Output::PAIR: return launch_wide<Output::PAIR>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}
