// Decode attention over a paged cache, head_dim 256: one query token of each sequence, split over its keys, from the
// projection to o_proj's input: q/k norm, rotation and cache write before, sigmoid gate and quantisation behind.
//
// Bytes per sequence and KV head: 2 * length * 256 elements, once; up to 8 query heads share a KV head and ride along as
// one mma operand. A block is one split of one KV head of one sequence; each of its warps takes 16 tokens at a time and
// loads their keys and values straight into mma operands, since the order of the summed index is free as long as both
// operands agree on it:
//
//   scores [8 heads x 8 tokens]:  A = q (rows 8..15 are zero), B = keys: lane 4g + t holds 16 bytes of token g at a time
//   out  [16 dims x 8 heads]:     A = values transposed: lane 4g + t holds dims 16 bytes wide of tokens 2t, 2t+1, 2t+8, 2t+9,
//                                 and one byte permutation per register pairs two tokens; B = the scores as they lie
//
// The warps meet in shared memory, the splits in the last block of a KV head to finish (a counter that returns to zero).
// E4M3 becomes fp16 exactly; its scales multiply scores and result.
//
// Every block makes its own queries, one warp a head. The newest token's key and value are made by the one split whose steps
// hold that token: it writes them to the cache and, after a barrier of its own, reads them back with the others, rounded
// as any later step finds them. No block reads what another one of this launch has written, save the parts at the end.
//
// Rejected: CUDA cores (8 heads x 2 multiply-adds per element exceed them in FP8), a combining launch of its own (3 us more
// per layer), a launch of its own for norm, rotation and cache write (decoding rows need no q in memory).
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/mma.cuh"
#include "../../kernels/rotary.cuh"

namespace engine {
namespace {

constexpr int GROUP = 8;      // query heads per KV head, at most
constexpr int WARPS = 8;
constexpr int MAX_SPLITS = 64;
constexpr int TOKENS = 16;    // per warp and iteration
constexpr int DIM_TILES = HEAD_DIM / 16;
constexpr size_t SHARED_BYTES = size_t(WARPS) * GROUP * HEAD_DIM * sizeof(float);

struct AttentionArgs {
    const bf16* qkv;            // [m][(2 heads + 2 kv_heads) * 256]: query and gate of each head in turn, keys, values
    const float* q_norm;        // [256], 1 + weight
    const float* k_norm;        // [256]
    const bf16* cos_sin;        // [positions][64]: cos | sin
    void* k_cache;              // [tokens][kv_heads][256]
    void* v_cache;
    const int64_t* block_table; // [m][table_width]
    const int64_t* lengths;     // [m], the current token included
    const float* input_scale;   // []; of o_proj; null: bf16 out
    void* out;                  // [m][heads * 256], e4m3 or bf16
    float* partial;             // [m][kv_heads][splits][8][256]
    float2* extremes;           // [m][kv_heads][splits][8]: maximum (base 2), sum
    int* arrived;               // [m][kv_heads], zero before and after
    int heads, kv_heads, block_tokens, table_width;
    float eps, k_scale, v_scale;
    float score_scale;          // log2(e) / 16 * k scale
};

struct Bf16Cache {
    using Element = bf16;
    static constexpr int CHUNKS = 8;        // of 16 bytes, a lane's quarter of a key
    static constexpr int VALUE_CHUNKS = 4;  // a lane's eighth of a value
    static constexpr bool LATE_VALUES = true;   // keys and values together would spill
    static __device__ __forceinline__ void expand(uint4 words, uint32_t (&out)[4]) {
        out[0] = words.x, out[1] = words.y, out[2] = words.z, out[3] = words.w;
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_bf16(low, high); }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_bf16(d, a, b0, b1); }
};

struct Fp8Cache {
    using Element = uint8_t;
    static constexpr int CHUNKS = 4;
    static constexpr int VALUE_CHUNKS = 2;
    static constexpr bool LATE_VALUES = false;
    static __device__ __forceinline__ void expand(uint4 words, uint32_t (&out)[8]) {
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; i++) out[2 * i] = e4m3_to_f16x2(uint16_t(word[i])), out[2 * i + 1] = e4m3_to_f16x2(uint16_t(word[i] >> 16));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_f16(low, high); }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_f16(d, a, b0, b1); }
};

