// Emulated: engine/kernels/wgmma.cuh. A product reads A and B as late as it may, when it is waited for, and until then its sums
// are NaN: a register or a stage that is given back too early shows. A warp's rows concern no other warp, so that it is one
// warp's work; that four issue together is not checked.
#pragma once
#include <map>

#include "async.cuh"

namespace engine {

// B as a pointer in the low 48 bits; above them, of swizzled_columns, a panel's KiB.
struct Product {
    float (*sums)[4];
    const uint32_t* a;
    uint64_t b;
    int groups;
};
struct Products {   // of one thread
    std::vector<Product> open;
    std::vector<std::vector<Product>> groups;
    std::map<float (*)[4], std::array<std::array<float, 4>, 16>> sums;   // of those under way
};
inline std::map<const void*, Products> products;
inline Products& own_products() { return products[&emulator::self()]; }

inline uint64_t swizzled_rows(const void* tile, int step) {
    if (uintptr_t(tile) % 1024) emulator::fail("rows of a product that do not begin on a multiple of 1,024 bytes");
    return uint64_t(tile) + step * 32;
}
inline uint64_t swizzled_columns(const void* tile, int step, int panel_bytes) {
    if (uintptr_t(tile) % 1024 || panel_bytes % 1024) emulator::fail("rows of a product that do not begin on a multiple of 1,024 bytes");
    return (uint64_t(tile) + step * 2048) | uint64_t(panel_bytes / 1024) << 48;
}
inline void wgmma_fence() {}
template <int COUNT> void wgmma_operands(uint32_t (&)[COUNT]) {}
template <int COUNT> void wgmma_sums(float (&)[COUNT][4]) {}
inline void wgmma_sees_shared() {}
template <int COUNT> void fewer_registers() {}
template <int COUNT> void more_registers() {}
inline void wgmma_commit() {
    Products& own = own_products();
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}

inline void issue(float (*d)[4], const uint32_t* a, uint64_t b, int groups) {
    Products& own = own_products();
    if (!own.sums.count(d)) std::memcpy(&own.sums[d], d, groups * sizeof(*d));
    for (int group = 0; group < groups; group++) std::fill(d[group], d[group] + 4, NAN);
    own.open.push_back({d, a, b, groups});
}
template <int GROUPS, int COUNT> void wgmma_bf16(float (&d)[COUNT][4], const uint32_t (&a)[4], uint64_t b) { issue(d, a, b, GROUPS); }
inline void wgmma_bf16_columns(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) { issue(d, a, b, 16); }

// Element k of column n of B.
inline float element(uint64_t b, int n, int k) {
    const uint64_t base = b & 0xFFFFFFFFFFFF, panel = (b >> 48) * 1024, offset = base - uint64_t(emulator::shared_memory);
    const uint64_t at = offset + (panel ? n / 64 * panel + n % 64 * 2 + k * 128 : n * 128 + k * 2);
    __nv_bfloat16 value;
    std::memcpy(&value, emulator::shared_memory + (at ^ (at >> 7 & 7) << 4), 2);
    return __bfloat162float(value);
}

inline void multiply(const Product& product, std::array<std::array<float, 4>, 16>& sums) {
    struct Words { uint32_t a[4]; };
    const auto all = emulator::gather(Words{{product.a[0], product.a[1], product.a[2], product.a[3]}});
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    auto half = [](uint32_t word, int index) { return __uint_as_float(index ? word & 0xFFFF0000u : word << 16); };
    float rows[2][16];   // g and g + 8 of A, as in mma.cuh
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 2; i++) rows[i][k] = half(all[4 * g + k % 8 / 2].a[i + 2 * (k / 8)], k % 2);
    for (int group = 0; group < product.groups; group++)
        for (int out = 0; out < 4; out++) {
            double sum = sums[group][out];
            for (int k = 0; k < 16; k++) sum += double(rows[out / 2][k]) * element(product.b, group * 8 + 2 * t + out % 2, k);
            sums[group][out] = float(sum);
        }
}

template <int LEFT>
void wgmma_wait() {
    Products& own = own_products();
    while (own.groups.size() > LEFT) {
        const std::vector<Product> group = std::move(own.groups.front());
        own.groups.erase(own.groups.begin());
        for (const Product& product : group) multiply(product, own.sums.at(product.sums));
        for (const Product& product : group) {
            bool under_way = false;
            for (const auto& other : own.groups)
                for (const Product& later : other) under_way |= later.sums == product.sums;
            const auto done = own.sums.find(product.sums);
            if (under_way || done == own.sums.end()) continue;
            std::memcpy(product.sums, &done->second, product.groups * sizeof(*product.sums));
            own.sums.erase(done);
        }
    }
}

}  // namespace engine
