// CUDA C++ on a CPU, for tests of a kernel's logic: one fiber per thread of a block, blocks one after another.
//
// Warp collectives and barriers are meetings of fibers. Bulk copies arrive late and in any order, and until then the
// destination holds garbage, so that a missing wait shows; which fiber runs next is drawn at random, so that a missing
// barrier has a chance to show. What is not modelled: memory consistency, bank conflicts, time, and overlap of launches.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

enum cudaError_t : int { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class Kernel> cudaError_t cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace emulator {

constexpr size_t STACK_BYTES = 64 * 1024;
alignas(128) inline uint8_t shared_memory[ENGINE_MAX_SHARED_BYTES];   // of the block that runs

struct Copy {
    void* destination;
    const void* source;
    uint32_t bytes;
    uint64_t* barrier;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    std::function<bool()> ready;   // what it waits for
    std::vector<Copy> asked;       // 16-byte copies that no barrier waits for yet
    bool done = false;
};

struct Meeting {   // of `size` fibers, again and again
    unsigned size = 0, here = 0, generation = 0;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Meeting> warps;
    std::vector<std::array<uint64_t, 32>> slots;   // what the lanes of a warp show each other
    Meeting all;
    std::vector<Copy> copies;
    ucontext_t scheduler;
    unsigned current = 0;
    std::mt19937 random{1234};
};

inline Block* block = nullptr;

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: block (%u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, threadIdx.x, what);
    std::abort();
}

inline void wait_until(std::function<bool()> ready) {
    if (ready()) return;
    Fiber& self = block->fibers[block->current];
    self.ready = std::move(ready);
    swapcontext(&self.context, &block->scheduler);
}

inline void meet(Meeting& meeting) {
    const unsigned generation = meeting.generation;
    if (++meeting.here == meeting.size) {
        meeting.here = 0, meeting.generation++;
        return;
    }
    wait_until([&meeting, generation] { return meeting.generation != generation; });
}

inline void meet_warp() { meet(block->warps[threadIdx.x / 32]); }

// Every lane's value, after all have shown theirs.
template <class T>
std::array<T, 32> gather(T mine) {
    static_assert(sizeof(T) <= 8);
    auto& slots = block->slots[threadIdx.x / 32];
    std::memcpy(&slots[threadIdx.x % 32], &mine, sizeof(T));
    meet_warp();
    std::array<T, 32> all;
    for (int lane = 0; lane < 32; lane++) std::memcpy(&all[lane], &slots[lane], sizeof(T));
    meet_warp();
    return all;
}

// mbarrier: arrivals still to come in this phase (low 16 bits), arrivals per phase, phase parity, bytes still to come.
struct Barrier {
    uint8_t pending, arrivals, phase, unused;
    int32_t bytes;
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));
inline Barrier& as_barrier(uint64_t* barrier) { return *reinterpret_cast<Barrier*>(barrier); }
inline void settle(Barrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) barrier.phase ^= 1, barrier.pending = barrier.arrivals;
}

inline void land_one_copy() {
    auto& copies = block->copies;
    const size_t index = block->random() % copies.size();
    const Copy copy = copies[index];
    copies[index] = copies.back();
    copies.pop_back();
    std::memcpy(copy.destination, copy.source, copy.bytes);
    as_barrier(copy.barrier).bytes -= int32_t(copy.bytes);
    settle(as_barrier(copy.barrier));
}

inline void enter(unsigned low, unsigned high) {
    auto* body = reinterpret_cast<std::function<void()>*>(uintptr_t(low) | uintptr_t(high) << 32);
    (*body)();
    block->fibers[block->current].done = true;
    swapcontext(&block->fibers[block->current].context, &block->scheduler);
}

inline void run_block(unsigned threads, std::function<void()> body) {
    Block here;
    block = &here;
    here.fibers = std::vector<Fiber>(threads);
    here.warps.resize((threads + 31) / 32);
    here.slots.resize(here.warps.size());
    for (unsigned w = 0; w < here.warps.size(); w++) here.warps[w].size = std::min(32u, threads - 32 * w);
    here.all.size = threads;
    here.random.seed(blockIdx.x * 7919 + blockIdx.y);
    const uintptr_t address = reinterpret_cast<uintptr_t>(&body);
    for (Fiber& fiber : here.fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK_BYTES, fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, reinterpret_cast<void (*)()>(enter), 2, unsigned(address), unsigned(address >> 32));
    }
    unsigned left = threads, idle = 0;
    while (left) {
        const unsigned start = here.random() % threads;   // a round over all fibers from a random one
        bool ran = false;
        for (unsigned i = 0; i < threads; i++) {
            here.current = (start + i) % threads;
            Fiber& fiber = here.fibers[here.current];
            if (fiber.done || (fiber.ready && !fiber.ready())) continue;
            fiber.ready = nullptr, threadIdx = dim3(here.current), ran = true;
            swapcontext(&here.scheduler, &fiber.context);
            if (fiber.done) left--;
        }
        if (!here.copies.empty() && (!ran || here.random() % 2)) land_one_copy(), ran = true;
        idle = ran ? 0 : idle + 1;
        if (idle > 2) fail("deadlock: no thread can go on and no copy is on its way");
    }
    if (!here.copies.empty()) fail("the block ended while a bulk copy was on its way");
    block = nullptr;
}

}  // namespace emulator

inline void __syncthreads() { emulator::meet(emulator::block->all); }
inline void __syncwarp() { emulator::meet_warp(); }
template <class T> T __shfl_down_sync(unsigned, T value, int delta) {
    const int lane = threadIdx.x % 32;
    return emulator::gather(value)[lane + delta < 32 ? lane + delta : lane];
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) { return emulator::gather(value)[(threadIdx.x % 32) ^ mask]; }
template <class T> T __shfl_up_sync(unsigned, T value, unsigned delta) {
    const unsigned lane = threadIdx.x % 32;
    return emulator::gather(value)[lane < delta ? lane : lane - delta];
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    unsigned most = 0;
    for (unsigned v : emulator::gather(value)) most = v > most ? v : most;
    return most;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
    unsigned least = ~0u;
    for (unsigned v : emulator::gather(value)) least = v < least ? v : least;
    return least;
}
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline void __threadfence() {}
inline int atomicAdd(int* p, int value) { const int old = *p; *p += value; return old; }
inline unsigned atomicOr(unsigned* p, unsigned bits) { const unsigned old = *p; *p |= bits; return old; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return out;
}
inline float __uint_as_float(unsigned x) { float f; std::memcpy(&f, &x, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned x; std::memcpy(&x, &f, 4); return x; }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
inline float __bfloat162float(__nv_bfloat16 v) { return __uint_as_float(unsigned(v.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16(float f) {   // to nearest, ties to even
    const unsigned x = __float_as_uint(f);
    if (f != f) return {0x7FFF};
    return {uint16_t((x + 0x7FFF + (x >> 16 & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {__float2bfloat16(low), __float2bfloat16(high)}; }
