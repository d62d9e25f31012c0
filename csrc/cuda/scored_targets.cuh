// The walks over targets of the gradient of scored_gradient.cuh: <dO, value> of every edge, then w and ds of every edge with the
// gradients of targets and of the constant.
#pragma once

#include "cuda/gradient_args.cuh"
#include "cuda/packet_flight.cuh"
#include "cuda/packet_sum.cuh"
#include "cuda/scored_attention.cuh"

namespace gnnagg {

// A Source: values of the edges, whose products with dO are left by edge and head.
template <typename T, int kBytes, typename Index, int kOwners, bool kLong, typename Args>
struct ValuesOfTarget {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  using Owner = EdgeOwner<kOwners>;
  using Flight = PacketFlight<kBytes, kEdgeBatch>;
  static constexpr int kSize = Vector::kSize;
  struct Batch {
    typename Flight::Batch packets;
  };

  const Args& args;
  PlainRows<T, kBytes, Index> values;
  const HeadPlace& place;
  const Owner& owner;
  Flight flight;

  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    request_rows<kWhole>(flight, batch.packets, values, slot, begin, end, ids);
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index slot, int from, int to, Cursor& cursor) const {
    Acc products[kEdgeBatch], dot[Owner::kOwned];
    if (kLong && args.tiles.chunks > 1) {
      long_terms<T, kBytes>(args.values, args.table.col + slot, from, to,
                            args.grad + int64_t(cursor.row) * place.features, static_cast<const Acc*>(nullptr),
                            Product<Acc>{}, place, args.tiles, products);
    } else {
      Acc grad[kSize];
      Vector::unpack(cursor.reducer.of_row, grad);
#pragma unroll
      for (int u = 0; u < kEdgeBatch; ++u) {
        products[u] = Acc(0);
        if (u < from || u >= to || !place.active) continue;
        Acc value[kSize];
        Vector::unpack(Flight::get(batch.packets, u), value);
#pragma unroll
        for (int i = 0; i < kSize; ++i) products[u] += grad[i] * value[i];
      }
    }
    owner.sum_of_head(products, args.tiles, dot);
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) {
      if (owner.writes(place, o, from, to)) __stcg(args.dots + place.score(slot + owner.edge(o)), dot[o]);
    }
  }
};

// The gradient of one target, with its packets and its record.
template <typename T, int kBytes, typename Args>
struct TargetGradient : PacketSum<T, kBytes> {
  using Base = PacketSum<T, kBytes>;
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  const Args& args;
  typename Vector::Raw of_row, of_next, grad_of_row, grad_of_next;
  Acc record[kRecordSize], next_record[kRecordSize];

  __device__ __forceinline__ TargetGradient(const Args& all, const HeadPlace& place)
      : Base({all.d_targets, all.target_partials}, place), args(all) {}
  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    of_next = Vector::load(args.targets + this->place.row(row));
    if constexpr (!Args::Family::kSeparateValues) grad_of_next = Vector::load(args.grad + this->place.row(row));
    Span<Acc, kRecordSize>::load(args.records + this->place.score(row) * kRecordSize, next_record);
  }
  __device__ __forceinline__ void enter() {
    of_row = of_next;
    if constexpr (!Args::Family::kSeparateValues) grad_of_row = grad_of_next;
#pragma unroll
    for (int i = 0; i < kRecordSize; ++i) record[i] = next_record[i];
  }
};

// A Source: keys of the edges.
template <typename T, int kBytes, typename Index, int kOwners, bool kLong, typename Args>
struct KeysOfTarget {
  using Family = typename Args::Family;
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  using Owner = EdgeOwner<kOwners>;
  using Flight = PacketFlight<kBytes, kEdgeBatch>;
  static constexpr int kSize = Vector::kSize, kOwned = Owner::kOwned;
  static constexpr bool kEdges = Family::kEdgeFeatures;
  static constexpr int kTargets = kEdges ? kEdgeBatch : 1;  // packets of the target, one for every edge with W e
  struct Batch {
    typename Flight::Batch packets;
    Acc factor[kOwned];
    Acc dot[Family::kSeparateValues ? kOwned : 1];
  };

