// Where a thread is in a ring of stages, and the parity that its barrier has there.
#pragma once

namespace engine {

// A stage of `count` and how often it has been gone round.
struct Turn {
    int stage = 0, parity = 0;
    __device__ void advance(int count) {
        if (++stage == count) stage = 0, parity ^= 1;
    }
};

}  // namespace engine
