// What attention and argmax need beside emulator.hpp: the shuffle from one lane, cached loads, 64-bit atomics.
#pragma once
#include "emulator.hpp"

template <class T> T __shfl_sync(unsigned, T value, int lane) { return emulator::gather(value)[lane % 32]; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, T value) { *p = value; }
inline unsigned long long atomicMax(unsigned long long* p, unsigned long long value) {
    const unsigned long long old = *p;
    *p = old > value ? old : value;
    return old;
}
inline unsigned long long atomicExch(unsigned long long* p, unsigned long long value) { return std::exchange(*p, value); }
