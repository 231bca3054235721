// Two faults that compute-sanitizer must find, or what it says of the kernels is worth nothing (tools/sanitize.py). The names
// begin as the kernels' do, so that the filter by name is tried too.
#include <cuda_runtime.h>

namespace engine {

// Every thread writes a word that its neighbour reads, with nothing between.
__global__ void planted_race(int* out) {
    __shared__ int words[64];
    words[threadIdx.x] = int(threadIdx.x);
    out[threadIdx.x] = words[threadIdx.x ^ 32];
}

// One word past the end.
__global__ void planted_overrun(int* out, int count) { out[count + (threadIdx.x == 0 ? 1 << 20 : -1 - int(threadIdx.x))] = 1; }

}  // namespace engine

extern "C" int engine_planted(const char* tool) {
    constexpr int COUNT = 64;
    int* out = nullptr;
    if (cudaError_t error = cudaMalloc(&out, COUNT * sizeof(int))) return error;
    if (tool[0] == 'r') engine::planted_race<<<1, COUNT>>>(out);
    else engine::planted_overrun<<<1, COUNT>>>(out, COUNT);
    return cudaDeviceSynchronize();
}
