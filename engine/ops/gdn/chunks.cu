// What each chunk of 64 tokens of a run needs before the scan over chunks (chunked.py): T beta and Q Kᵀ ∘ D, each as two bf16
// terms, and the factors of its rows. One block per chunk and value head, all at once.
//
//   A = (beta k)kᵀ ∘ decay, strictly below the diagonal;  T = (I + A)⁻¹, in fp32 throughout
//
//        I                        1. the four 16 x 16 blocks on the diagonal, by substitution: a warp each, a lane a column
//   I+A= A  I        T =  X        2. below them in each half: X10 = - X11 (A10 X00), two warps each
//        A  A  I          X  X     3. the lower left quarter the same way, of 32 x 32 blocks: all four
//        A  A  A  I       X  X  X
//
// The two products of q and k are mma.sync on the bf16 numbers themselves; norms, gates and decays are factors in fp32. The
// inverse is 87 thousand multiply-adds where three TF32 products of whole squares took 7 million: it is short of parallel
// work, not of units, so that blocks are small (42 KB of shared memory: five an SM).
//
// Bytes of a block: q and k 2 * 64 * 256, read by `repeat` heads' blocks; written 4 * 64 * 64 * 2.
//
// Rejected: one block for all value heads of a key head (their q kᵀ once): a third to a half of the blocks, and the inverses,
// which are most of the time, one after the other or in registers that are not there.
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"
#include "../../kernels/mma.cuh"

