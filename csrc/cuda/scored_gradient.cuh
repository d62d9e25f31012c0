// The gradients of the families of score_family.cuh.
//
// What. With D[i] = <dO[i], out[i]>, alpha = exp(score - logsumexp[i]), w = alpha * mask, ds = alpha (mask <dO[i], value[j]> - D[i]):
// the value's gradient is the sum of w dO[i]; source, target and constant receive ds times the family's derivatives.
//
// How. prepare is node-local (target_record.cuh). walk_targets goes over the rows of the CSR with the target's packet and dO[i] in
// registers, gathers keys and values, adds score and <dO, value> up across the lanes of a head, sums the target's and the constant's
// gradient, and leaves (w, ds) of every edge and head. walk_sources goes over the rows of the transpose, gathers the target's packet
// and dO[i], and takes (w, ds) as they are: no product is computed twice. Split rows are combined after each.
//
// Traffic. Per edge: keys (and separate values) on the CSR, targets and dO on the transpose, F * s bytes each at random: three or four
// gathers; 8 H bytes of (w, ds) written in order and read at random; 8 of col and 4 of t_slot. They are E * H * 8 bytes of workspace.
// Per span F * 4 bytes of the constant's gradient, added up afterwards by torch.
//
// Launch contract. One cooperative launch of four phases, or four ordinary ones; any grid size is right.
//
// Determinism. As aggregate_sum; no atomics. The constant's gradient is summed per span, then over spans.
#pragma once

#include "bridge/attention.h"
#include "cuda/packet_sums.cuh"
#include "cuda/scored_attention.cuh"
#include "cuda/target_record.cuh"

namespace gnnagg {

constexpr int kGradientPhases = 4;

template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
struct GradientArgs {
  using Acc = acc_t<T>;
  SpanTable<Index> table;            // rows are targets
  SpanTable<Index> reverse;          // rows are sources
  HeadTiles tiles;                   // of the walk over targets
  HeadTiles reverse_tiles;           // of the walk over sources
  const T* __restrict__ grad;        // [num_dst, H * C]
  const T* __restrict__ out;         // [num_dst, H * C]
  const Acc* __restrict__ lse;       // [num_dst, H]
  const T* __restrict__ keys;        // [num_src, H * C]
  const T* __restrict__ values;      // [num_src, H * C]
  const T* __restrict__ targets;     // [num_dst, H * C]
  const Acc* __restrict__ constant;  // [H * C] or null
  const Index* __restrict__ slots;   // [num_edges] slot in `table` of each slot of `reverse`
  Family family;
  EdgeOptions<Acc, Index> options;
  EdgeProjection<T> projection;  // with kEdgeFeatures
  const Acc* edge_terms;  // with kEdgeTerms [num_edges, H, 2] by slot or null: of the score, scaled, and of <dO, value>
  const Acc* __restrict__ edge_out;       // [num_dst, H, D], with edge_terms
  const Acc* __restrict__ grad_edge_out;  // [num_dst, H, D], with edge_terms
  int edge_dims;                          // D
  Acc* records;                           // [num_dst, H, 2]: logsumexp, scaled, and D
  Acc* edges;                             // [num_edges, H, 2]: w and ds, by slot of `table`
  T* __restrict__ d_keys;                 // [num_src, H * C]
  T* __restrict__ d_values;               // [num_src, H * C]
  T* __restrict__ d_targets;              // [num_dst, H * C]
  Acc* __restrict__ d_constant;           // [num_spans, H * C] or null
  Acc* __restrict__ target_partials;      // [2 num_spans, H * C]
  Acc* __restrict__ key_partials;         // [2 reverse spans, H * C]
  Acc* __restrict__ value_partials;       // [2 reverse spans, H * C]
  int64_t num_dst;
  Phases phases;
};

// The gradient of one target, with its packets and its record.
template <typename Args, typename T, int kBytes>
struct TargetGradient : PacketSums<T, kBytes, 1> {
  using Base = PacketSums<T, kBytes, 1>;
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  const Args& args;
  typename Vector::Raw of_row, of_next, grad_of_row, grad_of_next;
  Acc record[kPair], next_record[kPair];

