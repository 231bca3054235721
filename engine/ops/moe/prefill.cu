// What stands around a library's grouped products in a large prefill step: x of each pair in the order of experts before
// them, the weighted sum of a token's pairs behind them.
//
//   spread:   out[positions[pair]] = x[pair / slots]
//   combine:  out[t] = sum over slots, in order, of weights[pair] * y[positions[pair]]    in fp32, each product rounded
//
// Bytes: spread reads x once, m * 2k, and writes it slots times; combine reads m * slots * 2n and writes m * 4n. Of 16,384
// tokens of the 35B: 0.67 and 0.74 GB. A warp (spread) or a block (combine) takes a token, so that its rows are written, or
// added up, from registers; every access is 16 bytes a lane of one row.
//
// Rejected: gathering by pair instead (x, 67 MB there, is read nine times in an order that the L2 does not hold); a scatter of
// fp32 planes, which the next norm adds up (kernels/grouped.cuh): nine times the bytes, written and read.
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int VECTOR = 8;          // bf16 in 16 bytes
constexpr int MOST_SLOTS = 16;
constexpr int SPREAD_WARPS = 8;    // of a block, a token each
constexpr int SPREAD_AHEAD = 4;    // 16-byte loads of a lane together
constexpr int COMBINE_THREADS = 256;

struct SpreadArgs {
    const uint4* x;          // [m][vectors]
    const int* positions;    // [m * slots]
    uint4* out;              // [m * slots][vectors]
    int m, slots, vectors;
};

__global__ void __launch_bounds__(SPREAD_WARPS * 32) spread_pairs_kernel(const SpreadArgs args) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int token = blockIdx.x * SPREAD_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= args.m) return;
    const int mine = __ldcg(args.positions + size_t(token) * args.slots + min(lane, args.slots - 1));
    const uint4* row = args.x + size_t(token) * args.vectors;
    for (int first = 0; first < args.vectors; first += SPREAD_AHEAD * 32) {
        uint4 values[SPREAD_AHEAD];
#pragma unroll
        for (int i = 0; i < SPREAD_AHEAD; i++) values[i] = __ldcg(row + min(first + i * 32 + lane, args.vectors - 1));
        for (int slot = 0; slot < args.slots; slot++) {
            uint4* out = args.out + size_t(__shfl_sync(~0u, mine, slot)) * args.vectors;
#pragma unroll
            for (int i = 0; i < SPREAD_AHEAD; i++)
                if (first + i * 32 + lane < args.vectors) out[first + i * 32 + lane] = values[i];
        }
    }
}

struct CombineArgs {
    const uint4* y;          // [m * slots][vectors], in the order of experts
    const int* positions;    // [m * slots]
    const float* weights;    // [m * slots], by pair
    float4* out;             // [m][2 * vectors]
    int slots, vectors;
};

__global__ void __launch_bounds__(COMBINE_THREADS) combine_pairs_kernel(const CombineArgs args) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    const size_t token = blockIdx.x;
    const int* positions = args.positions + token * args.slots;
    const float* weights = args.weights + token * args.slots;
    for (int column = threadIdx.x; column < args.vectors; column += COMBINE_THREADS) {
        float sums[VECTOR] = {};
#pragma unroll 3
        for (int slot = 0; slot < args.slots; slot++) {
            const uint4 loaded = __ldcg(args.y + size_t(__ldcg(positions + slot)) * args.vectors + column);
            const float weight = __ldcg(weights + slot);
            const uint32_t words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {   // not fused: what adding up the planes of `down`'s own launch gives
                const float2 pair = unpack_bf16(words[i]);
                sums[2 * i] = __fadd_rn(sums[2 * i], __fmul_rn(pair.x, weight));
                sums[2 * i + 1] = __fadd_rn(sums[2 * i + 1], __fmul_rn(pair.y, weight));
            }
        }
        float4* out = args.out + (token * args.vectors + column) * 2;
        out[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        out[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
    }
}

bool valid_pairs(int m, int slots, int columns) {
    return m >= 1 && slots >= 1 && slots <= MOST_SLOTS && double(m) * slots <= 2147483647. && columns >= VECTOR && columns % VECTOR == 0;
}

}  // namespace
}  // namespace engine

// x bf16 [m][k], positions [m * slots] -> out bf16 [m * slots][k]; k a multiple of 8. cudaErrorInvalidValue for other shapes.
extern "C" int engine_moe_spread(const void* x, const int* positions, void* out, int m, int slots, int k, int dependent, void* stream) {
    using namespace engine;
    if (!valid_pairs(m, slots, k)) return cudaErrorInvalidValue;
    const SpreadArgs args{static_cast<const uint4*>(x), positions, static_cast<uint4*>(out), m, slots, k / VECTOR};
    return launch(spread_pairs_kernel, dim3((m + SPREAD_WARPS - 1) / SPREAD_WARPS), SPREAD_WARPS * 32, 0, dependent, stream, args);
}

// y bf16 [m * slots][n], positions and weights [m * slots] -> out fp32 [m][n]; n a multiple of 8.
extern "C" int engine_moe_combine(const void* y, const int* positions, const float* weights, void* out, int m, int slots, int n,
                                  int dependent, void* stream) {
    using namespace engine;
    if (!valid_pairs(m, slots, n)) return cudaErrorInvalidValue;
    const CombineArgs args{static_cast<const uint4*>(y), positions, weights, static_cast<float4*>(out), slots, n / VECTOR};
    return launch(combine_pairs_kernel, dim3(m), COMBINE_THREADS, 0, dependent, stream, args);
}
