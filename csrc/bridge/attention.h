// From tensors to the arguments that the attention kernels share: the shape of the heads, what edges carry, and the choice of
// element type, load width and index type.
#pragma once

#include "bridge/cuda_dispatch.h"
#include "cuda/edge_options.cuh"

namespace gnnagg::bridge {

// Features [rows, H * C].
struct HeadShape {
  int64_t rows, heads, channels;

  HeadShape(const char* op, const char* name, const Tensor& features, int64_t num_heads)
      : rows(features.size(0)), heads(num_heads), channels(0) {
    STD_TORCH_CHECK(is_feature_type(features.scalar_type()), op, ": ", name,
                    " must be float32, float64, float16 or bfloat16");
    check_tensor(features, op, name, features.scalar_type(), {-1, -1});
    STD_TORCH_CHECK(heads >= 1 && features.size(1) >= heads && features.size(1) % heads == 0, op, ": ", name,
                    " must be [rows, H * C] with H = ", heads, ", got ", features.size(1), " features");
    STD_TORCH_CHECK(features.size(1) < (int64_t(1) << 30), op, ": at most 2^30 features, got ", features.size(1));
    channels = features.size(1) / heads;
  }
  int64_t width() const { return heads * channels; }
  HeadTiles tiles(const CsrArguments& csr, int elements_per_lane) const {
    return HeadTiles::of(int(heads), int(channels), elements_per_lane, tile_lanes(csr.num_edges, csr.num_rows));
  }
};

template <typename Acc, typename Index>
EdgeOptions<Acc, Index> edge_options(const char* op, const CsrArguments& csr, const OptionalTensor& perm,
                                     const OptionalTensor& edge_score, const OptionalTensor& seed, double dropout) {
  if (perm) check_tensor(*perm, op, "perm", csr.index, {csr.num_edges});
  STD_TORCH_CHECK(dropout >= 0.0 && dropout <= 1.0, op, ": dropout must be in [0, 1], got ", dropout);
  STD_TORCH_CHECK(dropout == 0.0 || seed.has_value(), op, ": dropout needs a seed");
  const bool drops = dropout > 0.0;
  if (drops) check_tensor(*seed, op, "seed", ScalarType::Long, {1});
  return {read_pointer<Index>(perm), read_pointer<Acc>(edge_score), drops ? read_pointer<int64_t>(seed) : nullptr,
          DropoutRule::threshold_of(dropout), Acc(DropoutRule::scale_of(dropout))};
}

// Checks that `reverse` is the transpose of `csr`, over `num_src` sources.
inline void check_transpose(const char* op, const CsrArguments& csr, const CsrArguments& reverse, const Tensor& t_slot,
                            int64_t num_src) {
  STD_TORCH_CHECK(reverse.num_rows == num_src && reverse.num_edges == csr.num_edges && reverse.index == csr.index, op,
                  ": the transpose does not belong to the CSR");
  check_tensor(t_slot, op, "t_slot", csr.index, {csr.num_edges});
}

template <typename T, int kBytes, typename Index, int kOwners_, bool kLong_>
struct HeadTypes : FeatureTypes<T, kBytes, Index> {
  static constexpr int kOwners = kOwners_;
  static constexpr bool kLong = kLong_;  // heads may take more than one tile
};

// What heads of more packets than a warp has lanes do where loads are wide: nothing in particular, or, since what they need costs
// registers, take kernels of their own, or those of narrow loads.
enum class Long { kAlike, kApart, kNarrow };

// Calls body(HeadTypes<...>) for the types of dispatch_widest and the lanes of a head that share the scores of a batch: 4 where that
// divides them, 2 where a kernel is compiled for pairs as well, else 1. Every attention kernel is compiled for each, so they are few.
template <bool kPairs, Long kLong, int kMostValues = kLaneBytes, typename Body>
void dispatch_heads(const Tensor& x, const HeadShape& shape, ScalarType index,
                    std::initializer_list<const Tensor*> tensors, Body&& body) {
  dispatch_widest<kMostValues>(x, shape.channels, index, tensors, [&](auto types) {
    using Types = decltype(types);
    using T = typename Types::Element;
    using Index = typename Types::Index;
    constexpr int kBytes = Types::kBytes, kElements = kBytes / int(sizeof(T));
    if constexpr (kElements > 1) {
      const int64_t packets = shape.channels / kElements;
      if constexpr (kLong == Long::kApart) {
        if (packets > kMaxTileLanes) return body(HeadTypes<T, kBytes, Index, 4, true>{});
      }
      if constexpr (kLong == Long::kNarrow) {
        if (packets > kMaxTileLanes) return body(HeadTypes<T, int(sizeof(T)), Index, 1, true>{});
      }
      constexpr bool kAlike = kLong == Long::kAlike;
      if (packets % 4 == 0) return body(HeadTypes<T, kBytes, Index, 4, kAlike>{});
      if constexpr (kPairs) {
        if (packets % 2 == 0) return body(HeadTypes<T, kBytes, Index, 2, kAlike>{});
      }
      body(HeadTypes<T, kBytes, Index, 1, kAlike>{});
    } else {
      body(HeadTypes<T, kBytes, Index, 1, true>{});
    }
  });
}

// A launch with one group for every span and tile, or the whole device where that is less.
template <typename Index>
LaunchPlan plan_heads(const void* kernel, const SpanTable<Index>& table, const HeadTiles& tiles,
                      int num_phases = kReducePhases, int shared_bytes = 0) {
  const int64_t items = table.num_spans * tiles.tiles;
  return LaunchPlan::of(kernel, kAttentionThreads, ceil_div<int64_t>(items * tiles.lanes, kAttentionThreads),
                        num_phases, shared_bytes);
}

}  // namespace gnnagg::bridge
