// Packed units -> row-major matrices for a library product, and SwiGLU of its interleaved columns: what prefill needs.
//
//   w4a16: bf16(e2m1 * block scale * row scale), the first product exact, one rounding;  w8a8: the same bytes, moved
//
// Bytes: a 2,304-byte unit becomes 8,192 bytes (3.6 times), a 2,048-byte one 2,048; read once, written once. A thread
// takes 16 bytes as the units lie, which are one NVFP4 block of rows g and g + 8 each, or 16 columns of one row; four
// neighbours write 128 (64) contiguous bytes of a row. The units are those of engine/ops/{w4a16,w8a8}/pack.py.
//
// Rejected for w4a16: code by code in fp32 (some 300 instructions a thread: 340 us of issue for the 1.07 billion weights of
// four layers of the 27B, beside 620 us of memory; 1150 us in all), as the product's operands it is a third of that.
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"
#include "../../kernels/w4a16.cuh"

namespace engine {
namespace {

constexpr int THREADS = 256;
constexpr int UNIT_ROWS = 16;
constexpr int MAX_GRID_Y = 65535;
constexpr int W4_K = 256, W4_BYTES = 2304, W4_LANES = 128;   // lanes of 16 bytes: [part 4][g 8][t 4]
constexpr int W8_K = 128, W8_LANES = 128;                    // [part 2][half 2][g 8][t 4]

// The bf16 pair, of weights 2^-19 times what they are, times a row scale 2^19 times what it is: rounded once.
__device__ __forceinline__ uint32_t scaled(uint32_t pair, float row) {
    const float2 exact = unpack_bf16(pair);
    return pack_bf16(exact.x * row, exact.y * row);
}

// Half of a lane's 32 bytes of a row goes to its neighbour for half of the neighbour's, so that two lanes' 16-byte writes
// lie side by side: written as it lies, every 32-byte sector is written twice by halves.
__device__ __forceinline__ void write_row(bf16* row, const uint32_t (&words)[8], int lane) {
    const bool odd = lane & 1;
    uint32_t mine[4], other[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        mine[i] = odd ? words[4 + i] : words[i];
        other[i] = __shfl_xor_sync(~0u, odd ? words[i] : words[4 + i], 1);
    }
    uint4* target = reinterpret_cast<uint4*>(row) + odd;   // of the even lane's 32 bytes, then of the odd lane's
    const uint4 own = make_uint4(mine[0], mine[1], mine[2], mine[3]), theirs = make_uint4(other[0], other[1], other[2], other[3]);
    target[0] = odd ? theirs : own;
    target[2] = odd ? own : theirs;
}

// Grid: pairs of units along k, then row tiles. A warp is 64 columns of one unit.
__global__ void __launch_bounds__(THREADS) w4a16_rows_kernel(const uint8_t* units, const float* row_scale, bf16* out, int k, int units_k) {
    const int column_unit = blockIdx.x * (THREADS / W4_LANES) + threadIdx.x / W4_LANES;
    if (column_unit >= units_k) return;
    const int lane = threadIdx.x % W4_LANES, part = lane / 32, g = lane / 4 % 8, t = lane % 4;
    const size_t tile = blockIdx.y, row = tile * UNIT_ROWS + g;
    const uint8_t* source = units + (tile * units_k + column_unit) * W4_BYTES;
    const uint4 codes = __ldcs(reinterpret_cast<const uint4*>(source) + lane);
    const uint32_t bytes = *reinterpret_cast<const uint16_t*>(source + 2048 + ((g * 4 + t) * 4 + part) * 2);
    const float low_row = row_scale[row] * W4A16::EPILOGUE_SCALE, high_row = row_scale[row + 8] * W4A16::EPILOGUE_SCALE;
    const uint32_t low = W4A16::scale(bytes, 0), high = W4A16::scale(bytes, 1);
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t first[8], second[8];   // pairs of columns of rows g and g + 8
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t a[4];
        W4A16::operand(word[step], low, high, a);
        first[2 * step] = scaled(a[0], low_row), first[2 * step + 1] = scaled(a[2], low_row);
        second[2 * step] = scaled(a[1], high_row), second[2 * step + 1] = scaled(a[3], high_row);
    }
    // 32 bytes a lane; neighbours t and t ^ 1 share 64 of them, from the even one's first on.
    bf16* target = out + row * k + column_unit * W4_K + part * 64 + t / 2 * 32;
    write_row(target, first, lane);
    write_row(target + size_t(8) * k, second, lane);
}

__global__ void __launch_bounds__(THREADS) w8a8_rows_kernel(const uint4* units, uint8_t* out, int k, int64_t lanes) {
    const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (index >= lanes) return;
    const int64_t unit = index / W8_LANES;
    const int lane = index % W8_LANES, part = lane / 64, half = lane / 32 % 2, g = lane / 4 % 8, t = lane % 4;
    const int units_k = k / W8_K;
    const int64_t row = unit / units_k * UNIT_ROWS + half * 8 + g, column = unit % units_k * W8_K + part * 64 + t * 16;
    *reinterpret_cast<uint4*>(out + row * k + column) = units[index];
}

// y [m][2 n], eight columns of gate and eight of up in turn -> bf16(bf16(silu(gate)) * up) [m][n]
__global__ void __launch_bounds__(THREADS) swiglu_kernel(const uint4* y, uint4* out, int64_t eights) {
    const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (index >= eights) return;
    const uint4 gates = y[2 * index], ups = y[2 * index + 1];
    const uint32_t gate[4] = {gates.x, gates.y, gates.z, gates.w}, up[4] = {ups.x, ups.y, ups.z, ups.w};
    uint32_t result[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 a = unpack_bf16(gate[i]), b = unpack_bf16(up[i]);
        result[i] = pack_bf16(round_bf16(silu(a.x)) * b.x, round_bf16(silu(a.y)) * b.y);
    }
    out[index] = make_uint4(result[0], result[1], result[2], result[3]);
}

dim3 grid_of(int64_t items) { return dim3(unsigned((items + THREADS - 1) / THREADS)); }

}  // namespace
}  // namespace engine

