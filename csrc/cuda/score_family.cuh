// The two families of attention whose score is a sum over the channels of a head: what one packet contributes to it, and to its
// gradients. Everything else of their kernels is shared (scored_attention.cuh, scored_gradient.cuh).
//
// Letters: a is the source's packet, b the target's, c the constant one, all of one head. With kEdgeFeatures b is the target's packet
// plus the edge's own, W e (edge_features.cuh). With kEdgeTerms an edge may add a number of its own to each head's score.
#pragma once

#include "common/softmax.h"
#include "cuda/heads.cuh"

namespace gnnagg {

// gatv2_attention: sum of att * LeakyReLU(l + r); the values are l itself.
template <typename Acc>
struct Gatv2Score {
  static constexpr bool kSeparateValues = false;
  static constexpr bool kConstant = true;  // att, which has a gradient
  static constexpr bool kEdgeFeatures = false;
  static constexpr bool kEdgeTerms = false;
  Acc negative_slope;

  // The product with the slope comes first: it is the same for every edge.
  __device__ __forceinline__ Acc term(Acc a, Acc b, Acc c) const { return of_source(a, b, c) * (a + b); }
  __device__ __forceinline__ Acc of_source(Acc a, Acc b, Acc c) const {
    return a + b > Acc(0) ? c : c * negative_slope;
  }
  __device__ __forceinline__ Acc of_target(Acc a, Acc b, Acc c) const { return of_source(a, b, c); }
  __device__ __forceinline__ Acc of_constant(Acc a, Acc b) const { return leaky_relu(a + b, negative_slope); }
  __device__ __forceinline__ Acc scale() const { return Acc(1); }
};

// The same with edge features: sum of att * LeakyReLU(l + r + W e).
template <typename Acc>
struct Gatv2EdgeScore : Gatv2Score<Acc> {
  static constexpr bool kEdgeFeatures = true;
};

// dot_attention: scale * sum of k * q; the values are v.
template <typename Acc>
struct DotScore {
  static constexpr bool kSeparateValues = true;
  static constexpr bool kConstant = false;
  static constexpr bool kEdgeFeatures = false;
  static constexpr bool kEdgeTerms = true;
  Acc factor;

  __device__ __forceinline__ Acc term(Acc a, Acc b, Acc) const { return a * b; }
  __device__ __forceinline__ Acc of_source(Acc, Acc b, Acc) const { return b; }
  __device__ __forceinline__ Acc of_target(Acc a, Acc, Acc) const { return a; }
  __device__ __forceinline__ Acc of_constant(Acc, Acc) const { return Acc(0); }
  __device__ __forceinline__ Acc scale() const { return factor; }
};

}  // namespace gnnagg