// The gate multiplies in bf16, as the unfused chain does; then the result is quantised or kept.
__device__ __forceinline__ void finish(const AttentionArgs& args, int sequence, int head, int dim, float4 sum, float inverse,
                                       uint2 gate, float input_scale) {
    const float2 low = unpack_bf16(gate.x), high = unpack_bf16(gate.y);
    const float y[4] = {round_bf16(round_bf16(sum.x * inverse) * round_bf16(sigmoid(low.x))),
                        round_bf16(round_bf16(sum.y * inverse) * round_bf16(sigmoid(low.y))),
                        round_bf16(round_bf16(sum.z * inverse) * round_bf16(sigmoid(high.x))),
                        round_bf16(round_bf16(sum.w * inverse) * round_bf16(sigmoid(high.y)))};
    const size_t at = (size_t(sequence) * args.heads + head) * HEAD_DIM + dim;
    if (args.input_scale) {
        const float i = 1.f / input_scale;
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(args.out) + at) = pack_e4m3(y[0] * i, y[1] * i, y[2] * i, y[3] * i);
    } else {
        *reinterpret_cast<uint2*>(static_cast<bf16*>(args.out) + at) = make_uint2(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]));
    }
}

__device__ __forceinline__ void add_scaled(float4& sum, float4 x, float weight) {
    sum.x += x.x * weight, sum.y += x.y * weight, sum.z += x.z * weight, sum.w += x.w * weight;
}

// exp2(maximum - largest), and 0 where there was no token at all.
__device__ __forceinline__ float weight_of(float maximum, float largest) { return maximum == -INFINITY ? 0.f : exp2f(maximum - largest); }

