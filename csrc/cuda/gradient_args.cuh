// What the gradient of the families of score_family.cuh is given (scored_gradient.cuh).
#pragma once

#include "cuda/edge_features.cuh"
#include "cuda/edge_options.cuh"
#include "cuda/launch.cuh"
#include "cuda/score_family.cuh"

namespace gnnagg {

constexpr int kRecordSize = 2;  // logsumexp, scaled, and D of a target and head

template <typename Family_, typename T, int kBytes, typename Index, int kOwners, bool kLong>
struct GradientArgs {
  using Family = Family_;
  using Acc = acc_t<T>;
  SpanTable<Index> table;            // rows are targets
  SpanTable<Index> reverse;          // rows are sources
  HeadTiles tiles;                   // of the walks over targets
  HeadTiles reverse_tiles;           // of the walks over sources
  const T* __restrict__ grad;        // [num_dst, H * C]
  const T* __restrict__ out;         // [num_dst, H * C]
  const Acc* __restrict__ lse;       // [num_dst, H]
  const T* __restrict__ keys;        // [num_src, H * C]
  const T* __restrict__ values;      // [num_src, H * C], the keys where they are not separate
  const T* __restrict__ targets;     // [num_dst, H * C]
  const Acc* __restrict__ constant;  // [H * C] or null
  const Index* __restrict__ slots;   // [num_edges] slot in `table` of each slot of `reverse`
  Family family;
  EdgeOptions<Acc, Index> options;
  EdgeProjection<T> projection;           // with kEdgeFeatures
  const Acc* edge_terms;                  // with kEdgeTerms [num_edges, H] by slot or null: added to the scaled score
  const Acc* edge_dots;                   // likewise: added to <dO, value>
  const Acc* __restrict__ edge_out;       // [num_dst, H, D], with edge_terms
  const Acc* __restrict__ grad_edge_out;  // [num_dst, H, D], with edge_terms
  int edge_dims;                          // D
  Acc* records;                           // [num_dst, H, 2]
  Acc* dots;                     // [num_edges, H] by slot of `table`: <dO, value> of separate values; may be `weights`
  Acc* weights;                  // [num_edges, H] by slot of `table`: w
  Acc* ds;                       // [num_edges, H] by slot of `table`
  T* __restrict__ d_keys;        // [num_src, H * C]
  T* __restrict__ d_values;      // [num_src, H * C] of separate values
  Acc* value_sums;               // [num_src, H * C] of others: what the values add to d_keys
  T* __restrict__ d_targets;     // [num_dst, H * C]
  Acc* __restrict__ d_constant;  // [num_spans, H * C] or null
  Acc* __restrict__ target_partials;  // [2 num_spans, H * C]
  Acc* __restrict__ key_partials;     // [2 reverse spans, H * C]
  Acc* __restrict__ value_partials;   // [2 reverse spans, H * C]
  int64_t num_dst;
  Phases phases;
};

}  // namespace gnnagg
