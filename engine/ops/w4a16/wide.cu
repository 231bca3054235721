// W4A16 for many tokens on Hopper: x bf16 [m, k] times NVFP4 weights from their units, by warpgroup products.
//
// kernels/wide.cuh has how: two warpgroups multiply 256 rows by up to 128 tokens, whose x a third one gathers. A task is such a
// square and one of `parts` of k. Blocks take tasks in turn, those of one run of rows next to each other: its weights come from
// memory once and from the L2 for the other tokens.
//
// Bytes read: n * k * 9 / 16 once, and x once for each 256 rows from the L2. A library needs the weights as bf16 in memory: 2 n k
// more written, and read.
//
// Of a unit (16 rows by 256 columns) and 128 tokens the tensor cores take 256 cycles, unpacking 340 issues of four schedulers.
//
// Rejected: 64 tokens a task (every weight unpacked, and every x gathered, twice as often); parts of k where one is enough.
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"
#include "../../kernels/wide.cuh"

namespace engine {
namespace {

using Dense = Wide<128, 2, 2, 2>;
// For fewer tokens half of the rows a task: 34,816 are 272 tasks then, two rounds of 132 blocks and a bit, not one and a bit. Of the
// weights twice as much is in flight where x leaves room for it.
using Few = Wide<64, 1, 4, 5>;
using Fewest = Wide<32, 1, 5, 7>;

struct WideArgs {
    const uint8_t* weight;     // units, [n / 16][k / 256][2304]
    const float* row_scale;    // [n]
    const uint8_t* x;          // bf16 [m][k]
    void* out;                 // as the epilogue says; slices are parts
    int m, n, k, parts;

    // Offsets into x are kept in 32 bits.
    bool valid(Epilogue epilogue) const {
        return m >= 1 && n >= Dense::ROWS && n % Dense::ROWS == 0 && k >= W4A16::UNIT_K && k % W4A16::UNIT_K == 0 && parts >= 1 &&
               parts <= k / W4A16::UNIT_K && (parts == 1 || epilogue == Epilogue::PARTIAL) && double(m) * k * W4A16::X_BYTES <= 2147483647.;
    }
};

// Tokens are shared out evenly, in eights, so that the last square is not a remainder.
template <class W>
struct DenseTasks {
    const WideArgs& args;
    int squares, tokens, row_units;   // squares of one run of rows; tokens of one at most; units of a row
    __device__ explicit DenseTasks(const WideArgs& args) : args(args), row_units(args.k / W4A16::UNIT_K) {
        squares = (args.m + W::PAIRS - 1) / W::PAIRS;
        tokens = ((args.m + squares - 1) / squares + TOKENS - 1) / TOKENS * TOKENS;
    }
    __device__ int all() const { return args.n / W::ROWS * args.parts * squares; }
    __device__ int token(int task) const { return task % squares * tokens; }
    __device__ int part(int task) const { return task / squares % args.parts; }
    __device__ int column(int task) const {   // the first of its part
        const int each = row_units / args.parts, more = row_units % args.parts;
        return part(task) * each + min(part(task), more);
    }
    __device__ int columns(int task) const { return row_units / args.parts + (part(task) < row_units % args.parts); }
    __device__ int tile(int task, int warp) const {   // a warpgroup's tiles of one product are neighbours
        return task / squares / args.parts * (W::ROWS / TILE_ROWS) + warp / GROUP_WARPS * (GROUP_WARPS * W::TILES) + warp % GROUP_WARPS;
    }
    __device__ const uint8_t* units(int task, int warp) const {
        return args.weight + (size_t(tile(task, warp)) * row_units + column(task)) * W4A16::UNIT_BYTES;
    }
    __device__ const float* scales(int task, int warp) const { return args.row_scale + tile(task, warp) * TILE_ROWS; }
};

template <Epilogue E>
__device__ __forceinline__ void write_tokens(const WideArgs& args, int token, int end, int part, int tile, int lane, float2 scales, const float (&sums)[LANE_SUMS]) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int t = token + lane % 4 * 2 + j;
        if (t >= end) continue;
        const float a = sums[j] * scales.x, b = sums[2 + j] * scales.y;
        if constexpr (E == Epilogue::SWIGLU) {
            const float gate = round_bf16(a), up = round_bf16(b);
            static_cast<bf16*>(args.out)[size_t(t) * (args.n / 2) + tile * (TILE_ROWS / 2) + lane / 4] =
                __float2bfloat16(round_bf16(gate / (1.f + __expf(-gate))) * up);
        } else if constexpr (E == Epilogue::PARTIAL) {
            float* out = static_cast<float*>(args.out) + (size_t(part) * args.m + t) * args.n + tile * TILE_ROWS + lane / 4;
            out[0] = a, out[8] = b;
        } else {
            bf16* out = static_cast<bf16*>(args.out) + size_t(t) * args.n + tile * TILE_ROWS + lane / 4;
            out[0] = __float2bfloat16(a), out[8] = __float2bfloat16(b);
        }
    }
}

