// x to E4M3 for FP8 experts, and for projections with a scale per token.
// scale = max(max|x| / 448, least) of each row, or the one given; codes = e4m3(x / scale)
//
// Bytes: a row of bf16 is read once and its codes are written, 3 * k. A warp takes a row, 8 columns a lane at a time, and reads
// it twice: the second time it comes from the L1. Bits as in engine/ops/linear/quantize.py on a CPU, by token and by tensor.
//
// Rejected: torch's own operators (some ten launches, and copies of all rows in fp32: of 16,384 tokens before the 27B's down_proj
// 1.1 GB each); in the launch before (a SwiGLU row's columns are made by several blocks, and nobody has all of them before its end).
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int ROWS = 4;                                   // of a block, a warp each
constexpr float E4M3_MAX = 448.f, LEAST_SCALE = 1.f / (448.f * 512.f);

__global__ void __launch_bounds__(ROWS * 32) quantize_tokens_kernel(const bf16* x, const float* given, uint8_t* codes, float* scales, int rows, int k) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int row = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const uint4* source = reinterpret_cast<const uint4*>(x + size_t(row) * k);
    float scale, inverse = 0.f;
    if (given) {
        scale = *given, inverse = 1.f / scale;
    } else {
        float most = 0.f;
        for (int i = lane; i < k / 8; i += 32) {
            const uint4 eight = source[i];
            const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 pair = unpack_bf16(words[j]);
                most = fmaxf(most, fmaxf(fabsf(pair.x), fabsf(pair.y)));
            }
        }
#pragma unroll
        for (int offset = 16; offset; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
        scale = fmaxf(most / E4M3_MAX, LEAST_SCALE);
    }
    // A given scale multiplies by its reciprocal, a token's own divides: as the references of both do.
    auto scaled = [&](float value) { return given ? value * inverse : value / scale; };
    for (int i = lane; i < k / 8; i += 32) {
        const uint4 eight = source[i];
        const float2 a = unpack_bf16(eight.x), b = unpack_bf16(eight.y), c = unpack_bf16(eight.z), d = unpack_bf16(eight.w);
        reinterpret_cast<uint2*>(codes + size_t(row) * k)[i] = make_uint2(pack_e4m3(scaled(a.x), scaled(a.y), scaled(b.x), scaled(b.y)),
                                                                         pack_e4m3(scaled(c.x), scaled(c.y), scaled(d.x), scaled(d.y)));
    }
    if (lane == 0) scales[row] = scale;
}

}  // namespace
}  // namespace engine

// x bf16 [rows][k] -> codes e4m3 [rows][k] and what each row's are multiplied by, scales [rows]; k a multiple of 8. given: null,
// or [1], the scale of all rows. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_quantize(const void* x, const float* given, void* codes, float* scales, int rows, int k, int dependent, void* stream) {
    using namespace engine;
    if (rows < 1 || k < 8 || k % 8) return cudaErrorInvalidValue;
    return launch(quantize_tokens_kernel, dim3((rows + ROWS - 1) / ROWS), ROWS * 32, 0, dependent, stream, static_cast<const bf16*>(x), given,
                  static_cast<uint8_t*>(codes), scales, rows, k);
}
