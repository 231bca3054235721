// W4A16 for more than 32 tokens on Hopper: x bf16 [m, k] times NVFP4 weights from their units, by warpgroup products.
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

using Dense = Wide<128, 2, 2>;

struct WideArgs {
    const uint8_t* weight;     // units, [n / 16][k / 256][2304]
    const float* row_scale;    // [n]
    const uint8_t* x;          // bf16 [m][k]
    void* out;                 // as the epilogue says; slices are parts
    int m, n, k, parts;

    // Offsets into x are kept in 32 bits.
    bool valid(Epilogue epilogue) const {
        return m >= 1 && n >= WIDE_ROWS && n % WIDE_ROWS == 0 && k >= W4A16::UNIT_K && k % W4A16::UNIT_K == 0 && parts >= 1 &&
               parts <= k / W4A16::UNIT_K && (parts == 1 || epilogue == Epilogue::PARTIAL) && double(m) * k * W4A16::X_BYTES <= 2147483647.;
    }
};

// Tokens are shared out evenly, in eights, so that the last square is not a remainder.
struct DenseTasks {
    const WideArgs& args;
    int squares, tokens, row_units;   // squares of one run of rows; tokens of one at most; units of a row
    __device__ explicit DenseTasks(const WideArgs& args) : args(args), row_units(args.k / W4A16::UNIT_K) {
        squares = (args.m + Dense::PAIRS - 1) / Dense::PAIRS;
        tokens = ((args.m + squares - 1) / squares + TOKENS - 1) / TOKENS * TOKENS;
        squares = (args.m + tokens - 1) / tokens;
    }
    __device__ int all() const { return args.n / WIDE_ROWS * args.parts * squares; }
    __device__ int token(int task) const { return task % squares * tokens; }
    __device__ int part(int task) const { return task / squares % args.parts; }
    __device__ int column(int task) const {   // the first of its part
        const int each = row_units / args.parts, more = row_units % args.parts;
        return part(task) * each + min(part(task), more);
    }
    __device__ int columns(int task) const { return row_units / args.parts + (part(task) < row_units % args.parts); }
    __device__ int tile(int task, int warp) const {   // a warpgroup's tiles of one product are neighbours
        return task / squares / args.parts * (WIDE_ROWS / TILE_ROWS) + warp / GROUP_WARPS * (GROUP_WARPS * WIDE_TILES) + warp % GROUP_WARPS;
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

template <Epilogue E>
__global__ void __launch_bounds__(WIDE_WARPS * 32, 1) w4a16_wide_kernel(const WideArgs args) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const WideBarriers<Dense> barriers(shared);
    if (threadIdx.x == 0) barriers.init();
    __syncthreads();
    const DenseTasks tasks(args);
    if (warp >= PRODUCT_WARPS) {
        fewer_registers<GATHER_REGISTERS>();
        let_next_kernel_start();
        wait_for_previous_kernel();
        WideGather<Dense> x{shared, barriers.x_full, barriers.x_empty, warp - PRODUCT_WARPS, lane};
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
    WideRing<Dense, DenseTasks, false> ring(tasks, shared, barriers, warp, tasks.row_units);
    if (lane == 0) ring.fill();
    let_next_kernel_start();
    wait_for_previous_kernel();   // whose input this kernel's output may overwrite
    WideX x{shared, barriers.x_full, barriers.x_empty};
    WideTurn turn;
    for (int task = blockIdx.x; task < tasks.all(); task += gridDim.x) {
        const int first = tasks.token(task), end = min(first + tasks.tokens, args.m), columns = tasks.columns(task), tile = tasks.tile(task, warp);
        Dense::Sums sums = {};
        switch ((end - first + 4 * TOKENS - 1) / (4 * TOKENS)) {
            case 1: multiply_wide<Dense, 4>(ring, turn, x, columns, lane, sums); break;
            case 2: multiply_wide<Dense, 8>(ring, turn, x, columns, lane, sums); break;
            case 3: multiply_wide<Dense, 12>(ring, turn, x, columns, lane, sums); break;
            default: multiply_wide<Dense, 16>(ring, turn, x, columns, lane, sums);
        }
        // Behind the product, which leaves no registers for them; the ring has brought them into the L2.
        float2 scales[WIDE_TILES];
#pragma unroll
        for (int t = 0; t < WIDE_TILES; t++) {
            const float* scale = args.row_scale + (tile + t * GROUP_WARPS) * TILE_ROWS + lane / 4;
            scales[t] = make_float2(__ldg(scale) * W4A16::EPILOGUE_SCALE, __ldg(scale + 8) * W4A16::EPILOGUE_SCALE);
        }
#pragma unroll
        for (int group = 0; group < Dense::GROUPS; group++) {
            if (first + group * TOKENS >= end) break;
#pragma unroll
            for (int t = 0; t < WIDE_TILES; t++)
                write_tokens<E>(args, first + group * TOKENS, end, tasks.part(task), tile + t * GROUP_WARPS, lane, scales[t], sums[t][group]);
        }
    }
}

template <Epilogue E>
cudaError_t launch_dense(const WideArgs& args, int blocks, bool dependent, void* stream) {
    if constexpr (Dense::FITS) {
        if (cudaError_t error = cudaFuncSetAttribute(w4a16_wide_kernel<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(Dense::SHARED_BYTES))) return error;
        return launch(w4a16_wide_kernel<E>, dim3(blocks), WIDE_WARPS * 32, Dense::SHARED_BYTES, dependent, stream, args);
    }
    return cudaErrorInvalidConfiguration;
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
        case Epilogue::PARTIAL: return launch_dense<Epilogue::PARTIAL>(args, blocks, dependent, stream);
        case Epilogue::BF16: return launch_dense<Epilogue::BF16>(args, blocks, dependent, stream);
        case Epilogue::SWIGLU: return launch_dense<Epilogue::SWIGLU>(args, blocks, dependent, stream);
        default: return cudaErrorInvalidValue;
    }
}
