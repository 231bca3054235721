// Skinny matrix product: out[m, n] = sum_k x[m, k] * w[n, k] for m <= 32, streaming w once at memory speed.
//
// Weights are the 16-row operand of mma.sync and tokens its 8 columns, so up to 8 tokens cost one instruction. The
// weight matrix is repacked at load into units: 16 rows x UNIT_K columns, contiguous, each lane's operands in place. A
// block owns a contiguous run of row tiles over one slice of K, and each of its warps a contiguous run of their units,
// which it streams through a private ring of bulk copies:
//
//        k ->   unit 0 1 2 ...
//   tile 0    [0 0 0 0 0 0 0|1 1 1]       the digit is the warp. A tile that one warp finished alone is written from its
//   tile 1    [1 1 1 1|2 2 2 2 2 2]       registers; where warps meet inside a tile, each leaves its part in shared memory
//   tile 2    [2|3 3 3 3 3 3 3|4 4]       and, after one barrier at the end, the parts are added in the order of k.
//
// Rejected: units dealt out in turn (every tile is then a meeting of all warps: 3.3 instead of 3.9 TB/s on lm_head); a
// producer warp with block-wide stages (a block-wide barrier per stage, and consumers wait for the slowest); atomics
// across blocks (the order of additions, and so the result, would change from run to run).
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "async.cuh"

namespace engine {

constexpr int TILE_ROWS = 16;   // rows of one mma operand
constexpr int TOKENS = 8;       // columns of one mma
constexpr int LANE_SUMS = 4;    // accumulators a lane holds per mma

// What the reducing warp does with finished sums.
enum class Epilogue : int {
    PARTIAL = 0,  // fp32 plane [slice][m][n]: the consumer adds the slices
    BF16 = 1,     // bf16 [m][n]; one slice only
    SWIGLU = 2,   // rows g, g + 8 of a tile are gate, up: bf16 [m][n / 2]; one slice only
};

// The next product in the step, so that this one can warm the L2 with the start of its weights. By value in the launch.
struct NextProduct {
    const uint8_t* weight;    // null: nothing to warm
    int tiles, units_k, unit_bytes;
    int slices, blocks;       // of the next launch, which has the same number of warps per block
    int units;                // per warp
};

struct SkinnyArgs {
    const uint8_t* weight;    // units, [n / 16][k / UNIT_K][UNIT_BYTES]
    const float* row_scale;   // [n]
    const void* x;            // [m][k], bf16 or e4m3
    void* out;
    int m, n, k;
    int slices;               // parts of K, one block column each
    int depth;                // units in flight per warp; chosen at launch from the shared memory that is left
    NextProduct next;
};

template <class W>
struct SkinnyShared {
    // Bytes of one token's row in shared memory; the padding makes the 8 lanes of a 16-byte phase hit distinct banks.
    static __host__ __device__ int row_bytes(int slice_k) { return slice_k * W::X_BYTES + W::X_PAD; }
    static __host__ __device__ size_t x_bytes(int m, int slice_k) { return size_t(m) * row_bytes(slice_k); }
    // A warp's run can end inside two tiles at most: its first and its last.
    static __host__ __device__ size_t part_bytes(int tiles_m, int warps) {
        return size_t(2) * warps * tiles_m * 32 * LANE_SUMS * sizeof(float);
    }
    static __host__ __device__ size_t ring_bytes(int warps, int depth) { return size_t(warps) * depth * W::UNIT_BYTES; }
    static __host__ __device__ size_t barrier_bytes(int warps, int depth) { return size_t(warps) * depth * 8; }
    static __host__ __device__ size_t total(int m, int tiles_m, int slice_k, int warps, int depth) {
        return ring_bytes(warps, depth) + x_bytes(m, slice_k) + part_bytes(tiles_m, warps) + barrier_bytes(warps, depth);
    }
};

// Where share `index` of `parts` nearly equal shares of `total` begins. 32 bits are enough for every count here (tiles x
// blocks, units x warps < 2^31), and a 64-bit division would cost each launch half a microsecond before its first copy.
__device__ __forceinline__ int share_begin(int total, int parts, int index) {
    return int(unsigned(total) * unsigned(index) / unsigned(parts));
}

// The share that holds `item`: the last one that begins at or before it.
__device__ __forceinline__ int share_owner(int total, int parts, int item) {
    return int(((unsigned(item) + 1) * unsigned(parts) - 1) / unsigned(total));
}

// Asks for the start of the run that this block's warp of the next launch will stream, where it has one. DRAM would
// otherwise idle from here until that launch's own first copies: through this one's tail and the small kernels between.
template <int WARPS>
__device__ __forceinline__ void warm_next(const NextProduct& next, int warp) {
    const int block = blockIdx.x + gridDim.x * blockIdx.y;
    if (next.weight == nullptr || block >= next.blocks * next.slices) return;
    const int column = block % next.blocks, slice = block / next.blocks;
    const int unit_begin = share_begin(next.units_k, next.slices, slice);
    const int units = share_begin(next.units_k, next.slices, slice + 1) - unit_begin;
    const int tile_begin = share_begin(next.tiles, next.blocks, column);
    const int total = (share_begin(next.tiles, next.blocks, column + 1) - tile_begin) * units;
    const int begin = share_begin(total, WARPS, warp), end = min(share_begin(total, WARPS, warp + 1), begin + next.units);
    for (int unit = begin; unit < end;) {
        const int in_tile = unit % units, count = min(end - unit, units - in_tile);
        prefetch_l2(next.weight + (size_t(tile_begin + unit / units) * next.units_k + unit_begin + in_tile) * next.unit_bytes,
                    count * next.unit_bytes);
        unit += count;
    }
}

// Scales a finished tile and writes it. Lane 4g + t holds rows g and g + 8 of tokens 2t and 2t + 1.
template <class W, int MT, Epilogue E>
__device__ __forceinline__ void write_tile(const SkinnyArgs& args, int slice, int tile, int lane, const float (&sums)[MT][LANE_SUMS]) {
    const int row = tile * TILE_ROWS + lane / 4;
    const float low = args.row_scale[row] * W::EPILOGUE_SCALE, high = args.row_scale[row + 8] * W::EPILOGUE_SCALE;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int token = i * TOKENS + (lane % 4) * 2 + j;
            if (token >= args.m) continue;
            const float a = sums[i][j] * low, b = sums[i][2 + j] * high;
            if constexpr (E == Epilogue::PARTIAL) {
                float* plane = static_cast<float*>(args.out) + (size_t(slice) * args.m + token) * args.n;
                plane[row] = a, plane[row + 8] = b;
            } else if constexpr (E == Epilogue::BF16) {
                __nv_bfloat16* out = static_cast<__nv_bfloat16*>(args.out) + size_t(token) * args.n;
                out[row] = __float2bfloat16(a), out[row + 8] = __float2bfloat16(b);
            } else {
                // gate and up are rounded to bf16 before the product, as the unfused chain rounds them
                const float gate = __bfloat162float(__float2bfloat16(a)), up = __bfloat162float(__float2bfloat16(b));
                const float silu = __bfloat162float(__float2bfloat16(gate / (1.f + __expf(-gate))));
                static_cast<__nv_bfloat16*>(args.out)[size_t(token) * (args.n / 2) + (row + lane / 4) / 2] =
                    __float2bfloat16(silu * up);
            }
        }
}

