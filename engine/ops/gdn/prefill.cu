// What surrounds the chunked delta rule of a run of tokens: the convolution before it, the gated norm behind it.
//
//   mixed = bf16(silu(conv4(raw q | k | v)));  y = bf16(rms_norm(o) * w * silu(z));  e4m3(y / input_scale)
//
// Bytes per token: 4 * C for the convolution, 3 * 2 * Hv * 128 for the norm; one pass each. A thread of the convolution
// owns two channels of a tile of tokens and slides a window over them; the thread of the first tile also reads and then
// replaces the slot's kept inputs, so that nobody else touches them.
//
// How many of the tokens are live, and which slot is theirs, may lie in device memory: a CUDA graph of a padded prompt.
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int DIM = 128;
constexpr int THREADS = 128;
constexpr int TILE_TOKENS = 16;
constexpr int TAPS_KEPT = 3;

struct ConvArgs {
    const bf16* raw;       // [tokens][stride], the first C columns
    const float4* conv;    // [C]: taps, the current token's last
    bf16* kept;            // [C][3] of the slot, oldest first; with `slot` the first slot's
    bf16* mixed;           // [tokens][C]
    const int* count;      // [1]: so many tokens are live, of the others nothing is written; null: all of them
    const int64_t* slot;   // [1]: in `kept`, whose slots are slot_stride apart; null: kept is the slot's own
    int tokens, channels, stride, slot_stride;
};

__global__ void __launch_bounds__(THREADS) gdn_conv_kernel(const ConvArgs args) {
    const int channel = (blockIdx.x * THREADS + threadIdx.x) * 2;
    if (channel >= args.channels) return;
    const int tokens = args.count ? *args.count : args.tokens;
    const int begin = blockIdx.y * TILE_TOKENS, end = min(begin + TILE_TOKENS, tokens);
    const float4 taps[2] = {args.conv[channel], args.conv[channel + 1]};
    const uint32_t* raw = reinterpret_cast<const uint32_t*>(args.raw + channel);
    const size_t row = args.stride / 2;
    bf16* kept = args.kept + (args.slot ? *args.slot * args.slot_stride : 0) + channel * TAPS_KEPT;
    float2 window[4];
#pragma unroll
    for (int i = 0; i < TAPS_KEPT; i++) {
        const int token = begin - TAPS_KEPT + i;
        window[i] = token >= 0 ? unpack_bf16(raw[token * row])
                               : make_float2(__bfloat162float(kept[TAPS_KEPT + token]), __bfloat162float(kept[2 * TAPS_KEPT + token]));
    }
    if (begin == 0) {
        // The last three of (kept, tokens); read before they are replaced.
        float2 last[TAPS_KEPT];
#pragma unroll
        for (int i = 0; i < TAPS_KEPT; i++) {
            const int token = tokens - TAPS_KEPT + i;
            last[i] = token >= 0 ? unpack_bf16(raw[token * row])
                                 : make_float2(__bfloat162float(kept[TAPS_KEPT + token]), __bfloat162float(kept[2 * TAPS_KEPT + token]));
        }
#pragma unroll
        for (int i = 0; i < TAPS_KEPT; i++) {
            kept[i] = __float2bfloat16(last[i].x);
            kept[TAPS_KEPT + i] = __float2bfloat16(last[i].y);
        }
    }
    for (int token = begin; token < end; token++) {
        window[3] = unpack_bf16(raw[token * row]);
        float2 sum = make_float2(0.f, 0.f);
        sum.x = window[0].x * taps[0].x + window[1].x * taps[0].y + window[2].x * taps[0].z + window[3].x * taps[0].w;
        sum.y = window[0].y * taps[1].x + window[1].y * taps[1].y + window[2].y * taps[1].z + window[3].y * taps[1].w;
        *reinterpret_cast<uint32_t*>(args.mixed + size_t(token) * args.channels + channel) = pack_bf16(silu(sum.x), silu(sum.y));
        window[0] = window[1], window[1] = window[2], window[2] = window[3];
    }
}