  const Args& args;
  PlainRows<T, kBytes, Index> keys;
  const HeadPlace& place;
  const Owner& owner;
  ConstantPacket<Family, kSize, Acc> constant_packet;
  Acc (&d_constant)[kSize];
  Flight flight;

  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    request_rows<kWhole>(flight, batch.packets, keys, slot, begin, end, ids);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Index mine = slot + owner.edge(o);
      batch.factor[o] = Acc(1);
      if (!inside<kWhole>(mine, begin, end)) continue;
      if constexpr (Family::kSeparateValues) batch.dot[o] = __ldcg(args.dots + place.score(mine));
      if (args.options.seed) batch.factor[o] = args.options.factor_of(args.options.edge_of(mine), place);
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
  // This lane's share of the scores of edges [from, to) of a batch, and of <dO, value> where the values are the keys.
  template <typename Cursor>
  __device__ __forceinline__ void multiply(const Batch& batch, Index slot, int from, int to, const Cursor& cursor,
                                           const Acc (&target)[kTargets][kSize], Acc (&terms)[kEdgeBatch],
                                           Acc (&products)[kEdgeBatch]) const {
    if (kLong && args.tiles.chunks > 1) {
      multiply_long(slot, from, to, cursor, terms, products);
      return;
    }
    Acc grad[kSize], constant[kSize];
    if constexpr (!Family::kSeparateValues) Vector::unpack(cursor.reducer.grad_of_row, grad);
    constant_packet.get(constant);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      terms[u] = products[u] = Acc(0);
      if (u < from || u >= to || !place.active) continue;
      Acc key[kSize];
      Vector::unpack(Flight::get(batch.packets, u), key);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        terms[u] += args.family.term(key[i], target[kEdges ? u : 0][i], constant[i]);
        if constexpr (!Family::kSeparateValues) products[u] += grad[i] * key[i];
      }
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void multiply_long(Index slot, int from, int to, const Cursor& cursor,
                                                Acc (&terms)[kEdgeBatch], Acc (&products)[kEdgeBatch]) const {
    const int64_t row = int64_t(cursor.row) * place.features;
    const Index* ids = args.table.col + slot;
    if constexpr (kEdges) {
      const auto all = long_edge_terms<T, kBytes>(args.keys, ids, slot, from, to, args.targets + row, args.constant,
                                                  args.family, args.projection, place.features,
                                                  place.head * args.tiles.channels, args.tiles.channels);
#pragma unroll
      for (int u = 0; u < kEdgeBatch; ++u) terms[u] = all.of_edge[u];
    } else {
      long_terms<T, kBytes>(args.keys, ids, from, to, args.targets + row, args.constant, args.family, place, args.tiles,
                            terms);
    }
    if constexpr (!Family::kSeparateValues) {
      long_terms<T, kBytes>(args.keys, ids, from, to, args.grad + row, static_cast<const Acc*>(nullptr), Product<Acc>{},
                            place, args.tiles, products);
    }
  }
  // Adds what the edges that this lane owns give of their own to <dO, value>, and takes what they add to their scores off `shift`, which
  // is subtracted from those.
  __device__ __forceinline__ void add_edge_terms(Index slot, int from, int to, Acc (&shift)[kOwned],
                                                 Acc (&dot)[kOwned]) const {
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      if (!owner.has(o, from, to)) continue;
      const int64_t at = place.score(slot + owner.edge(o));
      shift[o] -= __ldcg(args.edge_terms + at);
      dot[o] += __ldcg(args.edge_dots + at);
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index slot, int from, int to, Cursor& cursor) const {
    Acc terms[kEdgeBatch], products[kEdgeBatch], score[kOwned], dot[kOwned], shift[kOwned], scaled_ds[kOwned];
    Acc target[kTargets][kSize];
    target_packets(slot, from, to, cursor, target);
    multiply(batch, slot, from, to, cursor, target, terms, products);
    owner.sum_of_head(terms, args.tiles, score);
    if constexpr (!Family::kSeparateValues) owner.sum_of_head(products, args.tiles, dot);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      if constexpr (Family::kSeparateValues) dot[o] = batch.dot[o];
      shift[o] = cursor.reducer.record[0];
    }
    if constexpr (Family::kEdgeTerms) {
      if (args.edge_terms) add_edge_terms(slot, from, to, shift, dot);
    }
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Acc alpha = Exponent<Acc>::exp(score[o] * (args.family.scale() * Exponent<Acc>::kScale) - shift[o]);
      scaled_ds[o] = alpha * (dot[o] * batch.factor[o] - cursor.reducer.record[1]) * args.family.scale();
      if (owner.writes(place, o, from, to)) {
        const int64_t at = place.score(slot + owner.edge(o));
        __stcg(args.weights + at, alpha * batch.factor[o]);
        __stcg(args.ds + at, scaled_ds[o]);
      }
    }
    Acc constant[kSize];
    constant_packet.get(constant);
    if constexpr (!kEdges) Vector::unpack(cursor.reducer.of_row, target[0]);  // again: it was not kept through the sums
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u < from || u >= to) continue;
      const Acc of_edge = owner.of_edge(scaled_ds, u);
      Acc key[kSize];
      Vector::unpack(Flight::get(batch.packets, u), key);
      const Acc(&of_row)[kSize] = target[kEdges ? u : 0];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        cursor.reducer.state.value[i] += of_edge * args.family.of_target(key[i], of_row[i], constant[i]);
        if constexpr (Family::kConstant) d_constant[i] += of_edge * args.family.of_constant(key[i], of_row[i]);
      }
    }
  }
};

