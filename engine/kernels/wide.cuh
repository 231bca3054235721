// Wide W4A16 products on Hopper: more tokens than a streaming kernel takes, by warpgroup products (wgmma.cuh). What
// ops/moe/wide.cu and ops/w4a16/wide.cu share: a block's shared memory, its weights' rings, x on its way, the product.
//
// A task of a block is 256 or 128 rows of a matrix, up to PAIRS tokens (rows of x), and a run of columns. Two warpgroups multiply,
// each two tiles of 64 rows at a time, or one; a third one gathers x. Weights go from a warp's private ring to registers, where they become bf16, and
// from there straight into the product as its A operand: its layout is mma.sync's, so that units serve both. x is B, read by the
// product itself from shared memory: no instruction of a warp loads it, and a weight is unpacked once for PAIRS tokens.
//
//        columns ->     0..255   256..511 ...      x of PAIRS tokens in X_STAGES stages, swizzled as the product reads it
//   warps 0-3  64 rows  unit     unit              part of 64 columns: unpacked into one set of registers while the
//              64 rows  unit     unit              products of the part before read the other
//   warps 4-7  128 rows more
//   warps 8-11 gather x
//
// Order of columns. A lane owns 16 columns of each 64 in a unit (w4a16.cuh), so that one product's 16 columns are, of lane t
// of four, columns 16 t + 4 step to 16 t + 4 step + 3. x is put in that order on its way into shared memory, by 4-byte copies:
// word 8 t + 2 s + h of a row's 64 columns goes to word 8 s + 4 h + t. Rejected: x in that order in global memory (16-byte
// copies, a quarter as many): the norm, the router's columns and SwiGLU's stores would all have to know it.
#pragma once
#include "stage.cuh"
#include "turn.cuh"
#include "w4a16.cuh"
#include "wgmma.cuh"

namespace engine {

constexpr int GROUP_WARPS = 4;                          // of a warpgroup
constexpr int PRODUCT_WARPS = 2 * GROUP_WARPS;
constexpr int WIDE_WARPS = PRODUCT_WARPS + GROUP_WARPS;
constexpr int PARTS = 4, STEPS = 4;                     // of a unit: 64 columns; of a part: one product's 16
static_assert(W4A16::UNIT_K * W4A16::X_BYTES == PARTS * 128, "a part is a row of the swizzled atom");
// Registers of a thread: 65,536 for 384 threads, moved from those that gather.
constexpr int GATHER_REGISTERS = 40, PRODUCT_REGISTERS = 232;

// TILES: of a warp.
template <int PAIRS_, int TILES_, int X_STAGES_, int DEPTH_>
struct Wide {
    static constexpr int PAIRS = PAIRS_, TILES = TILES_, X_STAGES = X_STAGES_, DEPTH = DEPTH_;
    static constexpr int GROUPS = PAIRS / TOKENS;
    static constexpr int ROWS = PRODUCT_WARPS * TILES * TILE_ROWS;
    static constexpr int STAGE_BYTES = TILES * W4A16::UNIT_BYTES;   // a column of a warp's weights
    static constexpr int PART_BYTES = PAIRS * 128;      // x of one part
    static constexpr int X_BYTES = PARTS * PART_BYTES;
    static constexpr size_t RING_AT = size_t(X_STAGES) * X_BYTES;
    static constexpr size_t BARRIERS_AT = RING_AT + size_t(PRODUCT_WARPS) * DEPTH * STAGE_BYTES;
    static constexpr size_t SHARED_BYTES = BARRIERS_AT + (PRODUCT_WARPS * DEPTH + 2 * X_STAGES) * sizeof(uint64_t);
    static constexpr bool FITS = SHARED_BYTES <= MAX_SHARED_BYTES;   // not on sm_121, which has no such products either
    using Sums = float[TILES][GROUPS][LANE_SUMS];
};

template <class W>
struct WideBarriers {
    uint64_t *x_full, *x_empty, *full;   // the last: DEPTH of each multiplying warp
    __device__ explicit WideBarriers(uint8_t* shared)
        : x_full(reinterpret_cast<uint64_t*>(shared + W::BARRIERS_AT)), x_empty(x_full + W::X_STAGES), full(x_empty + W::X_STAGES) {}
    __device__ void init() const {   // by one thread, with a barrier behind it
        for (int i = 0; i < W::X_STAGES; i++) barrier_init(x_full + i, GROUP_WARPS * 32), barrier_init(x_empty + i, PRODUCT_WARPS * ARRIVALS_PER_WARP);
        for (int i = 0; i < PRODUCT_WARPS * W::DEPTH; i++) barrier_init(full + i, 1);
        barrier_init_fence();
    }
};

// x on its way, by one warp of four: rows 4 i + warp.
template <class W>
struct WideGather {
    uint8_t* stages;
    uint64_t *full, *empty;
    int warp, lane;
    Turn turn = {};

