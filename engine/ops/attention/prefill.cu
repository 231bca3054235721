// The output gate of attention over a run of tokens, and the quantisation for o_proj behind it, in one pass.
//
//   y = bf16(bf16(attention) * bf16(sigmoid(gate)));  e4m3(y / input_scale)
//
// Bytes per token: 2 + 2 read and 1 written per element. A thread takes eight dimensions of one head.
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int HEAD_DIM = 256;
constexpr int PER_THREAD = 8;
constexpr int THREADS = 256;

struct GateArgs {
    const bf16* attention;      // [tokens][heads][256]
    const bf16* qkv;            // [tokens][stride]: query and gate of each head in turn, then the rest
    const float* input_scale;   // []; null: bf16 out
    void* out;                  // [tokens][heads * 256], e4m3 or bf16
    int heads, stride;
    int64_t pieces;             // of eight elements
};

__global__ void __launch_bounds__(THREADS) attention_gate_kernel(const GateArgs args) {
    const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (index >= args.pieces) return;
    const int64_t job = index / (HEAD_DIM / PER_THREAD), dim = index % (HEAD_DIM / PER_THREAD) * PER_THREAD;
    const int64_t token = job / args.heads, head = job % args.heads;
    const uint4 values = reinterpret_cast<const uint4*>(args.attention)[index];
    const uint4 gates = *reinterpret_cast<const uint4*>(args.qkv + token * args.stride + (2 * head + 1) * HEAD_DIM + dim);
    const uint32_t value[4] = {values.x, values.y, values.z, values.w}, gate[4] = {gates.x, gates.y, gates.z, gates.w};
    float y[PER_THREAD];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 v = unpack_bf16(value[i]), g = unpack_bf16(gate[i]);
        y[2 * i] = round_bf16(v.x * round_bf16(sigmoid(g.x))), y[2 * i + 1] = round_bf16(v.y * round_bf16(sigmoid(g.y)));
    }
    if (args.input_scale) {
        const float s = 1.f / *args.input_scale;
        reinterpret_cast<uint2*>(args.out)[index] =
            make_uint2(pack_e4m3(y[0] * s, y[1] * s, y[2] * s, y[3] * s), pack_e4m3(y[4] * s, y[5] * s, y[6] * s, y[7] * s));
    } else {
        reinterpret_cast<uint4*>(args.out)[index] =
            make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
    }
}

}  // namespace
}  // namespace engine

// Heads are 256 wide; stride in elements, a multiple of 8. cudaErrorInvalidValue for a shape outside the contract.
extern "C" int engine_attention_gate(const void* attention, const void* qkv, const float* input_scale, void* out, int tokens,
                                     int heads, int stride, void* stream) {
    using namespace engine;
    if (tokens < 1 || heads < 1 || stride < 2 * heads * HEAD_DIM || stride % PER_THREAD) return cudaErrorInvalidValue;
    const int64_t pieces = int64_t(tokens) * heads * (HEAD_DIM / PER_THREAD);
    const GateArgs args{static_cast<const bf16*>(attention), static_cast<const bf16*>(qkv), input_scale, out, heads, stride, pieces};
    return launch(attention_gate_kernel, dim3(unsigned((pieces + THREADS - 1) / THREADS)), THREADS, 0, false, stream, args);
}
