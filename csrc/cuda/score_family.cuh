// The two families of attention whose score is a sum over the channels of a head: what one packet contributes to it, and to its
// gradients. Everything else of their kernels is shared (scored_attention.cuh, scored_gradient.cuh).
//
// Letters: a is the source's packet, b the target's, c the constant one, all of one head. With kEdgeFeatures b is the target's packet
// plus the edge's own, W e (edge_features.cuh). With kEdgeTerms an edge may add a number of its own to each head's score.
#pragma once

#include <type_traits>

#include "common/softmax.h"
#include "cuda/heads.cuh"

namespace gnnagg {

// A lane's packet of the constant [H * C], whose address allows the loads of Span; 0 where the family has none. One of more than
// kMostHeld values is read wherever it is used, from the L1 cache: kept, it spills.
template <typename Family, int kSize, typename Acc>
struct ConstantPacket {
  static constexpr int kMostHeld = 4;
  static constexpr bool kHeld = kSize <= kMostHeld;
  const Acc* from;
  Acc held[kHeld ? kSize : 1];

  __device__ __forceinline__ ConstantPacket(const Acc* constant, const HeadPlace& place)
      : from(Family::kConstant ? constant + place.offset : nullptr), held{} {
    if constexpr (Family::kConstant && kHeld) Span<Acc, kSize>::load(from, held);
  }
  __device__ __forceinline__ void get(Acc (&values)[kSize]) const {
    if constexpr (kHeld || !Family::kConstant) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[i] = held[kHeld ? i : 0];
    } else {
#pragma unroll
      for (int i = 0; i < kSize; i += 4) {
        asm volatile("ld.global.ca.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(values[i]), "=f"(values[i + 1]), "=f"(values[i + 2]), "=f"(values[i + 3])
                     : "l"(from + i));
      }
    }
  }
};

template <typename Acc>
struct Gatv2EdgeScore;

// gatv2_attention: sum of att * LeakyReLU(l + r); the values are l itself.
template <typename Acc>
struct Gatv2Score {
  using Rare = Gatv2EdgeScore<Acc>;
  static constexpr bool kSeparateValues = false;
  static constexpr bool kConstant = true;  // att, which has a gradient
  static constexpr bool kEdgeFeatures = false;
  static constexpr int kMostValues = kLaneBytes;  // of a packet: as many as a load has room for
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
  using Rare = Gatv2EdgeScore;
  static constexpr int kMostValues = 4;  // a batch of eight, each with W e, does not fit the registers
};

// dot_attention: scale * sum of k * q; the values are v.
template <typename Acc>
struct DotScore {
  using Rare = DotScore;
  static constexpr bool kSeparateValues = true;
  static constexpr bool kConstant = false;
  static constexpr bool kEdgeFeatures = false;
  static constexpr int kMostValues = kLaneBytes;  // of a packet: as many as a load has room for
  static constexpr bool kEdgeTerms = true;
  Acc factor;

  __device__ __forceinline__ Acc term(Acc a, Acc b, Acc) const { return a * b; }
  __device__ __forceinline__ Acc of_source(Acc, Acc b, Acc) const { return b; }
  __device__ __forceinline__ Acc of_target(Acc a, Acc, Acc) const { return a; }
  __device__ __forceinline__ Acc of_constant(Acc, Acc) const { return Acc(0); }
  __device__ __forceinline__ Acc scale() const { return factor; }
};

// What a kernel is compiled for: with double, and with 64-bit indices, Rare, of which the family is a special case. Fewer kernels.
template <typename Family, typename T, typename Index>
using FamilyOf =
    std::conditional_t<std::is_same_v<T, double> || std::is_same_v<Index, int64_t>, typename Family::Rare, Family>;

}  // namespace gnnagg