    // One column of 256. offset: lane i's, in bytes from `x` to the row 4 i + warp; rows: how many of them, at most 32.
    __device__ __forceinline__ void column(const uint8_t* x, int column, int offset, int rows) {
        barrier_wait(empty + turn.stage, turn.parity ^ 1);   // the first time round nobody has to give it back
        uint8_t* stage = stages + turn.stage * W::X_BYTES + lane % 4 * 4;
        const uint8_t* source = x + column * (PARTS * 128) + (lane % 4 * 8 + lane / 4) * 4;   // the word that becomes word `lane` of 32
#pragma unroll 4
        for (int i = 0; i < rows; i++) {
            const int row = i * GROUP_WARPS + warp;
            uint8_t* target = stage + row * 128 + ((lane / 4 ^ row % 8) << 4);
            const uint8_t* from = source + __shfl_sync(~0u, offset, i);
#pragma unroll
            for (int part = 0; part < PARTS; part++) async_load4(target + part * W::PART_BYTES, from + part * 128);
        }
        async_arrive(full + turn.stage);
        turn.advance(W::X_STAGES);
    }
    __device__ __forceinline__ void finish() {   // all has landed
        for (int i = 0; i < W::X_STAGES; i++, turn.advance(W::X_STAGES)) barrier_wait(empty + turn.stage, turn.parity ^ 1);
    }
};

// A warp's units in the order in which they are multiplied, across tasks. Lane 0 alone has a use for it. Tasks: all(),
// columns(task), units(task, warp): the warp's first tile's, the others GROUP_WARPS tiles of `row_units` units further on each, and
// scales(task, warp): their row scales, which are brought into the L2. ONCE: no other block reads the same weights, so that they
// need not stay in the L2.
template <class W, class Tasks, bool ONCE>
struct WideRing {
    const Tasks& tasks;
    uint8_t* stages;
    uint64_t* full;
    const int warp;
    const int tile_bytes;
    int task = blockIdx.x, columns_left = 0;
    const uint8_t* next = nullptr;

    __device__ WideRing(const Tasks& tasks, uint8_t* shared, const WideBarriers<W>& barriers, int warp, int row_units)
        : tasks(tasks), stages(shared + W::RING_AT + size_t(warp) * W::DEPTH * W::STAGE_BYTES), full(barriers.full + warp * W::DEPTH), warp(warp),
          tile_bytes(GROUP_WARPS * row_units * W4A16::UNIT_BYTES) {
        open();
    }
    __device__ void open() {
        if (task >= tasks.all()) return;
        next = tasks.units(task, warp), columns_left = tasks.columns(task);
        for (int t = 0; t < W::TILES; t++) prefetch_l2(tasks.scales(task, warp) + t * GROUP_WARPS * TILE_ROWS, TILE_ROWS * sizeof(float));
    }
    __device__ void fetch(int stage) {
        if (task >= tasks.all()) return;
        barrier_expect_bytes(full + stage, W::STAGE_BYTES);
#pragma unroll
        for (int t = 0; t < W::TILES; t++) {
            uint8_t* to = stages + stage * W::STAGE_BYTES + t * W4A16::UNIT_BYTES;
            if constexpr (ONCE) bulk_load(to, next + t * tile_bytes, W4A16::UNIT_BYTES, full + stage, evict_first_policy());
            else bulk_load(to, next + t * tile_bytes, W4A16::UNIT_BYTES, full + stage);
        }
        next += W4A16::UNIT_BYTES;
        if (--columns_left == 0) task += gridDim.x, open();
    }
    __device__ void fill() {
        for (int i = 0; i < W::DEPTH; i++) fetch(i);
    }
};

template <class W>
struct WideX {
    const uint8_t* stages;
    uint64_t *full, *empty;
    Turn turn = {};

