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
// Many tokens do not fit beside the ring. The block then makes several passes: windows of its tiles, and in each window
// phases of its K, with only the phase's x in shared memory and the window's sums waiting there between phases. The ring
// knows no passes, so memory stays busy while the warps change over.
//
// Rejected: units dealt out in turn (every tile is then a meeting of all warps: 3.3 instead of 3.9 TB/s on lm_head); a
// producer warp with block-wide stages (a block-wide barrier per stage, and consumers wait for the slowest); atomics
// across blocks (the order of additions, and so the result, would change from run to run); groups of tokens in separate
// blocks that share w through the L2 (the multiply, not the memory, then bounds: 59 us for gate_up at 16 tokens).
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "argmax.cuh"
#include "async.cuh"
#include "launch.cuh"

namespace engine {

constexpr int TILE_ROWS = 16;   // rows of one mma operand
constexpr int TOKENS = 8;       // columns of one mma
constexpr int LANE_SUMS = 4;    // accumulators a lane holds per mma

// What the reducing warp does with finished sums.
enum class Epilogue : int {
    PARTIAL = 0,  // fp32 plane [slice][m][n]: the consumer adds the slices
    BF16 = 1,     // bf16 [m][n]; one slice only
    SWIGLU = 2,   // rows g, g + 8 of a tile are gate, up: bf16 [m][n / 2]; one slice only
    ARGMAX = 3,   // BF16, and each token's row of the largest value
};

struct SkinnyArgs {
    const uint8_t* weight;    // units, [n / 16][k / UNIT_K][UNIT_BYTES]
    const float* row_scale;   // [n]
    const void* x;            // [m][k], bf16 or e4m3
    void* out;
    int m, n, k;
    int slices;               // parts of K, one block column each
    int phases;               // parts of a block's slice of K
    int windows;              // parts of a block's row tiles
    int depth;                // units in flight per warp; chosen at launch from the shared memory that is left
    // Of ARGMAX alone.
    int64_t* ids;             // [m]
    unsigned long long* best; // [m], zero before and after
    int* arrived;             // [1], zero before and after
};

// Warps per block for MT groups of 8 tokens. Half as many for more than one group, whose sums need the registers and whose
// rows leave the ring little room, and wherever shared memory is scarce: sm_121a has an eighth of the bandwidth per
// multiprocessor to keep up with.
template <int MT>
constexpr int WARPS = MAX_SHARED_BYTES < 128 * 1024 || MT > 1 ? 8 : 16;

// Shared memory in order: ring, sums that wait between phases, barriers, then x and, once x is no longer read, the parts
// of tiles in which warps met. Where they fit, the parts of a single pass have a place of their own, which saves a barrier.
template <class W, int MT>
struct SkinnyShared {
    static constexpr size_t TILE_BYTES = size_t(MT) * 32 * LANE_SUMS * sizeof(float);
    // A warp's run can end inside two tiles at most: its first and its last.
    static constexpr size_t PART_BYTES = 2 * WARPS<MT> * TILE_BYTES;
    size_t sums, barriers, parts, x, total;
    __host__ __device__ SkinnyShared(int tokens, int phase_k, int waiting_tiles, bool overlaid, int depth) {
        sums = size_t(WARPS<MT>) * depth * W::UNIT_BYTES;
        barriers = sums + waiting_tiles * TILE_BYTES;
        parts = barriers + (WARPS<MT> * depth + 2) * sizeof(uint64_t);   // one per stage, one for x, and padding to 16 bytes
        x = parts + (overlaid ? 0 : PART_BYTES);
        const size_t x_bytes = size_t(tokens) * row_bytes(phase_k);
        total = x + (overlaid && x_bytes < PART_BYTES ? PART_BYTES : x_bytes);
    }
    // Bytes of one token's row; the padding makes the 8 lanes of a 16-byte access hit distinct banks.
    static __host__ __device__ int row_bytes(int columns) { return columns * W::X_BYTES + W::X_PAD; }
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

// The two row scales that this lane's sums of `tile` need. Loaded a tile ahead of their use: they come from DRAM.
template <class W>
__device__ __forceinline__ float2 row_scales(const SkinnyArgs& args, int tile, int lane) {
    const float* scale = args.row_scale + tile * TILE_ROWS + lane / 4;
    return make_float2(__ldg(scale) * W::EPILOGUE_SCALE, __ldg(scale + 8) * W::EPILOGUE_SCALE);
}

// The block's first row.
__device__ __forceinline__ int first_row(const SkinnyArgs& args) { return share_begin(args.n / TILE_ROWS, gridDim.x, blockIdx.x) * TILE_ROWS; }

// Scales a finished tile and writes it. Lane 4g + t holds rows g and g + 8 of tokens 2t and 2t + 1; of ARGMAX it keeps the
// near_key of the largest value it has written.
template <int MT, Epilogue E>
__device__ __forceinline__ void write_tile(const SkinnyArgs& args, int slice, int tile, int lane,
                                           float2 scales, const float4 (&sums)[MT], uint32_t (&largest)[MT][2]) {
    const int row = tile * TILE_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int token = i * TOKENS + (lane % 4) * 2 + j;
            if (token >= args.m) continue;
            const float a = (j ? sums[i].y : sums[i].x) * scales.x, b = (j ? sums[i].w : sums[i].z) * scales.y;
            if constexpr (E == Epilogue::PARTIAL) {
                float* plane = static_cast<float*>(args.out) + (size_t(slice) * args.m + token) * args.n;
                plane[row] = a, plane[row + 8] = b;
            } else if constexpr (E == Epilogue::BF16 || E == Epilogue::ARGMAX) {
                __nv_bfloat16* out = static_cast<__nv_bfloat16*>(args.out) + size_t(token) * args.n;
                const __nv_bfloat16 low = __float2bfloat16(a), high = __float2bfloat16(b);
                out[row] = low, out[row + 8] = high;
                if constexpr (E == Epilogue::ARGMAX) {
                    auto key = [&](__nv_bfloat16 v, int r) { return near_key(ordered_bf16(__float_as_uint(__bfloat162float(v)) >> 16), r); };
                    const int near = row - first_row(args);
                    largest[i][j] = larger(largest[i][j], larger(key(low, near), key(high, near + 8)));
                }
            } else {
                // gate and up are rounded to bf16 before the product, as the unfused chain rounds them
                const float gate = __bfloat162float(__float2bfloat16(a)), up = __bfloat162float(__float2bfloat16(b));
                const float silu = __bfloat162float(__float2bfloat16(gate / (1.f + __expf(-gate))));
                static_cast<__nv_bfloat16*>(args.out)[size_t(token) * (args.n / 2) + tile * (TILE_ROWS / 2) + lane / 4] =
                    __float2bfloat16(silu * up);
            }
        }
}

// From the lanes' keys to ids: the lanes of a warp, the warps of a block in shared memory (`mine`: 4 * m bytes of this warp,
// the next one's `stride` bytes further), the blocks in one atomic per token; the last one writes and clears.
template <int MT>
__device__ __forceinline__ void choose_ids(const SkinnyArgs& args, uint32_t (&largest)[MT][2], uint8_t* mine, size_t stride, int lane) {
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) largest[i][j] = larger(largest[i][j], __shfl_xor_sync(~0u, largest[i][j], offset));
            if (lane < 4) reinterpret_cast<uint32_t*>(mine)[i * TOKENS + lane * 2 + j] = largest[i][j];
        }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const bool used = lane < args.m;   // lane: the token
    if (used) {
        uint32_t top = 0;
        for (int warp = 0; warp < WARPS<MT>; warp++) top = larger(top, reinterpret_cast<const uint32_t*>(mine + warp * stride)[lane]);
        atomicMax(args.best + lane, static_cast<unsigned long long>(far_key(top, first_row(args))));
        __threadfence();
    }
    __syncwarp();
    int last = 0;
    if (lane == 0) {
        __threadfence();
        last = atomicAdd(args.arrived, 1) == int(gridDim.x) - 1;
    }
    if (!__shfl_sync(~0u, last, 0)) return;
    __threadfence();
    if (used) args.ids[lane] = argmax_id(atomicExch(args.best + lane, 0ull));
    if (lane == 0) *args.arrived = 0;
}

