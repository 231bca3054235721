// Skinny matrix product: out[m, n] = sum_k x[m, k] * w[n, k] for m <= 32, streaming w once at memory speed.
//
// Weights are the 16-row operand of mma.sync and tokens its 8 columns, so up to 8 tokens cost one instruction. The
// weight matrix is repacked at load into units: 16 rows x UNIT_K columns, contiguous, each lane's operands in place. A
// block owns a contiguous run of row tiles over one slice of K; its warps deal the units out among themselves and each
// streams its own through a private ring of bulk copies:
//
//        k ->   unit 0   unit 1   unit 2  ...          unit u of the block's flattened list (tile-major) belongs to
//   tile 0    [ warp 0 ][ warp 1 ][ warp 2 ] ...       warp u mod WARPS, so no tile leaves a warp idle however K
//   tile 1    [ warp 4 ][ warp 5 ] ...                 divides. A tile's partial sums meet in shared memory, where
//   tile 2    ...                                      one warp in turn reduces them, in a fixed order, and writes.
//
// Rejected: a producer warp with block-wide stages (a block-wide barrier per stage, and consumers wait for the slowest);
// registers as the ring (the compiler serialises the waits, and 16 warps x 64 registers hold no more than this does);
// atomics across blocks (the order of additions, and so the result, would change from run to run).
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "async.cuh"

namespace engine {

constexpr int TILE_ROWS = 16;   // rows of one mma operand
constexpr int TOKENS = 8;       // columns of one mma
constexpr int SLOTS = 2;        // tiles whose partial sums may be in flight
constexpr int LANE_SUMS = 4;    // accumulators a lane holds per mma

// What the reducing warp does with finished sums.
enum class Epilogue : int {
    PARTIAL = 0,  // fp32 plane [slice][m][n]: the consumer adds the slices
    BF16 = 1,     // bf16 [m][n]; one slice only
    SWIGLU = 2,   // rows g, g + 8 of a tile are gate, up: bf16 [m][n / 2]; one slice only
};

struct SkinnyArgs {
    const uint8_t* weight;    // units, [n / 16][k / UNIT_K][UNIT_BYTES]
    const float* row_scale;   // [n]
    const void* x;            // [m][k], bf16 or e4m3
    void* out;
    int m, n, k;
    int slices;               // parts of K, one block column each
    int depth;                // units in flight per warp; chosen at launch from the shared memory that is left
};

template <class W>
struct SkinnyShared {
    // Bytes of one token's row in shared memory; the padding makes the 8 lanes of a 16-byte phase hit distinct banks.
    static __host__ __device__ int row_bytes(int slice_k) { return slice_k * W::X_BYTES + W::X_PAD; }
    static __host__ __device__ size_t x_bytes(int m, int slice_k) { return size_t(m) * row_bytes(slice_k); }
    static __host__ __device__ size_t slot_bytes(int tiles_m, int warps) {
        return size_t(SLOTS) * warps * tiles_m * 32 * LANE_SUMS * sizeof(float);
    }
    static __host__ __device__ size_t ring_bytes(int warps, int depth) { return size_t(warps) * depth * W::UNIT_BYTES; }
    static __host__ __device__ size_t barrier_bytes(int warps, int depth) { return (size_t(warps) * depth + 2 * SLOTS) * 8; }
    static __host__ __device__ size_t total(int m, int tiles_m, int slice_k, int warps, int depth) {
        return ring_bytes(warps, depth) + x_bytes(m, slice_k) + slot_bytes(tiles_m, warps) + barrier_bytes(warps, depth);
    }
};

// First of `parts` nearly equal shares of `total`.
__device__ __forceinline__ int share_begin(int total, int parts, int index) {
    return int((long long)total * index / parts);
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
    float* slots = reinterpret_cast<float*>(x_shared + Layout::x_bytes(args.m, max_slice_k));
    uint64_t* barriers = reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(slots) + Layout::slot_bytes(MT, WARPS));
    uint64_t* full = barriers + warp * depth;              // a unit has landed in this warp's ring
    uint64_t* summed = barriers + WARPS * depth;           // all warps have put their partial sums into a slot
    uint64_t* drained = summed + SLOTS;                    // the reducer has read a slot