    // The stage before this one: the warp has waited for every product of it. Nothing else between products under way: a branch,
    // which __syncwarp is enough to bring about, and ptxas serialises them (C7513).
    __device__ __forceinline__ void give_back(int lane) const {
        if (gives_back(lane)) barrier_arrive(empty + (turn.stage == 0 ? W::X_STAGES : turn.stage) - 1);
    }
};

// sums[tile][group] += the warpgroup's tiles, `columns` columns of 256, for GROUPS groups of eight tokens.
//
// A part is unpacked into one set of registers while the products of the part before read the other. With one tile that goes on from
// one column to the next. Two tiles have no registers for it, and ptxas would serialise all products (C7512): a column's are awaited
// at its end. Rejected: two tiles in turn, each a part of its own, which fits: an H200 took 10 % longer over 128 tokens.
template <class W, int GROUPS, class Ring>
__device__ __forceinline__ void multiply_wide(Ring& ring, Turn& turn, WideX<W>& x, int columns, int lane, typename W::Sums& sums) {
    constexpr bool ACROSS = W::TILES == 1;
    uint32_t a[2][W::TILES][STEPS][4];
#pragma unroll 1
    for (int column = 0; column < columns; column++) {
        barrier_wait(ring.full + turn.stage, turn.parity);
        const uint8_t* units = ring.stages + turn.stage * W::STAGE_BYTES;
        uint2 scales[W::TILES];
#pragma unroll
        for (int t = 0; t < W::TILES; t++) scales[t] = reinterpret_cast<const uint2*>(units + t * W4A16::UNIT_BYTES + 2048)[lane];
        auto await_x = [&] {
            barrier_wait(x.full + x.turn.stage, x.turn.parity);
            wgmma_sees_shared();
        };
        if (!ACROSS) await_x();
        const uint8_t* tokens = x.stages + x.turn.stage * W::X_BYTES;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            uint32_t(&own)[W::TILES][STEPS][4] = a[part % 2];
#pragma unroll
            for (int t = 0; t < W::TILES; t++) {
                const uint4 codes = reinterpret_cast<const uint4*>(units + t * W4A16::UNIT_BYTES)[part * 32 + lane];
                const uint32_t pair = part < 2 ? scales[t].x : scales[t].y;
                const uint32_t low = W4A16::scale(pair, part % 2 * 2), high = W4A16::scale(pair, part % 2 * 2 + 1);
                W4A16::operand(codes.x, low, high, own[t][0]);
                W4A16::operand(codes.y, low, high, own[t][1]);
                W4A16::operand(codes.z, low, high, own[t][2]);
                W4A16::operand(codes.w, low, high, own[t][3]);
            }
            if (ACROSS && part == 0) await_x();   // unpacking does not need it; two tiles would spill
#pragma unroll
            for (int t = 0; t < W::TILES; t++)
#pragma unroll
                for (int step = 0; step < STEPS; step++) wgmma_operands(own[t][step]);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int t = 0; t < W::TILES; t++) wgmma_bf16<GROUPS>(sums[t], own[t][step], swizzled_rows(tokens + part * W::PART_BYTES, step));
            wgmma_commit();
            if (ACROSS || part < PARTS - 1) wgmma_wait<1>();   // of the part before: its registers are free
            else wgmma_wait<0>();
            if (ACROSS && part == 0 && column > 0) x.give_back(lane);   // of the column before, whose last products those were
        }
        if (!ACROSS) {
#pragma unroll
            for (int t = 0; t < W::TILES; t++) wgmma_sums(sums[t]);
        }
        __syncwarp();   // every lane has read the stages before they are given back
        if (gives_back(lane)) {
            if (!ACROSS) barrier_arrive(x.empty + x.turn.stage);
            if (goes_on(lane)) ring.fetch(turn.stage);
        }
        turn.advance(W::DEPTH), x.turn.advance(W::X_STAGES);
    }
    if (!ACROSS) return;
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < W::TILES; t++) wgmma_sums(sums[t]);
    x.give_back(lane);
}

}  // namespace engine