template <class W, int MT, int WARPS, Epilogue E>
__global__ void __launch_bounds__(WARPS * 32, 1) skinny_kernel(const SkinnyArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, depth = args.depth;
    const int slice = blockIdx.y;
    const int units_k = args.k / W::UNIT_K;
    const int unit_begin = share_begin(units_k, args.slices, slice);
    const int units = share_begin(units_k, args.slices, slice + 1) - unit_begin;   // per tile
    const int slice_k = units * W::UNIT_K;
    const int max_slice_k = (units_k + args.slices - 1) / args.slices * W::UNIT_K;
    const int tile_begin = share_begin(args.n / TILE_ROWS, gridDim.x, blockIdx.x);
    const int tiles = share_begin(args.n / TILE_ROWS, gridDim.x, blockIdx.x + 1) - tile_begin;

    using Layout = SkinnyShared<W>;
    uint8_t* ring = shared + size_t(warp) * depth * W::UNIT_BYTES;
    uint8_t* x_shared = shared + Layout::ring_bytes(WARPS, depth);
    float4* parts = reinterpret_cast<float4*>(x_shared + Layout::x_bytes(args.m, max_slice_k));
    uint64_t* full = reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(parts) + Layout::part_bytes(MT, WARPS)) + warp * depth;

    const int total_units = tiles * units;
    const int begin = share_begin(total_units, WARPS, warp), end = share_begin(total_units, WARPS, warp + 1);
    const uint64_t policy = evict_first_policy();
    // Units are fetched in the order they are consumed. Consecutive units of a slice are contiguous but where it ends.
    int next_unit = begin, next_column = begin % units;
    const uint8_t* next = args.weight + (size_t(tile_begin + begin / units) * units_k + unit_begin + next_column) * W::UNIT_BYTES;
    auto fetch = [&](int stage) {
        barrier_expect_bytes(full + stage, W::UNIT_BYTES);
        bulk_load(ring + stage * W::UNIT_BYTES, next, W::UNIT_BYTES, full + stage, policy);
        next_unit++, next += W::UNIT_BYTES;
        if (++next_column == units) next_column = 0, next += size_t(units_k - units) * W::UNIT_BYTES;
    };
    if (lane == 0) {
        for (int i = 0; i < depth; i++) barrier_init(full + i, 1);
        barrier_init_fence();
        for (int i = 0; i < depth && next_unit < end; i++) fetch(i);
    }

    // Weights are on their way; x is the previous kernel's output.
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int row_bytes = Layout::row_bytes(slice_k), row_chunks = slice_k * W::X_BYTES / 16;
    for (int i = threadIdx.x; i < args.m * row_chunks; i += WARPS * 32) {
        const int token = i / row_chunks, chunk = i - token * row_chunks;
        const size_t offset = (size_t(token) * args.k + size_t(unit_begin) * W::UNIT_K) * W::X_BYTES + chunk * 16;
        *reinterpret_cast<uint4*>(x_shared + token * row_bytes + chunk * 16) =
            *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(args.x) + offset);
    }
    __syncthreads();

    // A column of the product depends on its own token alone, so columns past m may multiply any finite row: the last.
    int token_row[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) token_row[i] = min(i * TOKENS + lane / 4, args.m - 1) * row_bytes;

    float sums[MT][LANE_SUMS];
    auto part = [&](int owner, bool last, int i) -> float4& { return parts[((owner * 2 + last) * MT + i) * 32 + lane]; };

    int stage = 0, parity = 0;
    for (int unit = begin; unit < end;) {
        const int tile = unit / units, tile_end = min((tile + 1) * units, end);
        const bool whole = unit == tile * units && tile_end == (tile + 1) * units;
        const bool last = unit != begin;
        int column = unit - tile * units;
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < LANE_SUMS; j++) sums[i][j] = 0.f;
        for (; unit < tile_end; unit++, column++) {
            barrier_wait(full + stage, parity);
            W::template multiply<MT>(ring + stage * W::UNIT_BYTES, x_shared + column * W::UNIT_K * W::X_BYTES, token_row, lane, sums);
            __syncwarp();   // every lane has read the stage before it is refilled
            if (lane == 0) {
                if (next_unit < end) fetch(stage);
                else if (next_unit++ == end) warm_next<WARPS>(args.next, warp);
            }
            if (++stage == depth) stage = 0, parity ^= 1;
        }
        if (whole) {
            write_tile<W, MT, E>(args, slice, tile_begin + tile, lane, sums);
        } else {
#pragma unroll
            for (int i = 0; i < MT; i++) part(warp, last, i) = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
        }
    }
    __syncthreads();

    // Tiles in which warps met, one per warp in turn. The first contributor holds the tile's start.
    for (int tile = warp; tile < tiles; tile += WARPS) {
        const int first = share_owner(total_units, WARPS, tile * units), final = share_owner(total_units, WARPS, (tile + 1) * units - 1);
        if (first == final) continue;
#pragma unroll
        for (int i = 0; i < MT; i++) {
            float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
            for (int owner = first; owner <= final; owner++) {
                const int run = share_begin(total_units, WARPS, owner);
                if (run == share_begin(total_units, WARPS, owner + 1)) continue;   // fewer units than warps
                const float4 p = part(owner, run < tile * units, i);
                sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
            }
            sums[i][0] = sum.x, sums[i][1] = sum.y, sums[i][2] = sum.z, sums[i][3] = sum.w;
        }
        write_tile<W, MT, E>(args, slice, tile_begin + tile, lane, sums);
    }
}