// units [n / 16][k / 256][2304], row_scale [n] -> bf16 [n][k]. cudaErrorInvalidValue for a shape outside the contract, as is
// one of more than 65,535 tiles of 16 rows.
extern "C" int engine_w4a16_rows(const void* units, const float* row_scale, void* out, int n, int k, void* stream) {
    using namespace engine;
    if (n < UNIT_ROWS || n % UNIT_ROWS || k < W4_K || k % W4_K) return cudaErrorInvalidValue;
    if (n / UNIT_ROWS > MAX_GRID_Y) return cudaErrorInvalidValue;
    const dim3 grid((k / W4_K + THREADS / W4_LANES - 1) / (THREADS / W4_LANES), n / UNIT_ROWS);
    return launch(w4a16_rows_kernel, grid, THREADS, 0, false, stream, static_cast<const uint8_t*>(units), row_scale,
                  static_cast<bf16*>(out), k, k / W4_K);
}

// units [n / 16][k / 128][2048] -> e4m3 [n][k].
extern "C" int engine_w8a8_rows(const void* units, void* out, int n, int k, void* stream) {
    using namespace engine;
    if (n < UNIT_ROWS || n % UNIT_ROWS || k < W8_K || k % W8_K) return cudaErrorInvalidValue;
    const int64_t lanes = int64_t(n / UNIT_ROWS) * (k / W8_K) * W8_LANES;
    return launch(w8a8_rows_kernel, grid_of(lanes), THREADS, 0, false, stream, static_cast<const uint4*>(units), static_cast<uint8_t*>(out),
                  k, lanes);
}

// y bf16 [m][2 n] as products of interleaved rows leave it -> bf16 [m][n]; n a multiple of 8.
extern "C" int engine_swiglu(const void* y, void* out, int m, int n, void* stream) {
    using namespace engine;
    if (m < 1 || n < 8 || n % 8) return cudaErrorInvalidValue;
    const int64_t eights = int64_t(m) * (n / 8);
    return launch(swiglu_kernel, grid_of(eights), THREADS, 0, false, stream, static_cast<const uint4*>(y), static_cast<uint4*>(out), eights);
}
