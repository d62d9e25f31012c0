// What an edge may carry into attention beside its score: an additive score of its own, and dropout of its weight.
#pragma once

#include "common/philox.h"
#include "cuda/heads.cuh"
#include "cuda/span_walk.cuh"

namespace gnnagg {

// The arguments, alike for every thread. Any pointer may be null.
template <typename Acc, typename Index>
struct EdgeOptions {
  const Index* __restrict__ perm;      // [num_edges] edge id of each slot; null when slots are in edge order
  const Acc* __restrict__ edge_score;  // [num_edges, H]
  const int64_t* __restrict__ seed;    // [1]; null without dropout
  uint32_t threshold;                  // DropoutRule
  Acc keep_scale;                      // 1 / (1 - p), or 0

  __device__ __forceinline__ bool any() const { return edge_score != nullptr || seed != nullptr; }
  __device__ __forceinline__ int64_t edge_of(Index slot) const {
    return perm ? int64_t(__ldg(perm + slot)) : int64_t(slot);
  }
  // What the edge adds to the score of this lane's head.
  __device__ __forceinline__ Acc score_of(int64_t edge, const HeadPlace& place) const {
    return edge_score ? __ldg(edge_score + place.score(edge)) : Acc(0);
  }
  // What dropout puts on the weight of this lane's head: 1 / (1 - p), or 0, or 1 without dropout.
  __device__ __forceinline__ Acc factor_of(int64_t edge, const HeadPlace& place) const {
    if (!seed) return Acc(1);
    const DropoutRule rule{uint64_t(__ldg(seed)), threshold};
    return rule.keeps(edge, place.head) ? keep_scale : Acc(0);
  }
};

}  // namespace gnnagg
