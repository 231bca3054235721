// Emulated: engine/kernels/wgmma.cuh. A product reads A and B as late as it may, when it is waited for, and until then its sums
// are NaN: a register or a stage that is given back too early shows. One without the fences before it fails. A warp's rows
// concern no other warp, so that it is one warp's work; that four issue together is not checked.
#pragma once
#include <map>

#include "descriptor.cuh"

namespace engine {

struct Product {
    float (*sums)[4];
    const uint32_t* a;
    uint64_t b;      // the matrix descriptor
    bool columns;    // imm-trans-b
    int groups;
};
struct Products {   // of one thread
    std::vector<Product> open;
    std::vector<std::vector<Product>> groups;
    std::map<float (*)[4], std::array<std::array<float, 4>, 16>> sums;   // of those under way
    bool fenced = false;   // since registers could last be touched
};
inline std::map<const void*, Products> products;
inline Products& own_products() { return products[&emulator::self()]; }

inline void wgmma_fence() { own_products().fenced = true; }
template <int COUNT> void wgmma_operands(uint32_t (&)[COUNT]) {}
template <int COUNT> void wgmma_sums(float (&)[COUNT][4]) {}
inline void wgmma_sees_shared() { emulator::self().fence_due = false; }
template <int COUNT> void fewer_registers() {}
template <int COUNT> void more_registers() {}
inline void wgmma_commit() {
    Products& own = own_products();
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}

inline void issue(float (*d)[4], const uint32_t* a, uint64_t b, bool columns, int groups) {
    Products& own = own_products();
    if (!own.fenced) emulator::fail("a product without wgmma_fence since its registers could be touched");
    if (emulator::self().fence_due) emulator::fail("a product without wgmma_sees_shared since copies were waited for");
    if (!own.sums.count(d)) std::memcpy(&own.sums[d], d, groups * sizeof(*d));
    for (int group = 0; group < groups; group++) std::fill(d[group], d[group] + 4, NAN);
    own.open.push_back({d, a, b, columns, groups});
}
template <int GROUPS, int COUNT> void wgmma_bf16(float (&d)[COUNT][4], const uint32_t (&a)[4], uint64_t b) { issue(d, a, b, false, GROUPS); }
inline void wgmma_bf16_columns(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) { issue(d, a, b, true, 16); }

// Element k of column n of B. Canonical layouts of PTX ISA 9.0, section 9.7.15.5.1, for elements of two bytes: rows of 64,
// eight to an atom; along a row lie k (K-major) or, transposed, n (MN-major). The address itself decides the swizzle.
inline float element(uint64_t b, bool columns, int n, int k) {
    constexpr uint64_t FIELD = 0x3FFF, USED = FIELD | FIELD << 16 | FIELD << 32 | uint64_t(3) << 62;
    const uint64_t start = (b & FIELD) * 16, leading = (b >> 16 & FIELD) * 16, stride = (b >> 32 & FIELD) * 16;
    if (b & ~USED || b >> 62 != 1) emulator::fail("a matrix descriptor that has not 128-byte swizzle and base offset 0");
    if (start % 1024 >= (columns ? 16 : 128)) emulator::fail("rows of a product that do not begin on a multiple of 1,024 bytes");
    const uint64_t at = start + (columns ? n / 64 * leading + k / 8 * stride + k % 8 * 128 + n % 64 * 2 : n / 8 * stride + n % 8 * 128 + k * 2);
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
            for (int k = 0; k < 16; k++) sum += double(rows[out / 2][k]) * element(product.b, product.columns, group * 8 + 2 * t + out % 2, k);
            sums[group][out] = float(sum);
        }
}

template <int LEFT>
void wgmma_wait() {
    Products& own = own_products();
    own.fenced = false;
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
    __syncwarp();   // .sync.aligned: a warp's lanes wait for its products as one
}

}  // namespace engine
