// Emulated: engine/kernels/launch.cuh. All blocks, one after another, in an order drawn anew for each launch.
#pragma once
#include "atomics.hpp"

namespace engine {

constexpr size_t MAX_SHARED_BYTES = ENGINE_MAX_SHARED_BYTES;

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, bool, void*, Arguments&&... arguments) {
    if (shared_bytes > MAX_SHARED_BYTES || threads > 1024) return cudaErrorInvalidConfiguration;
    gridDim = grid, blockDim = dim3(threads);
    std::vector<unsigned> order(grid.x * grid.y * grid.z);
    for (unsigned i = 0; i < order.size(); i++) order[i] = i;
    static std::mt19937 random{1};
    std::shuffle(order.begin(), order.end(), random);
    for (const unsigned index : order) {
        blockIdx = dim3(index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y);
        std::memset(emulator::shared_memory, 0xFF, sizeof(emulator::shared_memory));
        emulator::run_block(threads, [&] { kernel(arguments...); });
    }
    return cudaSuccess;
}

}  // namespace engine
