// The largest of bf16 values, the lowest id among equals: what ops/sample and the product of lm_head have in common.
//
// A candidate is one integer, the ordered bits of the value above the complement of its id, so that the maximum of keys is
// the answer and the order in which they meet is no matter. 0 is below every candidate.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace engine {

// 16 bits that order as floats do: a set sign flips all bits, a clear one only itself. -0 is made +0, its equal; NaN is the
// largest, all of them one.
__device__ __forceinline__ uint32_t ordered_bf16(uint32_t bits) {
    if (bits == 0x8000u) bits = 0;
    if ((bits & 0x7FFFu) > 0x7F80u) bits = 0x7FFFu;
    return bits & 0x8000u ? ~bits & 0xFFFFu : bits | 0x8000u;
}

__device__ __forceinline__ uint64_t argmax_key(uint32_t ordered, int id) { return uint64_t(ordered) << 32 | uint32_t(~id); }
__device__ __forceinline__ int64_t argmax_id(uint64_t key) { return int64_t(~uint32_t(key)); }

// The same in 32 bits, of rows 0.. of a block whose first is `first`: at most 2^16.
constexpr int MAX_NEAR_ROWS = 1 << 16;
__device__ __forceinline__ uint32_t near_key(uint32_t ordered, int row) { return ordered << 16 | uint32_t(MAX_NEAR_ROWS - 1 - row); }
__device__ __forceinline__ uint64_t far_key(uint32_t near, int first) {
    return argmax_key(near >> 16, first + MAX_NEAR_ROWS - 1 - int(near & 0xFFFFu));
}

template <class Key>
__device__ __forceinline__ Key larger(Key a, Key b) { return a > b ? a : b; }

}  // namespace engine