  __device__ __forceinline__ TargetGradient(const Args& all, const HeadPlace& place)
      : Base({{all.d_targets}, {all.target_partials}}, place), args(all) {}
  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    of_next = Vector::load(args.targets + this->place.row(row));
    grad_of_next = Vector::load(args.grad + this->place.row(row));
    Span<Acc, kPair>::load(args.records + this->place.score(row) * kPair, next_record);
  }
  __device__ __forceinline__ void enter() {
    of_row = of_next;
    grad_of_row = grad_of_next;
#pragma unroll
    for (int i = 0; i < kPair; ++i) record[i] = next_record[i];
  }
};

template <typename Args, typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
struct SourcesOfTarget {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  using Owner = EdgeOwner<kOwners>;
  using Raw = typename Vector::Raw;
  static constexpr int kSize = Vector::kSize, kOwned = Owner::kOwned;
  static constexpr int kValue = Family::kSeparateValues ? kEdgeBatch : 0;  // the first value among the packets
  static constexpr bool kEdges = Family::kEdgeFeatures;
  static constexpr int kTargets = kEdges ? kEdgeBatch : 1;  // packets of the target, one for every edge with W e
  using Flight = PacketFlight<kBytes, kEdgeBatch + kValue>;
  struct Batch {
    typename Flight::Batch packets;
    Acc factor[kOwned];
  };

  const Args& args;
  PlainRows<T, kBytes, Index> keys, values;
  const HeadPlace& place;
  const Owner& owner;
  Acc constant[kSize];
  Acc (&d_constant)[kSize];
  Flight flight;

  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    flight.begin(batch.packets);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (!inside<kWhole>(Index(slot + u), begin, end)) continue;
      flight.request(batch.packets, u, keys.row(ids[u]));
      if constexpr (Family::kSeparateValues) flight.request(batch.packets, kValue + u, values.row(ids[u]));
    }
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Index mine = slot + owner.edge(o);
      batch.factor[o] = Acc(1);
      if (args.options.seed && inside<kWhole>(mine, begin, end)) {
        batch.factor[o] = args.options.factor_of(args.options.edge_of(mine), place);
      }
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void products(const Batch& batch, Index slot, int from, int to, const Cursor& cursor,
                                           const Acc (&target)[kTargets][kSize], Acc (&terms)[kEdgeBatch],
                                           Acc (&dots)[kEdgeBatch]) const {
    if (kLong && args.tiles.chunks > 1) {
      const int64_t row = int64_t(cursor.row) * place.features;
      if constexpr (kEdges) {
        const auto all = long_edge_terms<T, kBytes>(
            args.keys, args.table.col + slot, slot, from, to, args.targets + row, args.constant, args.family,
            args.projection, place.features, place.head * args.tiles.channels, args.tiles.channels);
#pragma unroll
        for (int u = 0; u < kEdgeBatch; ++u) terms[u] = all.of_edge[u];
      } else {
        long_terms<T, kBytes>(args.keys, args.table.col + slot, from, to, args.targets + row, args.constant,
                              args.family, place, args.tiles, terms);
      }
      long_terms<T, kBytes>(args.values, args.table.col + slot, from, to, args.grad + row,
                            static_cast<const Acc*>(nullptr), Product<Acc>{}, place, args.tiles, dots);
      return;
    }
    Acc grad[kSize];
    Vector::unpack(cursor.reducer.grad_of_row, grad);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      terms[u] = dots[u] = Acc(0);
      if (u < from || u >= to || !place.active) continue;
      Acc key[kSize], value[kSize];
      const Raw of_key = Flight::get(batch.packets, u);
      Vector::unpack(of_key, key);
      Vector::unpack(Family::kSeparateValues ? Flight::get(batch.packets, kValue + u) : of_key, value);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        terms[u] += args.family.term(key[i], target[kEdges ? u : 0][i], constant[i]);
        dots[u] += grad[i] * value[i];
      }
    }
  }
  // The target's packet as every edge of a batch sees it.
  template <typename Cursor>
  __device__ __forceinline__ void target_packets(Index slot, int from, int to, const Cursor& cursor,
                                                 Acc (&target)[kTargets][kSize]) const {
#pragma unroll
    for (int t = 0; t < kTargets; ++t) Vector::unpack(cursor.reducer.of_row, target[t]);
    if constexpr (kEdges) {
      Index slots[kEdgeBatch];
      batch_slots(slot, slots);
      args.projection.add(slots, from, to, place.features, place.offset, target);
    }
  }
  // Adds what the edges that this lane owns give of their own to <dO, value>, and takes what they add to their scores off `shift`, which
  // is subtracted from those.
  __device__ __forceinline__ void add_edge_terms(Index slot, int from, int to, Acc (&shift)[kOwned],
                                                 Acc (&dot)[kOwned]) const {
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      if (owner.edge(o) < from || owner.edge(o) >= to) continue;
      Acc pair[kPair];
      Span<Acc, kPair>::load(args.edge_terms + place.score(slot + owner.edge(o)) * kPair, pair);
      shift[o] -= pair[0];
      dot[o] += pair[1];
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index slot, int from, int to, Cursor& cursor) const {
    Acc terms[kEdgeBatch], dots[kEdgeBatch], score[kOwned], dot[kOwned], shift[kOwned], scaled_ds[kOwned];
    Acc target[kTargets][kSize];
    target_packets(slot, from, to, cursor, target);
    products(batch, slot, from, to, cursor, target, terms, dots);
    owner.sum_of_head(terms, args.tiles, score);
    owner.sum_of_head(dots, args.tiles, dot);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) shift[o] = cursor.reducer.record[0];
    if constexpr (Family::kEdgeTerms) {
      if (args.edge_terms) add_edge_terms(slot, from, to, shift, dot);
    }
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Acc alpha = Exponent<Acc>::exp(score[o] * (args.family.scale() * Exponent<Acc>::kScale) - shift[o]);
      const Acc ds = alpha * (dot[o] * batch.factor[o] - cursor.reducer.record[1]);
      scaled_ds[o] = ds * args.family.scale();
      const bool mine = owner.edge(o) >= from && owner.edge(o) < to;
      if (mine && place.active && place.first_chunk && place.in_head < kOwners) {
        const Acc pair[kPair] = {alpha * batch.factor[o], scaled_ds[o]};
        Span<Acc, kPair>::store(args.edges + place.score(slot + owner.edge(o)) * kPair, pair);
      }
    }
    if constexpr (!kEdges) Vector::unpack(cursor.reducer.of_row, target[0]);  // again: fewer registers through the sums
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u < from || u >= to) continue;
      const Acc of_edge = owner.of_edge(scaled_ds, u);
      Acc key[kSize];
      Vector::unpack(Flight::get(batch.packets, u), key);
      const Acc(&of_row)[kSize] = target[kEdges ? u : 0];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        cursor.reducer.state.value[0][i] += of_edge * args.family.of_target(key[i], of_row[i], constant[i]);
        if constexpr (Family::kConstant) d_constant[i] += of_edge * args.family.of_constant(key[i], of_row[i]);
      }
    }
  }
};