namespace engine {
namespace {

constexpr int CHUNK = 64, HEAD_DIM = 128, BLOCK = 16, HALF = CHUNK / 2;
constexpr int CHUNK_THREADS = 128;                     // four warps: 16 rows each
constexpr int ROW_WORDS = HEAD_DIM / 2 + 4;            // of q or k, padded: rows lie four banks apart
constexpr int SQUARE_ROW = CHUNK + 4;                  // floats: as many bytes
constexpr int PRODUCT_ROW = HALF + 4;
static_assert(sizeof(float) * SQUARE_ROW == sizeof(uint32_t) * ROW_WORDS, "a square takes the place of q or k");

struct ChunkArgs {
    const bf16* mixed;        // [tokens][channels]: q, k, v behind each other, after the convolution
    const bf16* ba;           // [tokens][ba_stride]: b of all value heads, then a
    const float *rate, *bias; // [heads]
    bf16* squares;            // [heads][chunks][4][64][64]: T beta, high and low; q kᵀ ∘ decay, high and low. Swizzled for
                              // scan.cu: 16 bytes at piece p of row r lie at p ^ (r & swizzle), which is 7; else 0
    float* factors;           // [heads][chunks][4][64]: of k and q when read, of k when written, of the state
    const int* count;         // [1]: so many tokens are live, and chunks of none are not made; null: all of them
    int tokens, heads, repeat, key_width, channels, ba_stride, swizzle;
    float scale;              // of queries
};

struct ChunkShared {
    uint32_t q[CHUNK][ROW_WORDS];   // later T
    uint32_t k[CHUNK][ROW_WORDS];   // later A
    float product[HALF][PRODUCT_ROW];
    float beta[CHUNK], total[CHUNK], q_norm[CHUNK], k_norm[CHUNK];
    float first_half;               // sum of the first 32 log decays
};

__device__ __forceinline__ float sum_of_squares(uint4 words) {
    float sum = 0.f;
    for (const uint32_t word : {words.x, words.y, words.z, words.w}) {
        const float2 pair = unpack_bf16(word);
        sum += pair.x * pair.x + pair.y * pair.y;
    }
    return sum;
}

// q and k of the chunk's tokens, zeros behind the last; the norm of each row.
__device__ __forceinline__ void load_rows(const ChunkArgs& args, ChunkShared& shared, int chunk, int key_head, int tokens) {
    constexpr int PIECES = HEAD_DIM / 8;   // of 16 bytes; a row's lie in 16 neighbouring lanes
    uint4 rows[2][CHUNK * PIECES / CHUNK_THREADS];
#pragma unroll
    for (int i = 0; i < CHUNK * PIECES / CHUNK_THREADS; i++) {
        const int row = (i * CHUNK_THREADS + threadIdx.x) / PIECES, piece = threadIdx.x % PIECES, token = chunk * CHUNK + row;
        const bf16* at = args.mixed + size_t(token) * args.channels + key_head * HEAD_DIM + piece * 8;
        rows[0][i] = rows[1][i] = make_uint4(0, 0, 0, 0);
        if (token < tokens) rows[0][i] = *reinterpret_cast<const uint4*>(at), rows[1][i] = *reinterpret_cast<const uint4*>(at + args.key_width);
    }
#pragma unroll
    for (int i = 0; i < CHUNK * PIECES / CHUNK_THREADS; i++) {
        const int row = (i * CHUNK_THREADS + threadIdx.x) / PIECES, piece = threadIdx.x % PIECES;
        *reinterpret_cast<uint4*>(&shared.q[row][piece * 4]) = rows[0][i];
        *reinterpret_cast<uint4*>(&shared.k[row][piece * 4]) = rows[1][i];
        float q = sum_of_squares(rows[0][i]), k = sum_of_squares(rows[1][i]);
#pragma unroll
        for (int offset = PIECES / 2; offset; offset /= 2) q += __shfl_xor_sync(~0u, q, offset), k += __shfl_xor_sync(~0u, k, offset);
        if (piece == 0) shared.q_norm[row] = rsqrtf(q + 1e-6f) * args.scale, shared.k_norm[row] = rsqrtf(k + 1e-6f);
    }
}

// Strengths, and running sums of the log decays within each half; past the end: write nothing, forget nothing.
__device__ __forceinline__ void load_gates(const ChunkArgs& args, ChunkShared& shared, int chunk, int head, int tokens) {
    if (threadIdx.x >= CHUNK) return;
    const int row = threadIdx.x, lane = row % 32, token = chunk * CHUNK + row;
    float beta = 0.f, log_decay = 0.f;
    if (token < tokens) {
        const bf16* at = args.ba + size_t(token) * args.ba_stride + head;
        const float a = __bfloat162float(at[args.heads]) + args.bias[head];
        beta = 1.f / (1.f + __expf(-__bfloat162float(at[0])));
        log_decay = (a > 20.f ? a : logf(1.f + expf(a))) * args.rate[head];
    }
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const float before = __shfl_up_sync(~0u, log_decay, offset);
        if (lane >= offset) log_decay += before;
    }
    shared.beta[row] = beta, shared.total[row] = log_decay;
    if (row == 31) shared.first_half = log_decay;
}

// out[i][j..j+COUNT) = sum_m left[i][m] right[m][j..]: of DEPTH, this thread's part of one block product.
template <int DEPTH, int COUNT>
__device__ __forceinline__ void block_row(const float* left, const float* right, int right_row, float (&sums)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) sums[j] = 0.f;
#pragma unroll
    for (int m = 0; m < DEPTH; m += 4) {
        const float4 four = *reinterpret_cast<const float4*>(left + m);
        const float factors[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < COUNT; j += 4) {
                const float4 values = *reinterpret_cast<const float4*>(right + (m + i) * right_row + j);
                sums[j] += factors[i] * values.x, sums[j + 1] += factors[i] * values.y;
                sums[j + 2] += factors[i] * values.z, sums[j + 3] += factors[i] * values.w;
            }
    }
}

template <int COUNT>
__device__ __forceinline__ void store_row(float* out, const float (&sums)[COUNT], float sign) {
#pragma unroll
    for (int j = 0; j < COUNT; j += 4)
        *reinterpret_cast<float4*>(out + j) = make_float4(sign * sums[j], sign * sums[j + 1], sign * sums[j + 2], sign * sums[j + 3]);
}