constexpr size_t MAX_SHARED_BYTES =
#ifdef ENGINE_MAX_SHARED_BYTES
    ENGINE_MAX_SHARED_BYTES;
#else
    227 * 1024;   // sm_90
#endif
constexpr int MAX_DEPTH = 3;   // measured: 2 and 3 are best, deeper rings delay the tokens behind their own burst

// Launches over `blocks` x slices; `dependent` lets it start while its predecessor drains. cudaErrorInvalidConfiguration
// when not even one unit per warp fits beside the tokens: ask for more slices.
template <class W, int MT, int WARPS, Epilogue E>
cudaError_t launch_skinny(SkinnyArgs args, int blocks, bool dependent, cudaStream_t stream) {
    const int units_k = args.k / W::UNIT_K;
    const int max_slice_k = (units_k + args.slices - 1) / args.slices * W::UNIT_K;
    auto bytes = [&](int depth) { return SkinnyShared<W>::total(args.m, MT, max_slice_k, WARPS, depth); };
    args.depth = MAX_DEPTH;
    while (args.depth > 0 && bytes(args.depth) > MAX_SHARED_BYTES) args.depth--;
    if (args.depth == 0) return cudaErrorInvalidConfiguration;
    auto kernel = skinny_kernel<W, MT, WARPS, E>;
    if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(MAX_SHARED_BYTES)))
        return error;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks, args.slices);
    config.blockDim = dim3(WARPS * 32);
    // One block per multiprocessor: under dependent launch a second one would settle wherever a multiprocessor happens to
    // be free first, and leave others without (measured: 104 instead of 78 us per layer).
    config.dynamicSmemBytes = bytes(args.depth) > MAX_SHARED_BYTES / 2 ? bytes(args.depth) : MAX_SHARED_BYTES / 2 + 1024;
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = dependent ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace engine