// The gradient of one source: of its key, and of its value where that is separate, else in one sum.
template <typename Args, typename Family, typename T, int kBytes>
struct KeyGradient : PacketSums<T, kBytes, Family::kSeparateValues ? 2 : 1> {
  using Base = PacketSums<T, kBytes, Family::kSeparateValues ? 2 : 1>;
  using Vector = Packet<T, kBytes>;
  const Args& args;
  typename Vector::Raw of_row, of_next;

  static __device__ __forceinline__ typename Base::Target target_of(const Args& args) {
    if constexpr (Family::kSeparateValues) {
      return {{args.d_keys, args.d_values}, {args.key_partials, args.value_partials}};
    } else {
      return {{args.d_keys}, {args.key_partials}};
    }
  }
  __device__ __forceinline__ KeyGradient(const Args& all, const HeadPlace& place)
      : Base(target_of(all), place), args(all) {}
  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    of_next = Vector::load(args.keys + this->place.row(row));
  }
  __device__ __forceinline__ void enter() { of_row = of_next; }
};

template <typename Args, typename Family, typename T, int kBytes, typename Index>
struct TargetsOfSource {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  static constexpr bool kEdges = Family::kEdgeFeatures;
  using Flight = PacketFlight<kBytes, 2 * kEdgeBatch>;  // packets of targets, and of dO
  struct Batch {
    typename Flight::Batch packets;
    Acc pair[kEdgeBatch][kPair];
    Index slot[kEdges ? kEdgeBatch : 1];
  };