template <class Cache>
__global__ void __launch_bounds__(WARPS * 32, 1) attention_decode_kernel(const AttentionArgs args) {
    extern __shared__ __align__(16) float4 warp_out[];   // [warp][head][256 / 4]
    __shared__ float warp_maximum[WARPS][GROUP], warp_total[WARPS][GROUP];
    __shared__ float split_weight[GROUP][MAX_SPLITS];
    __shared__ bool last_split;
    using Element = typename Cache::Element;
    constexpr bool FP8 = sizeof(Element) == 1;
    constexpr int PER_CHUNK = 16 / sizeof(Element);   // elements
    // The padding makes the 8 lanes of a 16-byte access hit distinct banks.
    __shared__ __align__(16) bf16 queries[GROUP][HEAD_DIM + (FP8 ? 8 : 32)];
    const int kv_head = blockIdx.y, sequence = blockIdx.z, group = args.heads / args.kv_heads;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int length = int(args.lengths[sequence]);
    const int steps = (length + TOKENS - 1) / TOKENS;
    // Short sequences use fewer splits, so that every warp of a split has a step.
    const int splits = min(int(gridDim.x), (steps + WARPS - 1) / WARPS), split = blockIdx.x;
    const bool idle = split >= splits;
    const int step_begin = int(int64_t(steps) * split / splits), step_end = int(int64_t(steps) * (split + 1) / splits);
    const int64_t* table = args.block_table + size_t(sequence) * args.table_width;
    const size_t token_stride = size_t(args.kv_heads) * HEAD_DIM;
    auto slot_of = [&](int token) { return int(table[token / args.block_tokens]) * args.block_tokens + token % args.block_tokens; };

    let_next_kernel_start();
    // All keys and values but the newest token's lie in memory already: bring the first step's into the L2.
    if (!idle && step_begin + warp < step_end) {
        constexpr int ROW_BYTES = HEAD_DIM * sizeof(Element), HALF_BYTES = ROW_BYTES / 2;
        const int token = min((step_begin + warp) * TOKENS + lane / 2, length - 1);
        const size_t at = (slot_of(token) * token_stride + kv_head * HEAD_DIM) * sizeof(Element) + lane % 2 * HALF_BYTES;
        prefetch_l2(static_cast<const uint8_t*>(args.k_cache) + at, HALF_BYTES);
        prefetch_l2(static_cast<const uint8_t*>(args.v_cache) + at, HALF_BYTES);
    }
    const float input_scale = args.input_scale ? *args.input_scale : 0.f;
    // A warp makes query head `job` of the group or, in the split that holds the newest token, its key or its value.
    const int jobs = split == splits - 1 ? group + 2 : group;
    auto constants_of = [&](int job) { return head_constants(job < group ? args.q_norm : args.k_norm, args.cos_sin + size_t(length - 1) * ROTARY_DIM, lane); };
    HeadConstants constants = {};
    if (!idle && warp < jobs) constants = constants_of(warp);
    wait_for_previous_kernel();
    if (idle) return;

    const bf16* row = args.qkv + size_t(sequence) * (2 * args.heads + 2 * args.kv_heads) * HEAD_DIM;
    for (int job = warp; job < jobs; job += WARPS) {
        if (job != warp) constants = constants_of(job);   // a group of 7 or 8: two warps have a second head
        const bool is_q = job < group, is_k = job == group;
        const int head = is_q ? 2 * (kv_head * group + job) : 2 * args.heads + (is_k ? 0 : args.kv_heads) + kv_head;
        float x[PER_LANE];
        load_head(row + size_t(head) * HEAD_DIM, lane, x);
        if (is_q || is_k) norm_and_rotate(x, constants, args.eps, lane);
        if (is_q) store_head<false>(queries[job], 0, lane, x, 1.f);
        else store_head<FP8>(is_k ? args.k_cache : args.v_cache, slot_of(length - 1) * token_stride + kv_head * HEAD_DIM, lane, x, is_k ? args.k_scale : args.v_scale);
    }

    // Thread: four dims of heads threadIdx.x / 64, + 4, when warps and splits are summed.
    constexpr int QUADS = HEAD_DIM / 4, STRIDE = WARPS * 32 / QUADS;
    const int dim = threadIdx.x % QUADS * 4;
    uint2 gates[GROUP / STRIDE];
#pragma unroll
    for (int i = 0; i < GROUP / STRIDE; i++) {
        const int h = threadIdx.x / QUADS + i * STRIDE;
        gates[i] = h < group ? *reinterpret_cast<const uint2*>(row + (2 * size_t(kv_head * group + h) + 1) * HEAD_DIM + dim) : make_uint2(0, 0);
    }

    __syncthreads();   // the queries are there, and so are the newest key and value

    uint32_t q[2 * DIM_TILES];   // [k step][a0, a2]
    {
#pragma unroll
        for (int c = 0; c < Cache::CHUNKS; c++)
#pragma unroll
            for (int j = 0; j < PER_CHUNK / 8; j++) {
                const int at = (c * PER_CHUNK / 8 + j) * 4;
                uint4 words = make_uint4(0, 0, 0, 0);
                if (g < group) words = *reinterpret_cast<const uint4*>(queries[g] + c * 4 * PER_CHUNK + t * PER_CHUNK + j * 8);
                const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 pair = unpack_bf16(word[i]);
                    q[at + i] = Cache::pack(pair.x, pair.y);
                }
            }
    }

    float out[DIM_TILES][4] = {};   // tile p: dims of word p of a value chunk; {low head 2t, low 2t+1, high 2t, high 2t+1}
    float maximum = -INFINITY, total = 0.f;   // of head g; total is this lane's share
    const Element* keys = static_cast<const Element*>(args.k_cache) + kv_head * HEAD_DIM + t * PER_CHUNK;
    const Element* values = static_cast<const Element*>(args.v_cache) + kv_head * HEAD_DIM + g * PER_CHUNK;

    for (int step = step_begin + warp; step < step_end; step += WARPS) {
        const int first = step * TOKENS;
        int slot[2];   // of tokens g and g + 8; past the end the last one's, whose values are finite
#pragma unroll
        for (int i = 0; i < 2; i++) slot[i] = slot_of(min(first + i * 8 + g, length - 1));
        uint4 key[2][Cache::CHUNKS], value[4][Cache::VALUE_CHUNKS];
        auto load_values = [&] {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int value_slot = __shfl_sync(~0u, slot[i / 2], (2 * t + i % 2) * 4);
#pragma unroll
                for (int c = 0; c < Cache::VALUE_CHUNKS; c++)
                    value[i][c] = __ldcs(reinterpret_cast<const uint4*>(values + value_slot * token_stride + c * 8 * PER_CHUNK));
            }
        };
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < Cache::CHUNKS; c++)
                key[i][c] = __ldcs(reinterpret_cast<const uint4*>(keys + slot[i] * token_stride + c * 4 * PER_CHUNK));
        if constexpr (!Cache::LATE_VALUES) load_values();

        float score[2][4] = {};   // [tokens 8i..][{head g: token 2t, 2t + 1}, zero rows]
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < Cache::CHUNKS; c++) {
                uint32_t words[PER_CHUNK / 2];
                Cache::expand(key[i][c], words);
#pragma unroll
                for (int w = 0; w < PER_CHUNK / 2; w += 2)
                    Cache::mma(score[i], {q[c * PER_CHUNK / 2 + w], 0, q[c * PER_CHUNK / 2 + w + 1], 0}, words[w], words[w + 1]);
            }
        if constexpr (Cache::LATE_VALUES) load_values();
        float largest = maximum;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                score[i][j] = first + i * 8 + 2 * t + j < length ? score[i][j] * args.score_scale : -INFINITY;
                largest = fmaxf(largest, score[i][j]);
            }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        const float shrink = weight_of(maximum, largest);
        maximum = largest, total *= shrink;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) score[i][j] = exp2f(score[i][j] - largest), total += score[i][j];
        const uint32_t b0 = Cache::pack(score[0][0], score[0][1]), b1 = Cache::pack(score[1][0], score[1][1]);
        const float shrink_low = __shfl_sync(~0u, shrink, 2 * t * 4), shrink_high = __shfl_sync(~0u, shrink, (2 * t + 1) * 4);