// One window of the block's tiles by one phase of its columns, and the run of units in it that is this warp's.
struct Pass {
    int tile_begin, tiles, unit_begin, units;   // units: per tile
    int begin, end;                             // of tiles * units
    bool first_phase, last_phase;
};

template <class W, int MT>
__device__ __forceinline__ Pass pass_of(const SkinnyArgs& args, int index, int warp) {
    const int window = index / args.phases, phase = index - window * args.phases;
    const int block_tiles = share_begin(args.n / TILE_ROWS, gridDim.x, blockIdx.x);
    const int tiles = share_begin(args.n / TILE_ROWS, gridDim.x, blockIdx.x + 1) - block_tiles;
    const int slice_units = share_begin(args.k / W::UNIT_K, args.slices, blockIdx.y);
    const int units = share_begin(args.k / W::UNIT_K, args.slices, blockIdx.y + 1) - slice_units;
    Pass pass;
    pass.tile_begin = block_tiles + share_begin(tiles, args.windows, window);
    pass.tiles = block_tiles + share_begin(tiles, args.windows, window + 1) - pass.tile_begin;
    pass.unit_begin = slice_units + share_begin(units, args.phases, phase);
    pass.units = slice_units + share_begin(units, args.phases, phase + 1) - pass.unit_begin;
    pass.begin = share_begin(pass.tiles * pass.units, WARPS<MT>, warp);
    pass.end = share_begin(pass.tiles * pass.units, WARPS<MT>, warp + 1);
    pass.first_phase = phase == 0, pass.last_phase = phase == args.phases - 1;
    return pass;
}

