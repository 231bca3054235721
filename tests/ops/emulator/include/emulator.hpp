// CUDA C++ on a CPU, for tests of a kernel's logic: one fiber per thread of a block, blocks one after another.
//
// Warp collectives and barriers are meetings of fibers. Bulk copies arrive late and in any order, and until then the
// destination holds garbage, so that a missing wait shows; which fiber runs next is drawn at random, so that a missing
// barrier has a chance to show. What is not modelled: memory consistency, bank conflicts, time, and overlap of launches.
#pragma once
#include <setjmp.h>
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
alignas(1024) inline uint8_t shared_memory[ENGINE_MAX_SHARED_BYTES];   // of the block that runs

struct Copy {
    void* destination;
    const void* source;
    uint32_t bytes;
    uint64_t* barrier;
};

// Lives on from block to block. _setjmp and _longjmp switch without a system call, which swapcontext makes two of.
struct Fiber {
    jmp_buf context;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    bool (*ready)(const void*) = nullptr;   // whether what it waits for has come; null: it can go on
    const void* waits_for = nullptr;        // the argument of `ready`, on its own stack
    std::vector<Copy> asked;                // 16-byte copies that no barrier waits for yet
    unsigned gathers = 0;
    bool fence_due = false;                 // it has waited for copies, which a product sees only behind a proxy fence
    bool begun = false, done = false;
};

struct Meeting {   // of `size` fibers, again and again
    unsigned size = 0, here = 0, generation = 0;
};

struct Slot {
    alignas(8) uint8_t bytes[24];
};

struct Block {
    std::function<void()> body;
    std::vector<Meeting> warps;
    std::vector<std::array<std::array<Slot, 32>, 2>> slots;   // what the lanes of a warp show each other, in turns
    Meeting all;
    std::vector<Copy> copies;
    jmp_buf scheduler;
    unsigned current = 0;
    std::mt19937 random{1234};
};

inline Block* block = nullptr;
inline std::vector<std::unique_ptr<Fiber>> fibers;   // as many as the largest block so far had threads

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: block (%u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, threadIdx.x, what);
    std::abort();
}

inline Fiber& self() { return *fibers[block->current]; }

inline void leave(Fiber& fiber) {
    if (!_setjmp(fiber.context)) _longjmp(block->scheduler, 1);
}

template <class Ready>
void wait_until(const Ready& ready) {
    if (ready()) return;
    self().ready = [](const void* what) { return (*static_cast<const Ready*>(what))(); };
    self().waits_for = &ready;
    leave(self());
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

// Every lane's value, after all have shown theirs; to be read before the next gather. Two sets of slots in turns: a lane
// that is ahead writes the other set, and cannot come back to this one before all have met again.
template <class T>
struct Shown {
    const std::array<Slot, 32>& slots;
    T operator[](int lane) const {
        T value;
        std::memcpy(&value, slots[lane].bytes, sizeof(T));
        return value;
    }
};
template <class T>
Shown<T> gather(T mine) {
    static_assert(sizeof(T) <= sizeof(Slot));
    auto& slots = block->slots[threadIdx.x / 32][self().gathers++ % 2];
    std::memcpy(slots[threadIdx.x % 32].bytes, &mine, sizeof(T));
    meet_warp();
    return {slots};
}

// mbarrier: arrivals still to come in this phase, arrivals per phase, phase parity, bytes still to come.
struct Barrier {
    uint16_t pending, arrivals : 15, phase : 1;
    int32_t bytes;
};
static_assert(sizeof(Barrier) == sizeof(uint64_t));
inline Barrier& as_barrier(uint64_t* barrier) { return *reinterpret_cast<Barrier*>(barrier); }
inline bool settle(Barrier& barrier) {   // whether that was the end of its phase
    if (barrier.pending != 0 || barrier.bytes != 0) return false;
    barrier.phase ^= 1, barrier.pending = barrier.arrivals;
    return true;
}

inline bool land_one_copy() {   // whether it ended a phase
    auto& copies = block->copies;
    const size_t index = block->random() % copies.size();
    const Copy copy = copies[index];
    copies[index] = copies.back();
    copies.pop_back();
    std::memcpy(copy.destination, copy.source, copy.bytes);
    as_barrier(copy.barrier).bytes -= int32_t(copy.bytes);
    return settle(as_barrier(copy.barrier));
}

inline void enter() {
    for (;;) {
        block->body();
        self().done = true;
        leave(self());
    }
}

inline void go_on(Fiber& fiber) {   // until it waits or is done
    if (_setjmp(block->scheduler)) return;
    if (fiber.begun) _longjmp(fiber.context, 1);
    fiber.begun = true;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = fiber.stack.get(), first.uc_stack.ss_size = STACK_BYTES, first.uc_link = nullptr;
    makecontext(&first, enter, 0);
    setcontext(&first);
}

inline void run_block(unsigned threads, std::function<void()> body) {
    Block here;
    block = &here;
    here.body = std::move(body);
    here.warps.resize((threads + 31) / 32);
    here.slots.resize(here.warps.size());
    for (unsigned w = 0; w < here.warps.size(); w++) here.warps[w].size = std::min(32u, threads - 32 * w);
    here.all.size = threads;
    here.random.seed(blockIdx.x * 7919 + blockIdx.y);
    while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
    for (unsigned i = 0; i < threads; i++) fibers[i]->done = false;
    unsigned left = threads;
    while (left) {
        const unsigned start = here.random() % threads;   // a round over all fibers from a random one
        bool ran = false;
        for (unsigned i = 0; i < threads; i++) {
            here.current = (start + i) % threads;
            Fiber& fiber = self();
            if (fiber.done || (fiber.ready && !fiber.ready(fiber.waits_for))) continue;
            fiber.ready = nullptr, threadIdx = dim3(here.current), ran = true;
            go_on(fiber);
            if (fiber.done) left--;
        }
        if (ran) {
            if (!here.copies.empty() && here.random() % 8 == 0) land_one_copy();   // late: most are still out when nobody waits for them
            continue;
        }
        bool ended = false;   // all wait: nobody can go on before a phase ends
        while (!ended && !here.copies.empty()) ended = land_one_copy();
        if (!ended) fail("deadlock: no thread can go on and no copy is on its way");
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
    const auto all = emulator::gather(value);
    unsigned most = 0;
    for (int lane = 0; lane < 32; lane++) most = std::max(most, all[lane]);
    return most;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
    const auto all = emulator::gather(value);
    unsigned least = ~0u;
    for (int lane = 0; lane < 32; lane++) least = std::min(least, all[lane]);
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
