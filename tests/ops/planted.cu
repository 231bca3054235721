// What compute-sanitizer must find, and what it must not, or what it says of the kernels is worth nothing (tools/sanitize.py).
// The names begin as the kernels' do, so that the filter by name is tried too.
#include <cuda_runtime.h>

#include <cstring>

#include "../../engine/kernels/stage.cuh"
#include "../../engine/kernels/turn.cuh"

namespace engine {

// Every thread writes a word that its neighbour reads, with nothing between.
__global__ void planted_race(int* out) {
    __shared__ int words[64];
    words[threadIdx.x] = int(threadIdx.x);
    out[threadIdx.x] = words[threadIdx.x ^ 32];
}

// One word past the end.
__global__ void planted_overrun(int* out, int count) { out[count + (threadIdx.x == 0 ? 1 << 20 : -1 - int(threadIdx.x))] = 1; }

// A ring as the kernels have them, two warps that read and one that brings COLUMNS of 32 words, by STAGES. EARLY: a stage is given
// back before it is read. Otherwise it is sound, in the build for the sanitizers: where one lane arrives for its warp it would be
// reported too (stage.cuh), so that a tool which does that to this build as well is not believed.
constexpr int READERS = 2, STAGES = 3, COLUMNS = 12;
template <bool EARLY>
__global__ void planted_ring(const int* columns, int* out) {
    __shared__ __align__(16) int stages[STAGES][32];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + i, 1), barrier_init(empty + i, READERS * ARRIVALS_PER_WARP);
        barrier_init_fence();
    }
    __syncthreads();
    Turn turn;
    int sum = 0;
#pragma unroll 1
    for (int column = 0; column < COLUMNS; column++, turn.advance(STAGES)) {
        if (warp == READERS) {
            barrier_wait(empty + turn.stage, turn.parity ^ 1);
            if (lane == 0) {
                barrier_expect_bytes(full + turn.stage, sizeof(stages[0]));
                bulk_load(stages[turn.stage], columns + column * 32, sizeof(stages[0]), full + turn.stage, evict_first_policy());
            }
        } else {
            barrier_wait(full + turn.stage, turn.parity);
            if (EARLY && gives_back(lane)) barrier_arrive(empty + turn.stage);
            sum += stages[turn.stage][lane];
            if (!EARLY && gives_back(lane)) barrier_arrive(empty + turn.stage);
        }
    }
    if (warp < READERS) out[threadIdx.x] = sum;
}

}  // namespace engine

extern "C" int engine_planted(const char* name) {
    constexpr int COUNT = 64, WORDS = engine::COLUMNS * 32;
    int *out = nullptr, *columns = nullptr;
    if (cudaError_t error = cudaMalloc(&out, COUNT * sizeof(int))) return error;
    if (cudaError_t error = cudaMalloc(&columns, WORDS * sizeof(int))) return error;
    int words[WORDS];
    for (int i = 0; i < WORDS; i++) words[i] = i;
    if (cudaError_t error = cudaMemcpy(columns, words, sizeof(words), cudaMemcpyHostToDevice)) return error;
    auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
    if (is("race")) engine::planted_race<<<1, COUNT>>>(out);
    else if (is("overrun")) engine::planted_overrun<<<1, COUNT>>>(out, COUNT);
    else if (is("early ring")) engine::planted_ring<true><<<1, (engine::READERS + 1) * 32>>>(columns, out);
    else if (is("sound ring")) engine::planted_ring<false><<<1, (engine::READERS + 1) * 32>>>(columns, out);
    else return cudaErrorInvalidValue;
    if (cudaError_t error = cudaGetLastError()) return error;
    return cudaDeviceSynchronize();
}
