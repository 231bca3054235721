// The scan over a run's chunks on Hopper, by warpgroup products: what chunks.cu left for each chunk, and the state between.
//
// One block per head and 64 of its 128 value dimensions; their state S [64, 128] stays in a warpgroup's registers from chunk to
// chunk, as the sums of a product. Per chunk of 64 tokens, values being rows and tokens columns (chunked.py has the formulas):
//
//        1.  read = S kᵀ,  o = S qᵀ                    S as two bf16 terms, straight from its sums' registers
//        2.  U = (v - read) Tᵀ                         both operands as two terms
//        3.  o += U (q kᵀ ∘ decay)ᵀ,  S = decay S + U k
//
// Sums of one product have the layout of the next one's A: nothing goes through shared memory between them. A fifth warp brings
// the next chunk while this one is multiplied: squares, which chunks.cu left swizzled, and factors in one bulk copy each; q, k and
// v by 16-byte copies to their swizzled places. k serves twice: its rows as tokens in 1, as dimensions in 3.
//
// Of a chunk and block: 32 + 12 products of 64 x 64 x 16, 12 more and 8 of 64 x 128 x 16: 2,304 cycles of the tensor cores. 72 KB
// read, from the L2.
//
// Rejected: 128 value dimensions a block (half of the reads; half as many blocks, each with twice the products in a row).
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"
#include "../../kernels/stage.cuh"
#include "../../kernels/wgmma.cuh"