  const Args& args;
  PlainRows<T, kBytes, Index> targets, grads;
  const HeadPlace& place;
  Acc constant[kSize];
  Index slot_ahead[kEdgeBatch];
  Flight flight;

  __device__ __forceinline__ void start(Index at, Index begin, Index end) {
    load_batch(args.slots, at, begin, end, slot_ahead);
  }
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index at, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    flight.begin(batch.packets);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (!inside<kWhole>(Index(at + u), begin, end)) continue;
      flight.request(batch.packets, u, targets.row(ids[u]));
      flight.request(batch.packets, kEdgeBatch + u, grads.row(ids[u]));
      Span<Acc, kPair>::load(args.edges + place.score(slot_ahead[u]) * kPair, batch.pair[u]);
    }
    if constexpr (kEdges) {
#pragma unroll
      for (int u = 0; u < kEdgeBatch; ++u) batch.slot[u] = slot_ahead[u];
    }
    load_batch(args.slots, Index(at + kEdgeBatch), begin, end, slot_ahead);
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed(const Batch& batch, int u, Index, Cursor& cursor) const {
    Acc target[kSize];
    Vector::unpack(Flight::get(batch.packets, u), target);
    add(batch, u, target, cursor);
  }
  template <typename Cursor>
    requires kEdges
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index, int from, int to, Cursor& cursor) const {
    Acc target[kEdgeBatch][kSize];
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) Vector::unpack(Flight::get(batch.packets, u), target[u]);
    args.projection.add(batch.slot, from, to, place.features, place.offset, target);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u >= from && u < to) add(batch, u, target[u], cursor);
    }
  }

 private:
  template <typename Cursor>
  __device__ __forceinline__ void add(const Batch& batch, int u, const Acc (&target)[kSize], Cursor& cursor) const {
    Acc key[kSize], grad[kSize];
    Vector::unpack(cursor.reducer.of_row, key);
    Vector::unpack(Flight::get(batch.packets, kEdgeBatch + u), grad);
    auto& value = cursor.reducer.state.value;
    constexpr int kOfValue = Family::kSeparateValues ? 1 : 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      value[0][i] += batch.pair[u][1] * args.family.of_source(key[i], target[i], constant[i]);
      value[kOfValue][i] += batch.pair[u][0] * grad[i];
    }
  }
};

// The edge features' share of D for one target and head.
template <typename Args>
__device__ __forceinline__ typename Args::Acc edge_dot(const Args& args, int64_t item) {
  typename Args::Acc dot = 0;
  for (int d = 0; d < args.edge_dims; ++d) {
    dot += args.grad_edge_out[item * args.edge_dims + d] * args.edge_out[item * args.edge_dims + d];
  }
  return dot;
}

// Called by every thread.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void prepare(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Acc = acc_t<T>;
  for_each_target<T, kBytes>(args.grad, args.out, static_cast<const T*>(nullptr), args.num_dst, args.tiles,
                             [&](int64_t item, Acc dot, Acc) {
                               if constexpr (Family::kEdgeTerms) {
                                 if (args.edge_terms) dot += edge_dot(args, item);
                               }
                               const Acc record[kPair] = {args.lse[item] * Exponent<Acc>::kScale, dot};
                               Span<Acc, kPair>::store(args.records + item * kPair, record);
                             });
}

// Called by every thread, once the records are visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void walk_targets(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  constexpr int kSize = Packet<T, kBytes>::kSize;
  const Group group(args.tiles.lanes);
  const EdgeOwner<kOwners> owner(args.tiles, group);
  const uint32_t row_bytes = uint32_t(args.tiles.features * sizeof(T));
  for_each_span(args.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.tiles, group, int(tile), kSize);
    acc_t<T> d_constant[kSize] = {};
    SourcesOfTarget<Args, Family, T, kBytes, Index, kOwners, kLong> sources{args,
                                                                            {args.keys + place.offset, row_bytes},
                                                                            {args.values + place.offset, row_bytes},
                                                                            place,
                                                                            owner,
                                                                            {},
                                                                            d_constant,
                                                                            {}};
    load_constant(args.constant, place, sources.constant);
    reduce_span(args.table, k, sources, TargetGradient<Args, T, kBytes>(args, place));
    if constexpr (Family::kConstant) {
      if (place.active) Span<acc_t<T>, kSize>::store(args.d_constant + place.row(k), d_constant);
    }
  });
}