// Called by every thread. A head of several tiles has all of its products in the first.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void walk_values(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  const Group group(args.tiles.lanes);
  const EdgeOwner<kOwners> owner(args.tiles, group);
  const uint32_t row_bytes = uint32_t(args.tiles.features * sizeof(T));
  for_each_span(args.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.tiles, group, int(tile), Packet<T, kBytes>::kSize);
    if (kLong && !place.first_chunk) return;  // the same in every lane of the group
    const ValuesOfTarget<T, kBytes, Index, kOwners, kLong, Args> values{
        args, {args.values + place.offset, row_bytes}, place, owner, {}};
    reduce_span(args.table, k, values, RowPacket<T, kBytes>(args.grad, place));
  });
}

// Called by every thread, once the records, and the products of separate values, are visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void walk_keys(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  constexpr int kSize = Packet<T, kBytes>::kSize;
  const Group group(args.tiles.lanes);
  const EdgeOwner<kOwners> owner(args.tiles, group);
  const uint32_t row_bytes = uint32_t(args.tiles.features * sizeof(T));
  for_each_span(args.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.tiles, group, int(tile), kSize);
    acc_t<T> d_constant[kSize] = {};
    KeysOfTarget<T, kBytes, Index, kOwners, kLong, Args> keys{
        args, {args.keys + place.offset, row_bytes}, place, owner, {args.constant, place}, d_constant, {}};
    reduce_span(args.table, k, keys, TargetGradient<T, kBytes, Args>(args, place));
    if constexpr (Family::kConstant) {
      if (place.active) Span<acc_t<T>, kSize>::store(args.d_constant + place.row(k), d_constant);
    }
  });
}

// Called by every thread, once the targets' partials are visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void combine_targets(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  const Group group(args.tiles.lanes);
  combine_rows(args.table, args.tiles.tiles, group, [&](int64_t tile) {
    return TargetGradient<T, kBytes, Args>(args, HeadPlace(args.tiles, group, int(tile), Packet<T, kBytes>::kSize));
  });
}

}  // namespace gnnagg
