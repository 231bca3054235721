// Routing of up to 32 tokens by one block: softmax, top k, and the lists that the grouped products read (ops/moe/kernel.cu).
// A launch of its own there; in ops/norm the end of the launch that makes the logits.
#pragma once
#include "math.cuh"

namespace engine {

constexpr int MAX_ROUTED = 32;            // tokens of one routing
constexpr int ENTRY_PAIRS = 8;            // of one entry at most: what one mma takes, so that all entries cost the same
constexpr int MAX_EXPERTS = 256;          // routed ones; the shared one comes on top
constexpr int MAX_SLOTS = 16;             // experts of a token, the shared one included

struct RouteArgs {
    const bf16* logits;   // [m][experts + 1]; the last is the shared expert's gate
    int4* entries;        // [up to m * slots] {expert, first, count, 0}, an expert's one after the other
    int* entry_count;     // [1]
    int* pairs;           // [m * slots]
    float* weights;       // [m * slots], by pair
    int* ids;             // [m][slots - 1]: experts, the most probable first
    int m, experts, slots;

    bool valid() const {
        return m >= 1 && m <= MAX_ROUTED && experts >= 1 && experts <= MAX_EXPERTS && slots >= 2 && slots <= MAX_SLOTS && slots - 1 <= experts;
    }
    int least_threads() const { return (experts + 32) / 32 * 32; }   // of the block that routes: one per expert
};

struct RouteShared {
    unsigned tokens_of[MAX_EXPERTS + 1];             // bit t: token t chose it
    uint8_t slot_of[MAX_ROUTED][MAX_EXPERTS + 1];
    int2 warp_totals[32];                            // pairs, entries
};

// To be called by all threads, with a barrier before `route`.
__device__ __forceinline__ void clear_routes(RouteShared& shared, int experts) {
    for (int e = threadIdx.x; e <= experts; e += blockDim.x) shared.tokens_of[e] = 0;
}

// Softmax over all experts in fp32, the top_k largest, ties to the lowest id, renormalised to sum 1. One warp.
__device__ __forceinline__ void route_token(const RouteArgs& args, RouteShared& shared, int token) {
    constexpr unsigned ALL = ~0u;
    constexpr int PER_LANE = MAX_EXPERTS / 32;
    const int lane = threadIdx.x % 32, top_k = args.slots - 1;
    const bf16* row = args.logits + size_t(token) * (args.experts + 1);
    float p[PER_LANE], most = -INFINITY, sum = 0.f;
    // Through the L2: other blocks of this launch may have written them.
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const int e = i * 32 + lane;
        p[i] = e < args.experts ? __bfloat162float(__ldcg(row + e)) : -INFINITY;
        most = fmaxf(most, p[i]);
    }
    const float gate = __bfloat162float(__ldcg(row + args.experts));
#pragma unroll
    for (int offset = 16; offset; offset /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, offset));
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) p[i] = expf(p[i] - most), sum += p[i];
    sum = warp_sum(sum);
    // Probabilities are not negative, so their bits order as they do; 0 marks one that is taken or absent.
    unsigned key[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) key[i] = i * 32 + lane < args.experts ? __float_as_uint(p[i] / sum) + 1 : 0;
    float chosen_sum = 0.f, mine = 0.f;   // lane k keeps the k-th
    int my_id = 0;
    for (int k = 0; k < top_k; k++) {
        unsigned best = 0, at = MAX_EXPERTS;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (key[i] > best) best = key[i], at = i * 32 + lane;
        const unsigned winner = __reduce_max_sync(ALL, best);
        const unsigned id = __reduce_min_sync(ALL, best == winner ? at : unsigned(MAX_EXPERTS));
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (unsigned(i * 32 + lane) == id) key[i] = 0;
        const float probability = __uint_as_float(winner - 1);
        chosen_sum += probability;
        if (lane == k) mine = probability, my_id = int(id);
    }
    const int pair = token * args.slots + lane;
    if (lane < top_k) {
        args.weights[pair] = mine / chosen_sum;
        args.ids[token * top_k + lane] = my_id;
        shared.slot_of[token][my_id] = uint8_t(lane);
        atomicOr(&shared.tokens_of[my_id], 1u << token);
    } else if (lane == top_k) {
        args.weights[pair] = sigmoid(gate);
        shared.slot_of[token][args.experts] = uint8_t(lane);
        atomicOr(&shared.tokens_of[args.experts], 1u << token);
    }
}

// By all threads of a block of at least least_threads().
__device__ __forceinline__ void route(const RouteArgs& args, RouteShared& shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int token = warp; token < args.m; token += warps) route_token(args, shared, token);
    __syncthreads();

    // One thread per expert: where its pairs and its entry begin.
    const int expert = threadIdx.x;
    unsigned tokens = expert <= args.experts ? shared.tokens_of[expert] : 0;
    const int count = __popc(tokens);
    int2 until = make_int2(count, (count + ENTRY_PAIRS - 1) / ENTRY_PAIRS);   // sums of this and all lanes before
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const int pairs = __shfl_up_sync(~0u, until.x, offset), entries = __shfl_up_sync(~0u, until.y, offset);
        if (lane >= offset) until.x += pairs, until.y += entries;
    }
    if (lane == 31) shared.warp_totals[warp] = until;
    __syncthreads();
    for (int w = 0; w < warp; w++) until.x += shared.warp_totals[w].x, until.y += shared.warp_totals[w].y;
    if (count > 0) {
        int next = until.x - count, entry = until.y - (count + ENTRY_PAIRS - 1) / ENTRY_PAIRS;
        for (int done = 0; done < count; done += ENTRY_PAIRS)
            args.entries[entry++] = make_int4(expert, next + done, count - done < ENTRY_PAIRS ? count - done : ENTRY_PAIRS, 0);
        for (; tokens; tokens &= tokens - 1) {
            const int token = __ffs(int(tokens)) - 1;
            args.pairs[next++] = token * args.slots + shared.slot_of[token][expert];
        }
    }
    if (threadIdx.x == blockDim.x - 1) *args.entry_count = until.y;
}

}  // namespace engine
