// How the warps that have read a stage of shared memory give it back to the warp that fills it: by arriving at its 'empty' mbarrier.
//
// One lane arrives for its warp, behind whatever makes the other lanes' reads come first: __syncwarp, or wgmma_wait for what
// products alone read. compute-sanitizer's racecheck does not take that for an order, and reports such a ring although it is
// sound; where every lane arrives for itself it tells a sound ring from a wrong one (seen on an H200:
// results/h200-x2/tests/20261130-33cb66f-racecheck-ring.txt). So tools/sanitize.py has a build of its own, in which every lane
// does (build.py, FOR_SANITIZERS). What racecheck cannot say of that build: whether the lanes' reads come before the one arrival of
// the shipped one.
#pragma once
#include "async.cuh"

namespace engine {

#ifdef ENGINE_EVERY_LANE_GIVES_BACK
constexpr bool EVERY_LANE_GIVES_BACK = true;
#else
constexpr bool EVERY_LANE_GIVES_BACK = false;
#endif
// What an 'empty' barrier counts of each warp that reads the stage.
constexpr int ARRIVALS_PER_WARP = EVERY_LANE_GIVES_BACK ? 32 : 1;

// Whether this lane arrives, once for each time that its warp has read the stage.
__device__ __forceinline__ bool gives_back(int lane) { return EVERY_LANE_GIVES_BACK || lane == 0; }
// Of the lanes that have arrived, lane 0, which goes on to fetch. A plain `lane == 0` behind the one above is the same program and
// got other registers (seen in moe/many.cu).
__device__ __forceinline__ bool goes_on(int lane) { return !EVERY_LANE_GIVES_BACK || lane == 0; }

}  // namespace engine