#pragma unroll
        for (int c = 0; c < Cache::VALUE_CHUNKS; c++) {
            uint32_t words[4][PER_CHUNK / 2];
#pragma unroll
            for (int i = 0; i < 4; i++) Cache::expand(value[i][c], words[i]);
#pragma unroll
            for (int w = 0; w < PER_CHUNK / 2; w++) {
                float(&d)[4] = out[c * PER_CHUNK / 2 + w];
                d[0] *= shrink_low, d[1] *= shrink_high, d[2] *= shrink_low, d[3] *= shrink_high;
                Cache::mma(d, {__byte_perm(words[0][w], words[1][w], 0x5410), __byte_perm(words[0][w], words[1][w], 0x7632),
                               __byte_perm(words[2][w], words[3][w], 0x5410), __byte_perm(words[2][w], words[3][w], 0x7632)}, b0, b1);
            }
        }
    }

    total += __shfl_xor_sync(~0u, total, 1), total += __shfl_xor_sync(~0u, total, 2);
    if (t == 0) warp_maximum[warp][g] = maximum, warp_total[warp][g] = total;
    float* mine = reinterpret_cast<float*>(warp_out) + warp * GROUP * HEAD_DIM;
#pragma unroll
    for (int p = 0; p < DIM_TILES; p++) {
        const int dim = p * 2 / PER_CHUNK * 8 * PER_CHUNK + g * PER_CHUNK + p * 2 % PER_CHUNK;
#pragma unroll
        for (int j = 0; j < 2; j++)
            *reinterpret_cast<float2*>(mine + (2 * t + j) * HEAD_DIM + dim) = make_float2(out[p][j], out[p][2 + j]);
    }
    __syncthreads();

    const size_t place = size_t(sequence) * args.kv_heads + kv_head;
