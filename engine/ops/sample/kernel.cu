// Greedy ids from bf16 logits: the largest of each row, the lowest id among equals, without a pass back to the host.
//
// Bytes: 2 * vocab_size per row, read from the L2, where lm_head left them. Candidates are the keys of kernels/argmax.cuh;
// blocks meet in one atomic per block, and the last one writes the id and clears key and counter for the next launch.
// For logits of any origin: a W4A16 lm_head of up to 32 rows finds its ids in its own launch (kernels/skinny.cuh).
#include "../../kernels/argmax.cuh"
#include "../../kernels/async.cuh"
#include "../../kernels/launch.cuh"
#include "../../kernels/math.cuh"

namespace engine {
namespace {

constexpr int THREADS = 256;
constexpr int PER_ACCESS = 8;   // bf16 in 16 bytes

__global__ void __launch_bounds__(THREADS) argmax_kernel(const uint4* logits, int64_t* ids, unsigned long long* best, int* arrived, int vocab_size) {
    __shared__ uint64_t warp_best[THREADS / 32];
    const int row = blockIdx.y, accesses = vocab_size / PER_ACCESS;
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint64_t mine = 0;
#pragma unroll 4
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < accesses; i += gridDim.x * THREADS) {
        const uint4 words = logits[size_t(row) * accesses + i];
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int j = 0; j < PER_ACCESS; j++)
            mine = larger(mine, argmax_key(ordered_bf16(j % 2 ? word[j / 2] >> 16 : word[j / 2] & 0xFFFFu), i * PER_ACCESS + j));
    }
#pragma unroll
    for (int offset = 16; offset; offset /= 2) mine = larger(mine, __shfl_xor_sync(~0u, mine, offset));
    if (threadIdx.x % 32 == 0) warp_best[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x) return;
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) mine = larger(mine, warp_best[i]);
    atomicMax(best + row, mine);
    __threadfence();
    if (atomicAdd(arrived + row, 1) != int(gridDim.x) - 1) return;
    __threadfence();
    ids[row] = argmax_id(atomicExch(best + row, 0ull));
    arrived[row] = 0;
}

}  // namespace
}  // namespace engine

// logits bf16 [m][vocab_size]; ids [m]; best [m] and arrived [m] zero before and after. vocab_size a multiple of 8.
extern "C" int engine_argmax(const void* logits, int64_t* ids, void* best, int* arrived, int m, int vocab_size, int blocks,
                             int dependent, void* stream) {
    using namespace engine;
    if (m < 1 || vocab_size < PER_ACCESS || vocab_size % PER_ACCESS || blocks < 1) return cudaErrorInvalidValue;
    return launch(argmax_kernel, dim3(blocks, m), THREADS, 0, dependent, stream, static_cast<const uint4*>(logits), ids,
                  static_cast<unsigned long long*>(best), arrived, vocab_size);
}