template <class W, int MT, bool PHASED, Epilogue E>
__global__ void __launch_bounds__(WARPS<MT> * 32, 1) skinny_kernel(const SkinnyArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, depth = args.depth, slice = blockIdx.y;
    const int units_k = args.k / W::UNIT_K, passes = PHASED ? args.phases * args.windows : 1;
    Pass pass = pass_of<W, MT>(args, 0, warp);

    const int most_units = (units_k + args.slices - 1) / args.slices, phase_units = (most_units + args.phases - 1) / args.phases;
    const int most_tiles = (args.n / TILE_ROWS + gridDim.x - 1) / gridDim.x, window_tiles = (most_tiles + args.windows - 1) / args.windows;
    const SkinnyShared<W, MT> layout(args.m, phase_units * W::UNIT_K, args.phases > 1 ? window_tiles : 0, PHASED, depth);
    uint8_t* ring = shared + size_t(warp) * depth * W::UNIT_BYTES;
    float4* waiting = reinterpret_cast<float4*>(shared + layout.sums);
    uint64_t* x_arrived = reinterpret_cast<uint64_t*>(shared + layout.barriers);
    uint64_t* full = x_arrived + 2 + warp * depth;
    float4* parts = reinterpret_cast<float4*>(shared + layout.parts);
    uint8_t* x_shared = shared + layout.x;

    // Units are fetched in the order they are consumed, across passes. Lane 0 alone keeps these.
    const uint64_t policy = evict_first_policy();
    Pass ahead = pass;
    int next_pass = 0, next_unit = 0, next_column = 0;
    const uint8_t* next = nullptr;
    auto open_pass = [&] {
        next_unit = ahead.begin, next_column = ahead.begin % ahead.units;
        next = args.weight + (size_t(ahead.tile_begin + ahead.begin / ahead.units) * units_k + ahead.unit_begin + next_column) * W::UNIT_BYTES;
    };
    auto fetch = [&](int stage) {
        barrier_expect_bytes(full + stage, W::UNIT_BYTES);
        bulk_load(ring + stage * W::UNIT_BYTES, next, W::UNIT_BYTES, full + stage, policy);
        next_unit++, next += W::UNIT_BYTES;
        if (++next_column == ahead.units) next_column = 0, next += size_t(units_k - ahead.units) * W::UNIT_BYTES;
        if constexpr (PHASED)
            while (next_unit >= ahead.end && ++next_pass < passes) ahead = pass_of<W, MT>(args, next_pass, warp), open_pass();
    };
    if (lane == 0) {
        for (int i = 0; i < depth; i++) barrier_init(full + i, 1);
        if (warp == 0) barrier_init(x_arrived, 1);
        barrier_init_fence();
        open_pass();
        if constexpr (PHASED)
            while (next_unit >= ahead.end && ++next_pass < passes) ahead = pass_of<W, MT>(args, next_pass, warp), open_pass();
        for (int i = 0; i < depth && next_unit < ahead.end; i++) fetch(i);
        if (warp == WARPS<MT> - 1) prefetch_l2(args.row_scale + pass.tile_begin * TILE_ROWS, pass.tiles * TILE_ROWS * sizeof(float));
    }
    __syncthreads();

    // Weights are on their way; x is the previous kernel's output. One warp waits for that kernel and copies x, and all
    // others follow through the barrier, so none writes `out` while the previous kernel may still read it.
    // Every block starts elsewhere: all would otherwise ask the same part of the L2 for the same bytes at the same time.
    auto load_x = [&] {
        constexpr int CHUNK_UNITS = 2048 / (W::UNIT_K * W::X_BYTES);
        const int row_chunks = (pass.units + CHUNK_UNITS - 1) / CHUNK_UNITS, chunks = args.m * row_chunks;
        if (lane == 0) barrier_expect_bytes(x_arrived, args.m * pass.units * W::UNIT_K * W::X_BYTES);
        __syncwarp();
        for (int i = lane; i < chunks; i += 32) {
            const int chunk = (i + blockIdx.x) % chunks, token = chunk / row_chunks, unit = (chunk - token * row_chunks) * CHUNK_UNITS;
            bulk_load(x_shared + token * layout.row_bytes(pass.units * W::UNIT_K) + unit * W::UNIT_K * W::X_BYTES,
                      static_cast<const uint8_t*>(args.x) + (size_t(token) * args.k + size_t(pass.unit_begin + unit) * W::UNIT_K) * W::X_BYTES,
                      min(CHUNK_UNITS, pass.units - unit) * W::UNIT_K * W::X_BYTES, x_arrived);
        }
    };
    if (warp == 0) {
        wait_for_previous_kernel();
        load_x();
    }
    let_next_kernel_start();

    uint32_t largest[MT][2] = {};
    int stage = 0, parity = 0;
    for (int index = 0; index < passes; index++) {
        const int total_units = pass.tiles * pass.units, units = pass.units;
        barrier_wait(x_arrived, index % 2);
        // A column of the product depends on its own token alone, so columns past the last may multiply any finite row.
        int token_row[MT];
#pragma unroll
        for (int i = 0; i < MT; i++) token_row[i] = min(i * TOKENS + lane / 4, args.m - 1) * layout.row_bytes(units * W::UNIT_K);

        float4 sums[MT], first[MT];   // first: of the run's first tile, where another warp began it
        float2 scales;
        auto finish = [&](int tile) {
            if constexpr (PHASED) {
                float4* kept = waiting + size_t(tile) * MT * 32 + lane;
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    if (!pass.first_phase) {
                        const float4 k = kept[i * 32];
                        sums[i].x += k.x, sums[i].y += k.y, sums[i].z += k.z, sums[i].w += k.w;
                    }
                    if (!pass.last_phase) kept[i * 32] = sums[i];
                }
                if (!pass.last_phase) return;
            }
            write_tile<MT, E>(args, slice, pass.tile_begin + tile, lane, scales, sums, largest);
        };
        bool has_first = false, has_last = false;
        for (int unit = pass.begin; unit < pass.end;) {
            const int tile = unit / units, tile_end = min((tile + 1) * units, pass.end);
            const bool whole = unit == tile * units && tile_end == (tile + 1) * units;
            const bool at_begin = unit == pass.begin;
            scales = row_scales<W>(args, pass.tile_begin + tile, lane);
            int column = unit - tile * units;
            // Of one group of tokens two sums, so that a multiply-add need not wait for the one before.
            constexpr int CHAINS = MT == 1 ? 2 : 1;
            float chains[CHAINS][MT][LANE_SUMS] = {};
            for (; unit < tile_end; unit++, column++) {
                barrier_wait(full + stage, parity);
                W::template multiply<CHAINS>(ring + stage * W::UNIT_BYTES, x_shared + column * W::UNIT_K * W::X_BYTES, token_row, lane, chains);
                __syncwarp();   // every lane has read the stage before it is refilled
                if (lane == 0 && next_unit < ahead.end) fetch(stage);
                if (++stage == depth) stage = 0, parity ^= 1;
            }
#pragma unroll
            for (int i = 0; i < MT; i++) {
                sums[i] = make_float4(chains[0][i][0], chains[0][i][1], chains[0][i][2], chains[0][i][3]);
                if constexpr (CHAINS == 2)
                    sums[i].x += chains[1][i][0], sums[i].y += chains[1][i][1], sums[i].z += chains[1][i][2], sums[i].w += chains[1][i][3];
            }
            if (whole) {
                finish(tile);
            } else if (at_begin) {
                has_first = true;
#pragma unroll
                for (int i = 0; i < MT; i++) first[i] = sums[i];
            } else {
                has_last = true;
            }
        }

        // Tiles in which warps met, one per warp in turn.
        auto part = [&](int owner, bool last, int i) -> float4& { return parts[((owner * 2 + last) * MT + i) * 32 + lane]; };
        if constexpr (PHASED) __syncthreads();   // the parts lie where x was
#pragma unroll
        for (int i = 0; i < MT; i++) {
            if (has_first) part(warp, false, i) = first[i];
            if (has_last) part(warp, true, i) = sums[i];
        }
        scales = row_scales<W>(args, pass.tile_begin + min(warp, pass.tiles - 1), lane);
        __syncthreads();
        for (int tile = warp; tile < pass.tiles; tile += WARPS<MT>) {
            const int begin = share_owner(total_units, WARPS<MT>, tile * units), end = share_owner(total_units, WARPS<MT>, (tile + 1) * units - 1);
            if (tile != warp) scales = row_scales<W>(args, pass.tile_begin + tile, lane);
            if (begin == end) continue;
#pragma unroll
            for (int i = 0; i < MT; i++) {
                sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
                for (int owner = begin; owner <= end; owner++) {
                    const int run = share_begin(total_units, WARPS<MT>, owner);
                    if (run == share_begin(total_units, WARPS<MT>, owner + 1)) continue;   // fewer units than warps
                    const float4 p = part(owner, run < tile * units, i);
                    sums[i].x += p.x, sums[i].y += p.y, sums[i].z += p.z, sums[i].w += p.w;
                }
            }
            finish(tile);
        }
        if (PHASED && index + 1 < passes) {
            pass = pass_of<W, MT>(args, index + 1, warp);
            __syncthreads();   // the parts have been read
            if (warp == 0) load_x();
        }
    }
    // A warp's ring is its own, and all units that it has asked for have come and gone.
    if constexpr (E == Epilogue::ARGMAX) choose_ids<MT>(args, largest, ring, size_t(depth) * W::UNIT_BYTES, lane);
}