#pragma unroll
    for (int j = 0; j < GROUP / STRIDE; j++) {
        const int h = threadIdx.x / QUADS + j * STRIDE;
        if (h >= group) break;
        float top = -INFINITY, sum = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, warp_maximum[w][h]);
        float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = weight_of(warp_maximum[w][h], top);
            sum += warp_total[w][h] * weight;
            add_scaled(o, warp_out[(w * GROUP + h) * QUADS + dim / 4], weight);
        }
        if (splits == 1) {
            finish(args, sequence, kv_head * group + h, dim, o, args.v_scale / sum, gates[j], input_scale);
        } else {
            const size_t at = (place * gridDim.x + split) * GROUP + h;
            reinterpret_cast<float4*>(args.partial)[at * QUADS + dim / 4] = o;
            if (dim == 0) args.extremes[at] = make_float2(top, sum);
        }
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last_split = atomicAdd(args.arrived + place, 1) == splits - 1;
        if (last_split) args.arrived[place] = 0;
    }
    __syncthreads();
    if (!last_split) return;
    __threadfence();
    // Warp h: the weight of each split for head h; a lane has two of them.
    if (warp < group) {
        float2 extreme[MAX_SPLITS / 32];
        float top = -INFINITY, sum = 0.f;
#pragma unroll
        for (int i = 0; i < MAX_SPLITS / 32; i++) {
            const int from = i * 32 + lane;
            extreme[i] = from < splits ? __ldcg(args.extremes + (place * gridDim.x + from) * GROUP + warp) : make_float2(-INFINITY, 0.f);
            top = fmaxf(top, extreme[i].x);
        }
#pragma unroll
        for (int offset = 16; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
#pragma unroll
        for (int i = 0; i < MAX_SPLITS / 32; i++) sum += extreme[i].y * weight_of(extreme[i].x, top);
        sum = warp_sum(sum);
#pragma unroll
        for (int i = 0; i < MAX_SPLITS / 32; i++) split_weight[warp][i * 32 + lane] = weight_of(extreme[i].x, top) / sum;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < GROUP / STRIDE; j++) {
        const int h = threadIdx.x / QUADS + j * STRIDE;
        if (h >= group) break;
        const float4* source = reinterpret_cast<const float4*>(args.partial) + (place * gridDim.x * GROUP + h) * QUADS + dim / 4;
        float4 o = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
        for (int i = 0; i < splits; i++) add_scaled(o, __ldcg(source + size_t(i) * GROUP * QUADS), split_weight[h][i]);
        finish(args, sequence, kv_head * group + h, dim, o, args.v_scale, gates[j], input_scale);
    }
}

}  // namespace
}  // namespace engine

// Returns a cudaError_t; cudaErrorInvalidValue for a shape outside the contract. head_dim is 256, the rotation 64 wide; fp8:
// the caches are e4m3 with these scales, else bf16. With `dependent`, the kernels before it in the stream must write neither
// block_table nor lengths: they are read before these have finished.
extern "C" int engine_attention_decode(const void* qkv, const float* q_norm, const float* k_norm, const void* cos_sin, void* k_cache,
                                       void* v_cache, const int64_t* block_table, const int64_t* lengths, const float* input_scale,
                                       void* out, float* partial, float* extremes, int* arrived, int m, int heads, int kv_heads,
                                       int block_tokens, int table_width, int splits, float eps, float k_scale, float v_scale,
                                       int fp8, int dependent, void* stream) {
    using namespace engine;
    if (m < 1 || heads < 1 || kv_heads < 1 || heads % kv_heads || heads / kv_heads > GROUP || block_tokens < 1 || splits < 1 || splits > MAX_SPLITS)
        return cudaErrorInvalidValue;
    const AttentionArgs args{static_cast<const bf16*>(qkv), q_norm, k_norm, static_cast<const bf16*>(cos_sin), k_cache, v_cache,
                             block_table, lengths, input_scale, out, partial, reinterpret_cast<float2*>(extremes), arrived, heads,
                             kv_heads, block_tokens, table_width, eps, k_scale, v_scale, 1.4426950408889634f / 16.f * k_scale};
    auto kernel = fp8 ? attention_decode_kernel<Fp8Cache> : attention_decode_kernel<Bf16Cache>;
    if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(SHARED_BYTES))) return error;
    return launch(kernel, dim3(splits, kv_heads, m), WARPS * 32, SHARED_BYTES, dependent, stream, args);
}
