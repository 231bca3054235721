// Packed units -> row-major matrices for a library product, and SwiGLU of its interleaved columns: what prefill needs.
//
//   w4a16: bf16(e2m1 * block scale * row scale), the first product exact, one rounding;  w8a8: the same bytes, moved
//
// Bytes: a 2,304-byte unit becomes 8,192 bytes (3.6 times), a 2,048-byte one 2,048; read once, written once. A thread
// takes 16 bytes as the units lie, which are one NVFP4 block of rows g and g + 8 each, or 16 columns of one row; four
// neighbours write 128 (64) contiguous bytes of a row. The units are those of engine/ops/{w4a16,w8a8}/pack.py.
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int THREADS = 256;
constexpr int UNIT_ROWS = 16;
constexpr int W4_K = 256, W4_BYTES = 2304, W4_LANES = 128;   // lanes of 16 bytes: [part 4][g 8][t 4]
constexpr int W8_K = 128, W8_LANES = 128;                    // [part 2][half 2][g 8][t 4]

// bf16(code * scale * row): `word` holds four codes, sign and magnitude at the bits given.
__device__ __forceinline__ float value(uint32_t word, int sign, int magnitude, float block, float row) {
    // The magnitude's two exponent bits and one mantissa bit become an fp32's; 2^126 corrects the bias, exactly.
    const float code = __uint_as_float((word >> sign & 1) << 31 | (word >> magnitude & 7) << 22) * 0x1p126f;
    return code * block * row;
}

// A byte of 5 exponent and 3 mantissa bits, 2^(e - 10) * (1 + m / 8), as fp32. Byte 0 only scales zeroed codes.
__device__ __forceinline__ float block_scale(uint32_t byte) { return __uint_as_float((byte << 20) + (117u << 23)); }

__global__ void __launch_bounds__(THREADS) w4a16_rows_kernel(const uint8_t* units, const float* row_scale, bf16* out, int k,
                                                             int64_t lanes) {
    const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (index >= lanes) return;
    const int64_t unit = index / W4_LANES;
    const int lane = index % W4_LANES, part = lane / 32, g = lane / 4 % 8, t = lane % 4;
    const int units_k = k / W4_K;
    const int64_t tile = unit / units_k, row = tile * UNIT_ROWS + g, column = unit % units_k * W4_K + part * 64 + t * 16;
    const uint8_t* source = units + unit * W4_BYTES;
    const uint4 words = reinterpret_cast<const uint4*>(source)[lane];
    const uint16_t scales = *reinterpret_cast<const uint16_t*>(source + 2048 + ((g * 4 + t) * 4 + part) * 2);
    const float low = block_scale(scales & 0xFF), high = block_scale(scales >> 8);
    const float low_row = row_scale[row], high_row = row_scale[row + 8];
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    uint32_t first[8], second[8];   // pairs of columns of rows g and g + 8
#pragma unroll
    for (int step = 0; step < 4; step++) {   // four columns: pairs 0 and 1, the even column in the low half word
        const uint32_t even = word[step] & 0xFFFF, odd = word[step] >> 16;
        first[2 * step] = pack_bf16(value(even, 15, 6, low, low_row), value(odd, 15, 6, low, low_row));
        second[2 * step] = pack_bf16(value(even, 12, 3, high, high_row), value(odd, 12, 3, high, high_row));
        first[2 * step + 1] = pack_bf16(value(even, 14, 0, low, low_row), value(odd, 14, 0, low, low_row));
        second[2 * step + 1] = pack_bf16(value(even, 13, 9, high, high_row), value(odd, 13, 9, high, high_row));
    }
    uint4* target = reinterpret_cast<uint4*>(out + row * k + column);
    target[0] = make_uint4(first[0], first[1], first[2], first[3]);
    target[1] = make_uint4(first[4], first[5], first[6], first[7]);
    target = reinterpret_cast<uint4*>(out + (row + 8) * k + column);
    target[0] = make_uint4(second[0], second[1], second[2], second[3]);
    target[1] = make_uint4(second[4], second[5], second[6], second[7]);
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

// units [n / 16][k / 256][2304], row_scale [n] -> bf16 [n][k]. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_w4a16_rows(const void* units, const float* row_scale, void* out, int n, int k, void* stream) {
    using namespace engine;
    if (n < UNIT_ROWS || n % UNIT_ROWS || k < W4_K || k % W4_K) return cudaErrorInvalidValue;
    const int64_t lanes = int64_t(n / UNIT_ROWS) * (k / W4_K) * W4_LANES;
    return launch(w4a16_rows_kernel, grid_of(lanes), THREADS, 0, false, stream, static_cast<const uint8_t*>(units), row_scale,
                  static_cast<bf16*>(out), k, lanes);
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