    if (lane == 0)
        for (int i = 0; i < depth; i++) barrier_init(full + i, 1);
    if (threadIdx.x == 0)
        for (int i = 0; i < SLOTS; i++) barrier_init(summed + i, WARPS * 32), barrier_init(drained + i, 32);
    if (lane == 0) barrier_init_fence();

    const uint64_t policy = evict_first_policy();
    const int total_units = tiles * units;
    auto source = [&](int unit) {
        const int tile = unit / units, column = unit - tile * units;
        return args.weight + (size_t(tile_begin + tile) * units_k + unit_begin + column) * W::UNIT_BYTES;
    };
    auto fetch = [&](int unit, int stage) {
        barrier_expect_bytes(full + stage, W::UNIT_BYTES);
        bulk_load(ring + stage * W::UNIT_BYTES, source(unit), W::UNIT_BYTES, full + stage, policy);
    };
    if (lane == 0)
        for (int i = 0; i < depth; i++)
            if (warp + i * WARPS < total_units) fetch(warp + i * WARPS, i);

    // Weights are on their way; x is the previous kernel's output.
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int row_bytes = Layout::row_bytes(slice_k);
    {
        const int row_chunks = slice_k * W::X_BYTES / 16;
        for (int i = threadIdx.x; i < args.m * row_chunks; i += WARPS * 32) {
            const int token = i / row_chunks, chunk = i - token * row_chunks;
            const size_t offset = (size_t(token) * args.k + size_t(unit_begin) * W::UNIT_K) * W::X_BYTES + chunk * 16;
            *reinterpret_cast<uint4*>(x_shared + token * row_bytes + chunk * 16) =
                *reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(args.x) + offset);
        }
    }
    __syncthreads();

    // A column of the product depends on its own token alone, so columns past m may multiply any finite row: the last.
    int token_row[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) token_row[i] = min(i * TOKENS + lane / 4, args.m - 1) * row_bytes;

    float sums[MT][LANE_SUMS];
    auto clear = [&] {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < LANE_SUMS; j++) sums[i][j] = 0.f;
    };
    auto reduce_and_write = [&](int tile) {
        const int slot = tile % SLOTS;
        barrier_wait(summed + slot, (tile / SLOTS) & 1);
        clear();
        for (int w = 0; w < WARPS; w++)
#pragma unroll
            for (int i = 0; i < MT; i++) {
                const float4 part = reinterpret_cast<const float4*>(slots)[((slot * WARPS + w) * MT + i) * 32 + lane];
                sums[i][0] += part.x, sums[i][1] += part.y, sums[i][2] += part.z, sums[i][3] += part.w;
            }
        barrier_arrive(drained + slot);
        const int row = (tile_begin + tile) * TILE_ROWS + lane / 4;   // and row + 8
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
    };

    clear();
    int stage = 0, parity = 0, unit = warp;
    for (int tile = 0; tile < tiles; tile++) {
        for (; unit < (tile + 1) * units; unit += WARPS) {
            barrier_wait(full + stage, parity);
            const int column = unit - tile * units;
            W::template multiply<MT>(ring + stage * W::UNIT_BYTES, x_shared + column * W::UNIT_K * W::X_BYTES, token_row, lane, sums);
            __syncwarp();   // every lane has read the stage before it is refilled
            if (lane == 0 && unit + depth * WARPS < total_units) fetch(unit + depth * WARPS, stage);
            if (++stage == depth) stage = 0, parity ^= 1;
        }
        const int slot = tile % SLOTS;
        if (tile >= SLOTS) barrier_wait(drained + slot, (tile / SLOTS - 1) & 1);
#pragma unroll
        for (int i = 0; i < MT; i++)
            reinterpret_cast<float4*>(slots)[((slot * WARPS + warp) * MT + i) * 32 + lane] =
                make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
        barrier_arrive(summed + slot);
        if (tile % WARPS == warp) reduce_and_write(tile);
        clear();
    }
}

constexpr size_t MAX_SHARED_BYTES =
#ifdef ENGINE_MAX_SHARED_BYTES
    ENGINE_MAX_SHARED_BYTES;
#else
    227 * 1024;   // sm_90
#endif
constexpr int MAX_DEPTH = 8;

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
    config.dynamicSmemBytes = bytes(args.depth);
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = dependent ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace engine