// Units in flight per warp, of 16. Measured: 2 and 3 are best; deeper rings delay the tokens behind their own burst. Rejected:
// three more units a warp prefetched to the L2 before the wait, where memory has nothing to do: a step of the 35B took 0.4 to
// 4 % longer, of the 27B from 0.7 % less to 2.1 % more (results/h200/bench/20261130-67e4b19-l2-and-side-streams.txt).
constexpr int MAX_DEPTH = 3;

// Launches over `blocks` x slices. cudaErrorInvalidConfiguration when not even one unit per warp fits beside the tokens:
// ask for more phases or windows.
template <class W, int MT, bool PHASED, Epilogue E>
cudaError_t launch_skinny(SkinnyArgs args, int blocks, bool dependent, void* stream) {
    const int units_k = args.k / W::UNIT_K, most_units = (units_k + args.slices - 1) / args.slices;
    const int most_tiles = (args.n / TILE_ROWS + blocks - 1) / blocks;
    auto bytes = [&](int depth) {
        return SkinnyShared<W, MT>(args.m, (most_units + args.phases - 1) / args.phases * W::UNIT_K,
                                   args.phases > 1 ? (most_tiles + args.windows - 1) / args.windows : 0, PHASED, depth).total;
    };
    if constexpr (!PHASED)
        if (bytes(2) > MAX_SHARED_BYTES) return launch_skinny<W, MT, true, E>(args, blocks, dependent, stream);
    args.depth = MAX_DEPTH * 16 / WARPS<MT>;
    while (args.depth > 0 && bytes(args.depth) > MAX_SHARED_BYTES) args.depth--;
    if (args.depth == 0) return cudaErrorInvalidConfiguration;
    auto kernel = skinny_kernel<W, MT, PHASED, E>;
    if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(MAX_SHARED_BYTES)))
        return error;
    // One block per multiprocessor: under dependent launch a second one would settle wherever a multiprocessor happens to
    // be free first, and leave others without (measured: 104 instead of 78 us per layer).
    const size_t shared = bytes(args.depth) > MAX_SHARED_BYTES / 2 ? bytes(args.depth) : MAX_SHARED_BYTES / 2 + 1024;
    return launch(kernel, dim3(blocks, args.slices), WARPS<MT> * 32, shared, dependent, stream, args);
}