// Called by every thread, once the edges' pairs are visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void walk_sources(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  constexpr int kSize = Packet<T, kBytes>::kSize;
  const Group group(args.reverse_tiles.lanes);
  const uint32_t row_bytes = uint32_t(args.reverse_tiles.features * sizeof(T));
  for_each_span(args.reverse, args.reverse_tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.reverse_tiles, group, int(tile), kSize);
    TargetsOfSource<Args, Family, T, kBytes, Index> targets{
        args, {args.targets + place.offset, row_bytes}, {args.grad + place.offset, row_bytes}, place, {}, {}, {}};
    load_constant(args.constant, place, targets.constant);
    reduce_span(args.reverse, k, targets, KeyGradient<Args, Family, T, kBytes>(args, place));
  });
}

template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__global__ __launch_bounds__(kAttentionThreads, kAttentionBlocksPerSmLarge) void scored_gradient_kernel(
    const GradientArgs<Family, T, kBytes, Index, kOwners, kLong> args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  constexpr int kSize = Packet<T, kBytes>::kSize;
  const auto grid = cooperative_groups::this_grid();
  if (args.phases.has(0)) prepare(args);
  if (args.phases.together) grid.sync();  // the records of all targets are visible
  if (args.phases.has(1)) walk_targets(args);
  if (args.phases.together) grid.sync();  // the partials and the edges' pairs of every block are visible
  if (args.phases.has(2)) {
    const Group group(args.tiles.lanes);
    combine_rows(args.table, args.tiles.tiles, group, [&](int64_t tile) {
      return TargetGradient<Args, T, kBytes>(args, HeadPlace(args.tiles, group, int(tile), kSize));
    });
    walk_sources(args);
  }
  if (!args.phases.has(3) || !has_split_rows(args.reverse)) return;  // the same in every block
  if (args.phases.together) grid.sync();                             // the sources' partials of every block are visible
  const Group group(args.reverse_tiles.lanes);
  combine_rows(args.reverse, args.reverse_tiles.tiles, group, [&](int64_t tile) {
    return KeyGradient<Args, Family, T, kBytes>(args, HeadPlace(args.reverse_tiles, group, int(tile), kSize));
  });
}

