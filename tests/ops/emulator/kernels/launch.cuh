// Emulated: engine/kernels/launch.cuh. All blocks, one after another, in an order that changes.
#pragma once
#include "emulator.hpp"

namespace engine {

constexpr size_t MAX_SHARED_BYTES = ENGINE_MAX_SHARED_BYTES;

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, bool, void*, Arguments&&... arguments) {
    if (shared_bytes > MAX_SHARED_BYTES || threads > 1024) return cudaErrorInvalidConfiguration;
    gridDim = grid, blockDim = dim3(threads);
    const unsigned blocks = grid.x * grid.y;
    for (unsigned i = 0; i < blocks; i++) {
        const unsigned index = blocks - 1 - i;
        blockIdx = dim3(index % grid.x, index / grid.x);
        std::memset(emulator::shared_memory, 0xFF, sizeof(emulator::shared_memory));
        emulator::run_block(threads, [&] { kernel(arguments...); });
    }
    return cudaSuccess;
}

}  // namespace engine