namespace engine {
namespace {

constexpr int CHUNK = 64, HEAD_DIM = 128, VALUES = 64;
constexpr int SCAN_WARPS = 4, SCAN_THREADS = (SCAN_WARPS + 1) * 32;
constexpr int PANEL_BYTES = CHUNK * 128;                // 64 tokens, 64 of their dimensions
constexpr int V_ROW = VALUES + 8;                       // padded: rows of two tokens lie eight banks apart
// Of a stage: T and scores, high and low each; q; k; v; factors.
constexpr int Q_AT = 4 * PANEL_BYTES, K_AT = Q_AT + 2 * PANEL_BYTES, V_AT = K_AT + 2 * PANEL_BYTES;
constexpr int FACTORS_AT = V_AT + CHUNK * V_ROW * 2, FACTORS_BYTES = 4 * CHUNK * 4;
constexpr int SCAN_STAGE_BYTES = (FACTORS_AT + FACTORS_BYTES + 1023) / 1024 * 1024;
constexpr int SCAN_STAGES = 2;
constexpr size_t SCAN_SHARED_BYTES = size_t(SCAN_STAGES) * SCAN_STAGE_BYTES + 2 * SCAN_STAGES * sizeof(uint64_t);
constexpr bool SCAN_FITS = SCAN_SHARED_BYTES <= MAX_SHARED_BYTES;   // not on sm_121, which has no such products either

struct ScanArgs {
    const bf16* mixed;        // [tokens][channels]: q, k, v behind each other
    const bf16* squares;      // [heads][chunks][4][64][64], swizzled, of chunks.cu
    const float* factors;     // [heads][chunks][4][64]
    float* state;             // [heads][128 values][128] of the slot; with `slot` the first slot's
    bf16* out;                // [tokens][heads * 128]
    const int* count;         // [1]: so many tokens are live, of the others nothing is written; null: all of them
    const int64_t* slot;      // [1]: in `state`, whose slots are slot_stride apart; null: state is the slot's own
    int tokens, chunks, heads, repeat, key_width, channels, slot_stride;   // chunks: of `tokens`, as squares and factors lie
};

// The warp that brings chunks. A stage is there when its bytes and the 16-byte copies of all lanes are.
__device__ __forceinline__ void bring(const ScanArgs& args, uint8_t* stages, uint64_t* full, uint64_t* empty, int head, int first, int lane, int tokens, int chunks) {
    const bf16* queries = args.mixed + head / args.repeat * HEAD_DIM;
    const bf16* values = args.mixed + 2 * args.key_width + head * HEAD_DIM + first;
    const uint64_t policy = evict_first_policy();
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int stage = chunk % SCAN_STAGES;
        uint8_t* at = stages + stage * SCAN_STAGE_BYTES;
        barrier_wait(empty + stage, chunk / SCAN_STAGES % 2 ^ 1);
        const size_t place = size_t(head) * args.chunks + chunk;
        if (lane == 0) {
            barrier_expect_bytes(full + stage, 4 * PANEL_BYTES + FACTORS_BYTES);
            bulk_load(at, args.squares + place * 4 * CHUNK * CHUNK, 4 * PANEL_BYTES, full + stage, policy);
            bulk_load(at + FACTORS_AT, args.factors + place * 4 * CHUNK, FACTORS_BYTES, full + stage, policy);
        }
#pragma unroll 2
        for (int row = 0; row < CHUNK; row += 2) {   // lanes 0-15 one token, 16-31 the next; 16 pieces of its 128 dimensions
            const int token = row + lane / 16, piece = lane % 16;
            const bool there = chunk * CHUNK + token < tokens;
            const bf16* from = queries + size_t(there ? chunk * CHUNK + token : 0) * args.channels + piece * 8;
            uint8_t* to = at + piece / 8 * PANEL_BYTES + token * 128 + ((piece % 8 ^ token % 8) << 4);
            async_load16_or_zeros(to + Q_AT, from, there);
            async_load16_or_zeros(to + K_AT, from + args.key_width, there);
        }
#pragma unroll 2
        for (int row = 0; row < CHUNK; row += 4) {   // eight pieces of a token's 64 values
            const int token = row + lane / 8, piece = lane % 8;
            const bool there = chunk * CHUNK + token < tokens;
            const bf16* from = values + size_t(there ? chunk * CHUNK + token : 0) * args.channels + piece * 8;
            async_load16_or_zeros(at + V_AT + (token * V_ROW + piece * 8) * 2, from, there);
        }
        async_arrive(full + stage);
    }
    for (int i = 0; i < SCAN_STAGES; i++) {   // all has landed
        const int chunk = chunks + i;
        barrier_wait(empty + chunk % SCAN_STAGES, chunk / SCAN_STAGES % 2 ^ 1);
    }
}

// Sums of 16 neighbouring columns, as A of a product over them.
__device__ __forceinline__ void as_operand(const float (&left)[4], const float (&right)[4], uint32_t (&high)[4], uint32_t (&low)[4]) {
    split_bf16(left[0], left[1], high[0], low[0]), split_bf16(left[2], left[3], high[1], low[1]);
    split_bf16(right[0], right[1], high[2], low[2]), split_bf16(right[2], right[3], high[3], low[3]);
    wgmma_operands(high), wgmma_operands(low);
}

__global__ void __launch_bounds__(SCAN_THREADS, 1) gdn_scan_kernel(const ScanArgs args) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int head = blockIdx.x, first = blockIdx.y * VALUES;
    const int tokens = args.count ? *args.count : args.tokens, chunks = (tokens + CHUNK - 1) / CHUNK;   // live ones
    uint64_t* full = reinterpret_cast<uint64_t*>(shared + SCAN_STAGES * SCAN_STAGE_BYTES);
    uint64_t* empty = full + SCAN_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SCAN_STAGES; i++) barrier_init(full + i, 32 + 1), barrier_init(empty + i, SCAN_WARPS * ARRIVALS_PER_WARP);
        barrier_init_fence();
    }
    __syncthreads();
    if (warp == SCAN_WARPS) {
        bring(args, shared, full, empty, head, first, lane, tokens, chunks);
        return;
    }

    // s[n]: values 16 warp + g and + 8, dimensions 8 n + 2 t and the next. The same for tokens in place of dimensions below.
    float s[16][4];
    float* kept = args.state + (args.slot ? *args.slot * args.slot_stride : 0) + (size_t(head) * HEAD_DIM + first + warp * 16 + g) * HEAD_DIM + 2 * t;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 upper = *reinterpret_cast<const float2*>(kept + n * 8), lower = *reinterpret_cast<const float2*>(kept + 8 * HEAD_DIM + n * 8);
        s[n][0] = upper.x, s[n][1] = upper.y, s[n][2] = lower.x, s[n][3] = lower.y;
    }
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
        const int stage = chunk % SCAN_STAGES;
        const uint8_t* at = shared + stage * SCAN_STAGE_BYTES;
        const float* factors = reinterpret_cast<const float*>(at + FACTORS_AT);
        float o[8][4] = {}, read[8][4] = {};
        {
            uint32_t high[8][4], low[8][4];
#pragma unroll
            for (int step = 0; step < 8; step++) as_operand(s[step * 2], s[step * 2 + 1], high[step], low[step]);
            barrier_wait(full + stage, chunk / SCAN_STAGES % 2);
            wgmma_sees_shared();
            wgmma_sums(read), wgmma_sums(o);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 8; step++) {
                const uint64_t k = swizzled_rows(at + K_AT + step / 4 * PANEL_BYTES, step % 4), q = swizzled_rows(at + Q_AT + step / 4 * PANEL_BYTES, step % 4);
                wgmma_bf16<8>(read, low[step], k), wgmma_bf16<8>(o, low[step], q);
                wgmma_bf16<8>(read, high[step], k), wgmma_bf16<8>(o, high[step], q);
            }
            wgmma_commit();
            wgmma_wait<0>();   // no half of it while the other half of S is split: ptxas would wait there by itself (C7517)
            wgmma_sums(read), wgmma_sums(o);
        }
        float u[8][4] = {};
        {
            uint32_t high[4][4], low[4][4];
            const bf16* v = reinterpret_cast<const bf16*>(at + V_AT) + warp * 16 + g;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int token = n * 8 + 2 * t;
                const float2 by_k = *reinterpret_cast<const float2*>(factors + token), by_q = *reinterpret_cast<const float2*>(factors + CHUNK + token);
                read[n][0] = __bfloat162float(v[token * V_ROW]) - read[n][0] * by_k.x;
                read[n][1] = __bfloat162float(v[(token + 1) * V_ROW]) - read[n][1] * by_k.y;
                read[n][2] = __bfloat162float(v[token * V_ROW + 8]) - read[n][2] * by_k.x;
                read[n][3] = __bfloat162float(v[(token + 1) * V_ROW + 8]) - read[n][3] * by_k.y;
                o[n][0] *= by_q.x, o[n][1] *= by_q.y, o[n][2] *= by_q.x, o[n][3] *= by_q.y;
            }
