// Matrix descriptors of warpgroup products: how B lies in shared memory, with 128-byte swizzle. PTX ISA 9.0, section 9.7.15.5.1.
//
//     bits  0-13  start address     of the first row and column, in units of 16 bytes, as both offsets are
//          16-29  leading offset    rows: unused, 1; columns: to the next 64 columns
//          32-45  stride offset     rows: to the next 8 rows; columns: to the next 8 rows of k
//          49-51  base offset       0: atoms begin on multiples of 1,024 bytes
//          62-63  swizzle           1: 128 bytes
//
// A file of its own, so that the CPU emulator reads the bits themselves.
#pragma once
#include <cstdint>

#include "async.cuh"

namespace engine {

// B as N rows of 64 k-columns, 128 bytes each, 8 rows to an atom of 1,024 bytes, 16-byte chunks swizzled: chunk c of row r
// lies at c ^ (r % 8). `tile` on a multiple of 1,024 bytes; step: which 16 of the 64 columns.
__device__ __forceinline__ uint64_t swizzled_rows(const void* tile, int step) {
    constexpr uint64_t ATOM = uint64_t(1024 / 16) << 32, SWIZZLE_128B = uint64_t(1) << 62;
    return SWIZZLE_128B | ATOM | uint64_t(1) << 16 | (shared_address(tile) + step * 32 & 0x3FFFF) >> 4;
}

// The other way round: B's columns lie in rows of 64, and its k-columns one row after another, in the same atoms. 64 columns
// more are `panel_bytes` further on. step: which 16 rows. For wgmma_bf16_columns.
__device__ __forceinline__ uint64_t swizzled_columns(const void* tile, int step, int panel_bytes) {
    constexpr uint64_t ATOM = uint64_t(1024 / 16) << 32, SWIZZLE_128B = uint64_t(1) << 62;
    return SWIZZLE_128B | ATOM | uint64_t(panel_bytes / 16) << 16 | (shared_address(tile) + step * 2048 & 0x3FFFF) >> 4;
}

}  // namespace engine