struct GatedNormArgs {
    const bf16* o;              // [tokens][heads * 128]
    const bf16* z;              // [tokens][stride], its first heads * 128 columns
    const float* norm;          // [128]
    const float* input_scale;   // []; null: bf16 out
    void* out;                  // [tokens][heads * 128], e4m3 or bf16
    int tokens, heads, stride;
    float eps;
};

// One warp per head of a token, a lane four of its dimensions.
__global__ void __launch_bounds__(THREADS) gdn_gated_norm_kernel(const GatedNormArgs args) {
    const int64_t job = int64_t(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (job >= int64_t(args.tokens) * args.heads) return;
    const int64_t token = job / args.heads, head = job % args.heads;
    const size_t at = job * DIM + lane * 4;
    const uint2 words = *reinterpret_cast<const uint2*>(args.o + at);
    const uint2 gates = *reinterpret_cast<const uint2*>(args.z + token * args.stride + head * DIM + lane * 4);
    const float4 norm = reinterpret_cast<const float4*>(args.norm)[lane];
    const float2 a = unpack_bf16(words.x), b = unpack_bf16(words.y), c = unpack_bf16(gates.x), d = unpack_bf16(gates.y);
    const float inverse = rsqrtf(warp_sum(a.x * a.x + a.y * a.y + b.x * b.x + b.y * b.y) / DIM + args.eps);
    const float y[4] = {round_bf16(a.x * inverse * norm.x * silu(c.x)), round_bf16(a.y * inverse * norm.y * silu(c.y)),
                        round_bf16(b.x * inverse * norm.z * silu(d.x)), round_bf16(b.y * inverse * norm.w * silu(d.y))};
    if (args.input_scale) {
        const float i = 1.f / *args.input_scale;
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(args.out) + at) = pack_e4m3(y[0] * i, y[1] * i, y[2] * i, y[3] * i);
    } else {
        *reinterpret_cast<uint2*>(static_cast<bf16*>(args.out) + at) = make_uint2(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]));
    }
}

}  // namespace
}  // namespace engine

// raw: the first of `tokens` rows, `stride` elements apart, q | k | v first. kept: the slot's [channels][3], replaced.
// channels and stride even. count: null, or [1] on the device, 1 to tokens: only so many rows are live. slot: null, or [1] on
// the device: kept is then of slot 0, and slots are slot_stride elements apart. cudaErrorInvalidValue otherwise.
extern "C" int engine_gdn_conv(const void* raw, const float* conv, void* kept, void* mixed, const int* count, const int64_t* slot,
                               int tokens, int channels, int stride, int slot_stride, void* stream) {
    using namespace engine;
    if (tokens < 1 || channels < 2 || channels % 2 || stride < channels || stride % 2) return cudaErrorInvalidValue;
    if (slot && slot_stride < channels * TAPS_KEPT) return cudaErrorInvalidValue;
    const ConvArgs args{static_cast<const bf16*>(raw), reinterpret_cast<const float4*>(conv), static_cast<bf16*>(kept),
                        static_cast<bf16*>(mixed), count, slot, tokens, channels, stride, slot_stride};
    const dim3 grid((channels / 2 + THREADS - 1) / THREADS, (tokens + TILE_TOKENS - 1) / TILE_TOKENS);
    return launch(gdn_conv_kernel, grid, THREADS, 0, false, stream, args);
}

// z: the gate of the first token, rows `stride` elements apart (a multiple of 4). Heads are 128 wide.
extern "C" int engine_gdn_gated_norm(const void* o, const void* z, const float* norm, const float* input_scale, void* out,
                                     int tokens, int heads, int stride, float eps, void* stream) {
    using namespace engine;
    if (tokens < 1 || heads < 1 || stride < heads * DIM || stride % 4) return cudaErrorInvalidValue;
    const GatedNormArgs args{static_cast<const bf16*>(o), static_cast<const bf16*>(z), norm, input_scale, out, tokens, heads, stride, eps};
    const int64_t jobs = int64_t(tokens) * heads, warps = THREADS / 32;
    return launch(gdn_gated_norm_kernel, dim3(unsigned((jobs + warps - 1) / warps)), THREADS, 0, false, stream, args);
}