// The instantiation for this many tokens.
template <class W, Epilogue E>
cudaError_t dispatch_skinny(const SkinnyArgs& args, int blocks, bool dependent, void* stream) {
    const bool phased = args.phases * args.windows > 1;
    if (args.m <= TOKENS) return phased ? launch_skinny<W, 1, true, E>(args, blocks, dependent, stream) : launch_skinny<W, 1, false, E>(args, blocks, dependent, stream);
    if (args.m <= 2 * TOKENS) return phased ? launch_skinny<W, 2, true, E>(args, blocks, dependent, stream) : launch_skinny<W, 2, false, E>(args, blocks, dependent, stream);
    return phased ? launch_skinny<W, 4, true, E>(args, blocks, dependent, stream) : launch_skinny<W, 4, false, E>(args, blocks, dependent, stream);
}

// Whether a shape and its cut are inside the contract.
template <class W>
bool valid_skinny(const SkinnyArgs& args, int blocks, Epilogue epilogue) {
    if (args.m < 1 || args.m > 4 * TOKENS || args.n % TILE_ROWS || args.k % W::UNIT_K || args.slices < 1 || blocks < 1) return false;
    const int units = args.k / W::UNIT_K / args.slices, tiles = args.n / TILE_ROWS / blocks;   // of the least block
    return args.phases >= 1 && args.phases <= units && args.windows >= 1 && args.windows <= tiles &&
           (epilogue == Epilogue::PARTIAL || args.slices == 1) &&
           (epilogue != Epilogue::ARGMAX || (tiles + 1) * TILE_ROWS <= MAX_NEAR_ROWS);
}

}  // namespace engine