#pragma unroll
            for (int step = 0; step < 4; step++) as_operand(read[step * 2], read[step * 2 + 1], high[step], low[step]);
            wgmma_sums(u);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++) {
                const uint64_t t_high = swizzled_rows(at, step), t_low = swizzled_rows(at + PANEL_BYTES, step);
                wgmma_bf16<8>(u, low[step], t_high), wgmma_bf16<8>(u, high[step], t_low), wgmma_bf16<8>(u, high[step], t_high);
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_sums(u);
        }
        {
            uint32_t high[4][4], low[4][4], written_high[4][4], written_low[4][4];
            const float whole = factors[3 * CHUNK];
#pragma unroll
            for (int step = 0; step < 4; step++) as_operand(u[step * 2], u[step * 2 + 1], high[step], low[step]);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 by = *reinterpret_cast<const float2*>(factors + 2 * CHUNK + n * 8 + 2 * t);
                u[n][0] *= by.x, u[n][1] *= by.y, u[n][2] *= by.x, u[n][3] *= by.y;
            }
#pragma unroll
            for (int step = 0; step < 4; step++) as_operand(u[step * 2], u[step * 2 + 1], written_high[step], written_low[step]);
#pragma unroll
            for (int n = 0; n < 16; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] *= whole;
            wgmma_sums(o), wgmma_sums(s);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++) {
                const uint64_t a_high = swizzled_rows(at + 2 * PANEL_BYTES, step), a_low = swizzled_rows(at + 3 * PANEL_BYTES, step);
                const uint64_t k = swizzled_columns(at + K_AT, step, PANEL_BYTES);
                wgmma_bf16<8>(o, low[step], a_high), wgmma_bf16<8>(o, high[step], a_low), wgmma_bf16<8>(o, high[step], a_high);
                wgmma_bf16_columns(s, written_low[step], k), wgmma_bf16_columns(s, written_high[step], k);
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_sums(o), wgmma_sums(s);
        }
        __syncwarp();   // every lane has read v and the factors
        if (gives_back(lane)) barrier_arrive(empty + stage);
        // Lanes of an even g and of the odd one after it trade: the first then has two neighbouring values of one token, the second
        // of the next token.
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int token = chunk * CHUNK + n * 8 + 2 * t + g % 2;
            bf16* row = args.out + (size_t(token) * args.heads + head) * HEAD_DIM + first + warp * 16 + g / 2 * 2;
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const float now = o[n][side * 2], next = o[n][side * 2 + 1];
                const float traded = __shfl_xor_sync(~0u, g % 2 ? now : next, 4);
                const uint32_t pair = g % 2 ? pack_bf16(traded, next) : pack_bf16(now, traded);
                if (token < tokens) *reinterpret_cast<uint32_t*>(row + side * 8) = pair;
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 16; n++) {
        *reinterpret_cast<float2*>(kept + n * 8) = make_float2(s[n][0], s[n][1]);
        *reinterpret_cast<float2*>(kept + 8 * HEAD_DIM + n * 8) = make_float2(s[n][2], s[n][3]);
    }
}

template <bool FITS>
cudaError_t launch_scan(const ScanArgs& args, void* stream) {
    if constexpr (FITS) {
        if (cudaError_t error = cudaFuncSetAttribute(gdn_scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(SCAN_SHARED_BYTES))) return error;
        return launch(gdn_scan_kernel, dim3(args.heads, HEAD_DIM / VALUES), SCAN_THREADS, SCAN_SHARED_BYTES, false, stream, args);
    }
    return cudaErrorInvalidConfiguration;
}

}  // namespace
}  // namespace engine

// squares, factors: of engine_gdn_chunks with the same count and tokens, swizzled. state: the slot's. slot: null, or [1] on the
// device: state is then of slot 0, and slots are slot_stride elements apart, an even number. On sm_90a; elsewhere
// cudaErrorInvalidConfiguration.
extern "C" int engine_gdn_scan(const void* mixed, const void* squares, const float* factors, float* state, void* out, const int* count,
                               const int64_t* slot, int tokens, int heads, int repeat, int key_width, int channels, int slot_stride,
                               void* stream) {
    using namespace engine;
    if (tokens < 1 || heads < 1 || repeat < 1 || heads % repeat || channels % 8 || key_width != heads / repeat * HEAD_DIM) return cudaErrorInvalidValue;
    if (slot && (slot_stride < heads * HEAD_DIM * HEAD_DIM || slot_stride % 2)) return cudaErrorInvalidValue;
    const ScanArgs args{static_cast<const bf16*>(mixed), static_cast<const bf16*>(squares), factors, state, static_cast<bf16*>(out),
                        count, slot, tokens, (tokens + CHUNK - 1) / CHUNK, heads, repeat, key_width, channels, slot_stride};
    return launch_scan<SCAN_FITS>(args, stream);
}
