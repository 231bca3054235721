// Emulated: engine/kernels/async.cuh. A copy poisons its destination at once and lands later.
#pragma once
#include <cstdint>

#include "emulator.hpp"

namespace engine {

inline uint32_t shared_address(const void* pointer) { return uint32_t(static_cast<const uint8_t*>(pointer) - emulator::shared_memory); }

inline void barrier_init(uint64_t* barrier, uint32_t arrivals) { emulator::as_barrier(barrier) = {uint16_t(arrivals), uint16_t(arrivals), 0, 0}; }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint64_t* barrier) {
    emulator::as_barrier(barrier).pending--;
    emulator::settle(emulator::as_barrier(barrier));
}
inline void barrier_expect_bytes(uint64_t* barrier, uint32_t bytes) {
    emulator::as_barrier(barrier).bytes += int32_t(bytes);
    barrier_arrive(barrier);
}
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
    emulator::wait_until([barrier, parity] { return emulator::as_barrier(barrier).phase != parity; });
    emulator::self().fence_due = true;
}
inline uint64_t evict_first_policy() { return 0; }
inline void bulk_load(void* destination, const void* source, uint32_t bytes, uint64_t* barrier) {
    if (bytes % 16 || uintptr_t(destination) % 16 || uintptr_t(source) % 16) emulator::fail("a bulk copy that is not aligned to 16 bytes");
    std::memset(destination, 0xFF, bytes);
    emulator::block->copies.push_back({destination, source, bytes, barrier});
}
inline void bulk_load(void* destination, const void* source, uint32_t bytes, uint64_t* barrier, uint64_t) { bulk_load(destination, source, bytes, barrier); }
template <uint32_t BYTES>
void async_load(void* destination, const void* source) {
    if (uintptr_t(destination) % BYTES || uintptr_t(source) % BYTES) emulator::fail("an asynchronous copy that is not aligned to its size");
    std::memset(destination, 0xFF, BYTES);
    emulator::self().asked.push_back({destination, source, BYTES, nullptr});
}
inline void async_load16(void* destination, const void* source) { async_load<16>(destination, source); }
inline void async_load16_or_zeros(void* destination, const void* source, bool there) {
    alignas(16) static const uint8_t zeros[16] = {};
    static_cast<void>(*static_cast<const volatile uint8_t*>(source));   // which may be read either way
    async_load16(destination, there ? source : zeros);
}
inline void async_load4(void* destination, const void* source) { async_load<4>(destination, source); }
inline void async_arrive(uint64_t* barrier) {   // its copies hold the phase open until they have landed
    auto& asked = emulator::self().asked;
    for (emulator::Copy& copy : asked) {
        copy.barrier = barrier, emulator::as_barrier(barrier).bytes += int32_t(copy.bytes);
        emulator::block->copies.push_back(copy);
    }
    asked.clear();
    barrier_arrive(barrier);
}
inline void prefetch_l2(const void*, uint32_t) {}
inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

}  // namespace engine
