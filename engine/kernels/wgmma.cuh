// Warpgroup products of Hopper: D[64, N] += A[64, 16] B[16, N] in bf16, A in registers, B in shared memory. PTX ISA 9.0,
// section 9.7.15. Four warps issue one together; warp w of them holds rows 16 w to 16 w + 15 of A and D, laid out as
// mma.sync's m16n8k16 fragments are. sm_90a alone has these.
#pragma once
#include <cstdint>

#include "descriptor.cuh"

namespace engine {

// Before the first product, and between any write of its registers and a product.
__device__ __forceinline__ void wgmma_fence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// The compiler may not move what computes these words past this point: after wgmma_fence it would have to serialise products.
template <int COUNT>
__device__ __forceinline__ void wgmma_operands(uint32_t (&words)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(words[i])::"memory");
}

// The same for sums, before a fence and behind a wait: what sets or reads them may move past neither.
template <int COUNT>
__device__ __forceinline__ void wgmma_sums(float (&d)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

// What was issued since the last commit is one group.
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Until at most LEFT groups are under way. Before that neither sums nor A of a group may be touched, nor B given back.
template <int LEFT>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

// What other threads wrote to shared memory, and a barrier has told of, becomes visible to the products of this thread.
__device__ __forceinline__ void wgmma_sees_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers of this warpgroup's threads from here on; all of its warps together.
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT>
__device__ __forceinline__ void more_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

#define ENGINE_SUMS(g) "+f"(d[g][0]), "+f"(d[g][1]), "+f"(d[g][2]), "+f"(d[g][3])

// sums[g]: of tokens 8 g to 8 g + 7, for the first GROUPS groups.
template <int GROUPS, int COUNT>
__device__ __forceinline__ void wgmma_bf16(float (&d)[COUNT][4], const uint32_t (&a)[4], uint64_t b) {
    static_assert(GROUPS <= COUNT && (GROUPS == 2 || GROUPS == 4 || GROUPS == 6 || GROUPS == 8 || GROUPS == 12 || GROUPS == 16),
                  "an instruction for each is written out");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (GROUPS == 2)
        asm volatile(
            "{.reg .pred more; setp.eq.u32 more, 0, 0; "
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7"
            "}, {%8,%9,%10,%11}, %12, more, 1, 1, 0;}"
            : ENGINE_SUMS(0), ENGINE_SUMS(1)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    if constexpr (GROUPS == 4)
        asm volatile(
            "{.reg .pred more; setp.eq.u32 more, 0, 0; "
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
            "}, {%16,%17,%18,%19}, %20, more, 1, 1, 0;}"
            : ENGINE_SUMS(0), ENGINE_SUMS(1), ENGINE_SUMS(2), ENGINE_SUMS(3)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    if constexpr (GROUPS == 6)
        asm volatile(
            "{.reg .pred more; setp.eq.u32 more, 0, 0; "
            "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
            "}, {%24,%25,%26,%27}, %28, more, 1, 1, 0;}"
            : ENGINE_SUMS(0), ENGINE_SUMS(1), ENGINE_SUMS(2), ENGINE_SUMS(3), ENGINE_SUMS(4), ENGINE_SUMS(5)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    if constexpr (GROUPS == 8)
        asm volatile(
            "{.reg .pred more; setp.eq.u32 more, 0, 0; "
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
            "%25,%26,%27,%28,%29,%30,%31"
            "}, {%32,%33,%34,%35}, %36, more, 1, 1, 0;}"
            : ENGINE_SUMS(0), ENGINE_SUMS(1), ENGINE_SUMS(2), ENGINE_SUMS(3), ENGINE_SUMS(4), ENGINE_SUMS(5),
              ENGINE_SUMS(6), ENGINE_SUMS(7)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    if constexpr (GROUPS == 12)
        asm volatile(
            "{.reg .pred more; setp.eq.u32 more, 0, 0; "
            "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
            "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
            "}, {%48,%49,%50,%51}, %52, more, 1, 1, 0;}"
            : ENGINE_SUMS(0), ENGINE_SUMS(1), ENGINE_SUMS(2), ENGINE_SUMS(3), ENGINE_SUMS(4), ENGINE_SUMS(5),
              ENGINE_SUMS(6), ENGINE_SUMS(7), ENGINE_SUMS(8), ENGINE_SUMS(9), ENGINE_SUMS(10), ENGINE_SUMS(11)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    if constexpr (GROUPS == 16)
        asm volatile(
            "{.reg .pred more; setp.eq.u32 more, 0, 0; "
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
            "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
            "}, {%64,%65,%66,%67}, %68, more, 1, 1, 0;}"
            : ENGINE_SUMS(0), ENGINE_SUMS(1), ENGINE_SUMS(2), ENGINE_SUMS(3), ENGINE_SUMS(4), ENGINE_SUMS(5),
              ENGINE_SUMS(6), ENGINE_SUMS(7), ENGINE_SUMS(8), ENGINE_SUMS(9), ENGINE_SUMS(10), ENGINE_SUMS(11),
              ENGINE_SUMS(12), ENGINE_SUMS(13), ENGINE_SUMS(14), ENGINE_SUMS(15)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

// The same for 128 columns of B from swizzled_columns.
__device__ __forceinline__ void wgmma_bf16_columns(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile(
        "{.reg .pred more; setp.eq.u32 more, 0, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
        "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, more, 1, 1, 1;}"
        : ENGINE_SUMS(0), ENGINE_SUMS(1), ENGINE_SUMS(2), ENGINE_SUMS(3), ENGINE_SUMS(4), ENGINE_SUMS(5), ENGINE_SUMS(6), ENGINE_SUMS(7),
          ENGINE_SUMS(8), ENGINE_SUMS(9), ENGINE_SUMS(10), ENGINE_SUMS(11), ENGINE_SUMS(12), ENGINE_SUMS(13), ENGINE_SUMS(14), ENGINE_SUMS(15)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

#undef ENGINE_SUMS

}  // namespace engine
