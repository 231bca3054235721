// One launch: grid, block, shared memory, stream, and whether the kernel may start while its predecessor drains.
#pragma once
#include <cuda_runtime.h>

#include <utility>

namespace engine {

// Shared memory that one block may have; build.py passes the architecture's.
constexpr size_t MAX_SHARED_BYTES =
#ifdef ENGINE_MAX_SHARED_BYTES
    ENGINE_MAX_SHARED_BYTES;
#else
    227 * 1024;   // sm_90
#endif

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, bool dependent, void* stream,
                   Arguments&&... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = dependent ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace engine