// t = (I + a)⁻¹ for a strictly lower triangular; of a only what is below the diagonal is read. By all threads.
__device__ __forceinline__ void invert(float (*a)[SQUARE_ROW], float (*t)[SQUARE_ROW], float (*product)[PRODUCT_ROW]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int corner = warp * BLOCK;
    if (lane < BLOCK) {
        float column[BLOCK];
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            float value = i == lane ? 1.f : 0.f;
#pragma unroll
            for (int m = 0; m < i; m++) value -= a[corner + i][corner + m] * column[m];
            t[corner + i][corner + lane] = column[i] = value;
        }
    } else if (warp % 2 == 0) {   // above the diagonal, where the quarters' products read
#pragma unroll
        for (int i = 0; i < BLOCK; i++) t[corner + i][corner + lane] = 0.f;
    }
    __syncthreads();
    {
        const int half = warp / 2 * HALF, row = warp % 2 * 8 + lane / 4, j = lane % 4 * 4;
        float sums[4];
        block_row<BLOCK>(&a[half + BLOCK + row][half], &t[half][half + j], SQUARE_ROW, sums);
        store_row(&product[warp / 2 * BLOCK + row][j], sums, 1.f);
        __syncthreads();
        block_row<BLOCK>(&t[half + BLOCK + row][half + BLOCK], &product[warp / 2 * BLOCK][j], PRODUCT_ROW, sums);
        store_row(&t[half + BLOCK + row][half + j], sums, -1.f);
    }
    __syncthreads();
    const int row = threadIdx.x / 4, j = threadIdx.x % 4 * 8;
    float sums[8];
    block_row<HALF>(&a[HALF + row][0], &t[0][j], SQUARE_ROW, sums);
    store_row(&product[row][j], sums, 1.f);
    __syncthreads();
    block_row<HALF>(&t[HALF + row][HALF], &product[0][j], PRODUCT_ROW, sums);
    store_row(&t[HALF + row][j], sums, -1.f);
    __syncthreads();
}

__global__ void __launch_bounds__(CHUNK_THREADS) gdn_chunk_kernel(const ChunkArgs args) {
    extern __shared__ __align__(128) uint8_t bytes[];
    ChunkShared& shared = *reinterpret_cast<ChunkShared*>(bytes);
    const int chunk = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int tokens = args.count ? *args.count : args.tokens;
    if (chunk * CHUNK >= tokens) return;   // the scan ends before it
    load_rows(args, shared, chunk, head / args.repeat, tokens);
    load_gates(args, shared, chunk, head, tokens);
    __syncthreads();

    const size_t place = size_t(head) * gridDim.x + chunk;
    bf16* square = args.squares + place * 4 * CHUNK * CHUNK;
    if (threadIdx.x < CHUNK) {
        const int row = threadIdx.x;
        const float before = shared.first_half, total = shared.total[row] + (row < 32 ? 0.f : before), whole = shared.total[CHUNK - 1] + before;
        float* factor = args.factors + place * 4 * CHUNK + row;
        factor[0] = shared.k_norm[row] * __expf(total), factor[CHUNK] = shared.q_norm[row] * __expf(total);
        factor[2 * CHUNK] = shared.k_norm[row] * __expf(whole - total), factor[3 * CHUNK] = __expf(whole);
    }

    // Rows 16 warp + g and + 8, columns 8 n + 2 t and the next; above the diagonal none.
    float keys[8][4] = {}, queries[8][4] = {};
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) {
        const int word = step * 8 + t, row = warp * BLOCK + g;
        const uint32_t a_k[4] = {shared.k[row][word], shared.k[row + 8][word], shared.k[row][word + 4], shared.k[row + 8][word + 4]};
        const uint32_t a_q[4] = {shared.q[row][word], shared.q[row + 8][word], shared.q[row][word + 4], shared.q[row + 8][word + 4]};
#pragma unroll
        for (int n = 0; n < 8; n++)
            if (n <= 2 * warp + 1) {
                const uint32_t low = shared.k[n * 8 + g][word], high = shared.k[n * 8 + g][word + 4];
                mma_bf16(keys[n], a_k, low, high);
                mma_bf16(queries[n], a_q, low, high);
            }
    }
    __syncthreads();   // q and k are done with: A and T take their places

    float(*system)[SQUARE_ROW] = reinterpret_cast<float(*)[SQUARE_ROW]>(shared.k);
    float(*inverse)[SQUARE_ROW] = reinterpret_cast<float(*)[SQUARE_ROW]>(shared.q);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const int i = warp * BLOCK + g + side * 8;
        const float total = shared.total[i] + (i < 32 ? 0.f : shared.first_half);
        const float q_norm = shared.q_norm[i], write = shared.beta[i] * shared.k_norm[i];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float score[2], own[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int j = n * 8 + 2 * t + e;
                // Above the diagonal the exponent is positive and may overflow.
                const float decay = i >= j ? __expf(total - (shared.total[j] + (j < 32 ? 0.f : shared.first_half))) * shared.k_norm[j] : 0.f;
                score[e] = queries[n][side * 2 + e] * decay * q_norm;
                own[e] = i > j ? keys[n][side * 2 + e] * decay * write : 0.f;
            }
            uint32_t high, low;
            split_bf16(score[0], score[1], high, low);
            uint32_t* at = reinterpret_cast<uint32_t*>(square + 2 * CHUNK * CHUNK + i * CHUNK) + (n ^ (i & args.swizzle)) * 4 + t;
            at[0] = high, at[CHUNK * CHUNK / 2] = low;
            *reinterpret_cast<float2*>(&system[i][n * 8 + 2 * t]) = make_float2(own[0], own[1]);
        }
    }
    __syncthreads();
    invert(system, inverse, shared.product);