namespace bridge {

struct ScoredGradients {
  Tensor d_keys, d_values, d_targets, d_constant;
  Tensor edges;  // [num_edges, H, 2]: w, and ds times the family's scale, by slot; nothing where no slot is live
};

// What the edge features of a family with kEdgeTerms gave to each row, and its gradient.
struct EdgeOutputs {
  OptionalTensor out, grad;  // [num_dst, H, D]
};

// What both ops of these families do on the host.
template <template <typename> class Family>
ScoredGradients scored_gradient(const char* op, const HeadShape& shape, const Tensor& grad, const Tensor& keys,
                                const Tensor& values, const Tensor& targets, const OptionalTensor& constant,
                                const Tensor& out, const Tensor& lse, const CsrArguments& csr,
                                const CsrArguments& reverse, const Tensor& t_slot, const OptionalTensor& perm,
                                const OptionalTensor& seed, double family_factor, double dropout,
                                const ScoredEdges& edge_features = {}, const EdgeOutputs& edge_outputs = {}) {
  const CudaCall call(keys);
  const ScalarType type = keys.scalar_type(), acc = accumulate_type(type);
  const int64_t width = shape.width(), heads = shape.heads;
  constexpr bool kSeparate = Family<float>::kSeparateValues, kConstant = Family<float>::kConstant;
  check_tensor(grad, op, "grad", type, {csr.num_rows, width});
  check_tensor(out, op, "out", type, {csr.num_rows, width});
  check_tensor(lse, op, "lse", acc, {csr.num_rows, heads});
  check_tensor(targets, op, "the targets' features", type, {csr.num_rows, width});
  check_tensor(values, op, "the values", type, {shape.rows, width});
  check_transpose(op, csr, reverse, t_slot, shape.rows);
  const auto make = [&](std::initializer_list<int64_t> sizes, ScalarType dtype) {
    return empty_like_device(keys, sizes, dtype);
  };
  Tensor d_keys = make({shape.rows, width}, type), d_targets = make({csr.num_rows, width}, type);
  Tensor d_values = kSeparate ? make({shape.rows, width}, type) : d_keys;
  const bool is_empty = shape.rows == 0 && csr.num_rows == 0;  // then nothing is launched
  Tensor d_constant = make({kConstant && !is_empty ? csr.num_spans : 0, width}, acc);
  Tensor records = make({csr.num_rows, heads, kPair}, acc), edges = make({csr.num_edges, heads, kPair}, acc);
  Tensor target_partials = make({2 * csr.num_spans, width}, acc);
  Tensor key_partials = make({2 * reverse.num_spans, width}, acc);
  Tensor value_partials = make({kSeparate ? 2 * reverse.num_spans : 0, width}, acc);
  if (!is_empty) {
    dispatch_heads<false, true>(
        keys, shape, csr.index, {&keys, &values, &targets, &grad, &out, &d_keys, &d_targets}, [&](auto types) {
          using Types = decltype(types);
          using T = typename Types::Element;
          using Index = typename Types::Index;
          using Acc = acc_t<T>;
          constexpr int kBytes = Types::kBytes, kOwners = Types::kOwners, kSize = Packet<T, kBytes>::kSize;
          constexpr bool kLong = Types::kLong;
          GradientArgs<Family<Acc>, T, kBytes, Index, kOwners, kLong> args{};
          args.table = csr.table<Index>();
          args.reverse = reverse.table<Index>();
          args.tiles = shape.tiles(csr, kSize);
          args.reverse_tiles = shape.tiles(reverse, kSize);
          args.grad = read_pointer<T>(grad);
          args.out = read_pointer<T>(out);
          args.lse = read_pointer<Acc>(lse);
          args.keys = read_pointer<T>(keys);
          args.values = read_pointer<T>(values);
          args.targets = read_pointer<T>(targets);
          args.constant = read_pointer<Acc>(constant);
          args.slots = read_pointer<Index>(t_slot);
          args.family = {Acc(family_factor)};
          args.options = edge_options<Acc, Index>(op, csr, perm, std::nullopt, seed, dropout);
          args.projection = edge_projection<T>(edge_features.attr, edge_features.weight);
          args.edge_terms = read_pointer<Acc>(edge_features.terms);
          args.edge_out = read_pointer<Acc>(edge_outputs.out);
          args.grad_edge_out = read_pointer<Acc>(edge_outputs.grad);
          args.edge_dims = edge_outputs.out ? int(edge_outputs.out->size(2)) : 0;
          args.records = write_pointer<Acc>(records);
          args.edges = write_pointer<Acc>(edges);
          args.d_keys = write_pointer<T>(d_keys);
          args.d_values = write_pointer<T>(d_values);
          args.d_targets = write_pointer<T>(d_targets);
          args.d_constant = write_pointer<Acc>(d_constant);
          args.target_partials = write_pointer<Acc>(target_partials);
          args.key_partials = write_pointer<Acc>(key_partials);
          args.value_partials = write_pointer<Acc>(value_partials);
          args.num_dst = csr.num_rows;
          const auto* kernel =
              reinterpret_cast<const void*>(&scored_gradient_kernel<Family<Acc>, T, kBytes, Index, kOwners, kLong>);
          const auto& most = csr.num_spans > reverse.num_spans ? args.table : args.reverse;
          using Args = GradientArgs<Family<Acc>, T, kBytes, Index, kOwners, kLong>;
          constexpr int kOfTargets =
              SourcesOfTarget<Args, Family<Acc>, T, kBytes, Index, kOwners, kLong>::Flight::kSharedBytes;
          constexpr int kOfSources = TargetsOfSource<Args, Family<Acc>, T, kBytes, Index>::Flight::kSharedBytes;
          const LaunchPlan plan =
              plan_heads(kernel, most, args.tiles, kGradientPhases, std::max(kOfTargets, kOfSources));
          launch_phases(plan, args, kGradientPhases, call.stream);
        });
  }
  if constexpr (kConstant) {
    const int64_t dims[] = {0};
    d_constant = torch::stable::sum(d_constant, torch::headeronly::IntHeaderOnlyArrayRef(dims, 1));
  }
  return {d_keys, d_values, d_targets, d_constant, edges};
}

}  // namespace bridge

}  // namespace gnnagg