template <class W, Epilogue E>
__global__ void __launch_bounds__(WIDE_WARPS * 32, 1) w4a16_wide_kernel(const WideArgs args) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const WideBarriers<W> barriers(shared);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const DenseTasks<W> tasks(args);
    if (warp >= PRODUCT_WARPS) {
        fewer_registers<GATHER_REGISTERS>();
        let_next_kernel_start();
        wait_for_previous_kernel();
        WideGather<W> x{shared, barriers.x_full, barriers.x_empty, warp - PRODUCT_WARPS, lane};
        for (int task = blockIdx.x; task < tasks.all(); task += gridDim.x) {
            const int first = tasks.token(task), count = min(tasks.tokens, args.m - first), column = tasks.column(task), end = column + tasks.columns(task);
            const int rows = (count - x.warp + GROUP_WARPS - 1) / GROUP_WARPS;   // may be none
            const int offset = (first + min(lane * GROUP_WARPS + x.warp, count - 1)) * args.k * W4A16::X_BYTES;
            for (int c = column; c < end; c++) x.column(args.x, c, offset, rows);
        }
        x.finish();
        return;
    }
    more_registers<PRODUCT_REGISTERS>();
    WideRing<W, DenseTasks<W>, false> ring(tasks, shared, barriers, warp, tasks.row_units);
    if (lane == 0) ring.fill();
    let_next_kernel_start();
    wait_for_previous_kernel();   // whose input this kernel's output may overwrite
    WideX<W> x{shared, barriers.x_full, barriers.x_empty};
    Turn turn;
    for (int task = blockIdx.x; task < tasks.all(); task += gridDim.x) {
        const int first = tasks.token(task), end = min(first + tasks.tokens, args.m), columns = tasks.columns(task), tile = tasks.tile(task, warp);
        typename W::Sums sums = {};
        constexpr int GROUPS = W::GROUPS, QUARTER = GROUPS / 4;   // of the instructions: as many tokens as the square has, or nearly
        if constexpr (QUARTER < 2) multiply_wide<W, GROUPS>(ring, turn, x, columns, lane, sums);
        else switch ((end - first + QUARTER * TOKENS - 1) / (QUARTER * TOKENS)) {
            case 1: multiply_wide<W, QUARTER>(ring, turn, x, columns, lane, sums); break;
            case 2: multiply_wide<W, 2 * QUARTER>(ring, turn, x, columns, lane, sums); break;
            case 3: multiply_wide<W, 3 * QUARTER>(ring, turn, x, columns, lane, sums); break;
            default: multiply_wide<W, GROUPS>(ring, turn, x, columns, lane, sums);
        }
        // Behind the product, which leaves no registers for them; the ring has brought them into the L2.
        float2 scales[W::TILES];
#pragma unroll
        for (int t = 0; t < W::TILES; t++) {
            const float* scale = args.row_scale + (tile + t * GROUP_WARPS) * TILE_ROWS + lane / 4;
            scales[t] = make_float2(__ldg(scale) * W4A16::EPILOGUE_SCALE, __ldg(scale + 8) * W4A16::EPILOGUE_SCALE);
        }
#pragma unroll
        for (int group = 0; group < W::GROUPS; group++) {
            if (first + group * TOKENS >= end) break;
#pragma unroll
            for (int t = 0; t < W::TILES; t++)
                write_tokens<E>(args, first + group * TOKENS, end, tasks.part(task), tile + t * GROUP_WARPS, lane, scales[t], sums[t][group]);
        }
    }
}

template <class W, Epilogue E>
cudaError_t launch_wide(const WideArgs& args, int blocks, bool dependent, void* stream) {
    if constexpr (W::FITS) {
        if (cudaError_t error = cudaFuncSetAttribute(w4a16_wide_kernel<W, E>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(W::SHARED_BYTES))) return error;
        return launch(w4a16_wide_kernel<W, E>, dim3(blocks), WIDE_WARPS * 32, W::SHARED_BYTES, dependent, stream, args);
    }
    return cudaErrorInvalidConfiguration;
}

template <Epilogue E>
cudaError_t launch_for(const WideArgs& args, int blocks, bool dependent, void* stream) {
    if constexpr (!Dense::FITS) return cudaErrorInvalidConfiguration;   // whatever fits a smaller device: it has no such products
    if (args.m <= Fewest::PAIRS) return launch_wide<Fewest, E>(args, blocks, dependent, stream);
    if (args.m <= Few::PAIRS) return launch_wide<Few, E>(args, blocks, dependent, stream);
    return launch_wide<Dense, E>(args, blocks, dependent, stream);
}

}  // namespace
}  // namespace engine

// Any number of tokens m; n a multiple of 256. epilogue: engine::Epilogue, PARTIAL, BF16 or SWIGLU; parts: of k, each an fp32 plane
// [m][n] of PARTIAL, else one. On sm_90a; elsewhere cudaErrorInvalidConfiguration.
extern "C" int engine_w4a16_wide(const void* weight, const float* row_scale, const void* x, void* out, int m, int n, int k, int parts,
                                 int epilogue, int blocks, int dependent, void* stream) {
    using namespace engine;
    const WideArgs args{static_cast<const uint8_t*>(weight), row_scale, static_cast<const uint8_t*>(x), out, m, n, k, parts};
    if (!args.valid(Epilogue(epilogue)) || blocks < 1) return cudaErrorInvalidValue;
    switch (Epilogue(epilogue)) {
        case Epilogue::PARTIAL: return launch_for<Epilogue::PARTIAL>(args, blocks, dependent, stream);
        case Epilogue::BF16: return launch_for<Epilogue::BF16>(args, blocks, dependent, stream);
        case Epilogue::SWIGLU: return launch_for<Epilogue::SWIGLU>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}