#pragma unroll
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 8; i += CHUNK_THREADS) {
        const int row = i / 8, column = i % 8 * 8;
        uint32_t high[4] = {}, low[4] = {};
        if (column < HALF || row >= HALF)   // the upper right quarter is zero, and was never written
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 pair = *reinterpret_cast<const float2*>(&inverse[row][column + 2 * j]);
                split_bf16(pair.x * shared.beta[column + 2 * j], pair.y * shared.beta[column + 2 * j + 1], high[j], low[j]);
            }
        uint4* at = reinterpret_cast<uint4*>(square + row * CHUNK) + (i % 8 ^ (row & args.swizzle));
        at[0] = make_uint4(high[0], high[1], high[2], high[3]);
        at[CHUNK * CHUNK / 8] = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

}  // namespace
}  // namespace engine

// repeat: value heads of a key head; key_width: channels of all queries; strides in elements; swizzled: for engine_gdn_scan, not
// for Triton's scan. Head dimension 128. count: null, or [1] on the device, 1 to tokens: only so many rows are live. Squares and
// factors are laid out for all `tokens` all the same; of chunks without a live row none are written.
extern "C" int engine_gdn_chunks(const void* mixed, const void* ba, const float* rate, const float* bias, void* squares, float* factors,
                                 const int* count, int tokens, int heads, int repeat, int key_width, int channels, int ba_stride, float scale, int swizzled, void* stream) {
    using namespace engine;
    if (tokens < 1 || heads < 1 || repeat < 1 || heads % repeat || channels % 8 || key_width != heads / repeat * HEAD_DIM) return cudaErrorInvalidValue;
    const ChunkArgs args{static_cast<const bf16*>(mixed), static_cast<const bf16*>(ba), rate, bias, static_cast<bf16*>(squares), factors,
                         count, tokens, heads, repeat, key_width, channels, ba_stride, swizzled ? 7 : 0, scale};
    return launch(gdn_chunk_kernel, dim3((tokens + CHUNK - 1) / CHUNK, heads), CHUNK_THREADS, sizeof(ChunkShared), false, stream, args);
}
