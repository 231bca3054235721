// What the products of a mixture's chosen experts share (ops/moe): their arguments, and what becomes of a pair's sums.
//
// A pair is one token at one of its experts: pair = token * slots + slot. Pairs lie sorted by expert; an entry is one expert
// and its next few pairs (route.cuh).
#pragma once
#include <type_traits>

#include "launch.cuh"
#include "math.cuh"
#include "w4a16.cuh"
#include "w8a8.cuh"

namespace engine {

enum class Output : int {
    SWIGLU = 0,     // x by token; rows g, g + 8 of a tile are gate, up: bf16 [pair][n / 2]
    WEIGHTED = 1,   // x by pair; rounded to bf16, times the pair's weight: fp32 [slot][token][n]
    PAIR = 2,       // x by pair; bf16 [pair][n]: the next norm multiplies by the weights
};

struct GroupedArgs {
    const uint8_t* weight;      // units of W, [experts][n / 16][k / W::UNIT_K][W::UNIT_BYTES]
    const float* row_scale;     // [experts][n]
    const uint8_t* x;           // [tokens or pairs][k], bf16; of W8A8 e4m3
    void* out;
    const int4* entries;        // {expert, first of its pairs, how many, 0}
    const int* entry_count;
    const int* pairs;
    const float* weights;       // by pair; of WEIGHTED
    int m, slots, n, k;

    // Offsets are kept in 32 bits.
    template <class W = W4A16>
    bool valid() const {
        constexpr double MOST = 2147483647.;
        return m >= 1 && slots >= 1 && n >= TILE_ROWS && n % TILE_ROWS == 0 && k >= W::UNIT_K && k % W::UNIT_K == 0 &&
               double(m) * slots * n <= MOST && double(m) * slots * k * W::X_BYTES <= MOST;
    }
};

// Of W8A8: a row of x is codes times a scale of its own.
struct ScaledArgs : GroupedArgs {
    const float* x_scale;       // [tokens or pairs]
};
template <class W>
constexpr bool SCALED = std::is_same_v<W, W8A8>;
template <class W>
using ArgsOf = std::conditional_t<SCALED<W>, ScaledArgs, GroupedArgs>;

// The row of x that is multiplied for `pair`.
template <Output O>
__device__ __forceinline__ int x_row(const GroupedArgs& args, int pair) {
    return O == Output::SWIGLU ? pair / args.slots : pair;
}

// Bytes from x to the row of `pair`. By x_row it is the same program and got other code (seen in moe/wide.cu).
template <Output O, class W = W4A16>
__device__ __forceinline__ int x_offset(const GroupedArgs& args, int pair) {
    return (O == Output::SWIGLU ? pair / args.slots : pair) * args.k * W::X_BYTES;
}

// Elements from args.out to the row that takes the sums of `pair`.
template <Output O>
__device__ __forceinline__ int out_offset(const GroupedArgs& args, int pair) {
    if constexpr (O == Output::SWIGLU) return pair * (args.n / 2);
    if constexpr (O == Output::PAIR) return pair * args.n;
    const int token = pair / args.slots;
    return ((pair - token * args.slots) * args.m + token) * args.n;
}

// Where the sums of a lane's two pairs of a group of eight go: the same for all row tiles of an entry.
template <Output O>
struct Columns {
    int out[2];        // elements from args.out to the pair's row; -1: no such pair
    float weight[2];   // of WEIGHTED
};

// pair: of the lane's column, lane / 4, of this group; begin: the group's first column, count: of the entry.
template <Output O>
__device__ __forceinline__ Columns<O> columns_of(const GroupedArgs& args, int pair, int begin, int count, int lane) {
    Columns<O> columns;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int column = lane % 4 * 2 + j, p = __shfl_sync(~0u, pair, column * 4);
        columns.weight[j] = O == Output::WEIGHTED ? __ldcg(args.weights + p) : 0.f;
        columns.out[j] = begin + column >= count ? -1 : out_offset<O>(args, p);
    }
    return columns;
}

// The rows of x of the lane's two pairs of a group; pair: as columns_of takes it.
template <Output O>
__device__ __forceinline__ int2 x_rows(const GroupedArgs& args, int pair, int lane) {
    const int column = lane % 4 * 2, first = __shfl_sync(~0u, pair, column * 4), second = __shfl_sync(~0u, pair, column * 4 + 4);
    return make_int2(x_row<O>(args, first), x_row<O>(args, second));
}

// A lane's sums times its two columns' scales.
__device__ __forceinline__ float4 times_columns(float4 sums, float2 scales) {
    return make_float4(sums.x * scales.x, sums.y * scales.y, sums.z * scales.x, sums.w * scales.y);
}

// The two row scales that this lane's sums of a tile need: to be loaded long before their use.
__device__ __forceinline__ float2 expert_scales(const GroupedArgs& args, int expert, int tile, int lane) {
    const float* scale = args.row_scale + size_t(expert) * args.n + tile * TILE_ROWS + lane / 4;
    return make_float2(__ldg(scale), __ldg(scale + 8));
}

// Lane 4g + t holds rows g and g + 8 of columns 2t and 2t + 1. By all lanes of a warp.
//
// PAIR: lanes of an even g and of the odd one after it trade, so that the first has rows g and g + 1 of both columns and the
// second rows g + 7 and g + 8. Each stores 4 bytes of a column at a time, the warp 32 of each, which is a whole sector: as
// they lie it would take twice as many stores, of half a sector each.
template <Output O, class W = W4A16>
__device__ __forceinline__ void write_pairs(const GroupedArgs& args, const Columns<O>& columns, int tile, int lane, float2 scales, float4 sums) {
    const float low = scales.x * W::EPILOGUE_SCALE, high = scales.y * W::EPILOGUE_SCALE;
    if constexpr (O == Output::PAIR) {
        const bool odd = lane & 4;
        const uint32_t lows = pack_bf16(sums.x * low, sums.y * low), highs = pack_bf16(sums.z * high, sums.w * high);
        const uint32_t mine = odd ? highs : lows, theirs = __shfl_xor_sync(~0u, odd ? lows : highs, 4);
        const uint32_t first = odd ? theirs : mine, second = odd ? mine : theirs;   // of two rows, a column in each half
        bf16* out = static_cast<bf16*>(args.out) + tile * TILE_ROWS + lane / 4 + (odd ? 7 : 0);
        if (columns.out[0] >= 0) *reinterpret_cast<uint32_t*>(out + columns.out[0]) = __byte_perm(first, second, 0x5410);
        if (columns.out[1] >= 0) *reinterpret_cast<uint32_t*>(out + columns.out[1]) = __byte_perm(first, second, 0x7632);
    } else {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (columns.out[j] < 0) continue;
            const float a = (j ? sums.y : sums.x) * low, b = (j ? sums.w : sums.z) * high;
            if constexpr (O == Output::SWIGLU) {
                const float gate = round_bf16(a), up = round_bf16(b);
                static_cast<bf16*>(args.out)[columns.out[j] + tile * (TILE_ROWS / 2) + lane / 4] =
                    __float2bfloat16(round_bf16(gate / (1.f + __expf(-gate))) * up);
            } else {
                float* out = static_cast<float*>(args.out) + columns.out[j] + tile * TILE_ROWS + lane / 4;
                out[0] = round_bf16(a) * columns.weight[j], out[8] = round_bf16(b) * columns.weight[j];
            }
        }
    }
}

}  // namespace engine
