// The forward pass of the families of score_family.cuh: the walk of gat_attention.cu with a score that is added up across the
// lanes of a head.
//
// Traffic. Per edge F * s bytes of keys at random, and as many of values where those are separate; 4 of col; with dropout 4 of
// perm. Per row the target's F * s, the result and its logsumexp. Edge features of gatv2 are D * s bytes per edge and tile in order,
// and D packets of W per batch and lane from the caches; the terms of dot are 8 H bytes per edge in order, half of them written.
#pragma once

#include "bridge/attention.h"
#include "cuda/edge_features.cuh"
#include "cuda/packet_flight.cuh"
#include "cuda/score_family.cuh"
#include "cuda/softmax_reducer.cuh"

namespace gnnagg {

template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
struct ScoredArgs {
  using Acc = acc_t<T>;
  SpanTable<Index> table;
  HeadTiles tiles;
  const T* __restrict__ keys;        // [num_src, H * C]
  const T* __restrict__ values;      // [num_src, H * C], the keys where they are not separate
  const T* __restrict__ targets;     // [num_rows, H * C]
  const Acc* __restrict__ constant;  // [H * C] or null
  Family family;
  EdgeOptions<Acc, Index> options;
  EdgeProjection<T> projection;  // with kEdgeFeatures
  const Acc* edge_terms;         // with kEdgeTerms [num_edges, H] by slot or null: added to the scaled score
  Acc* edge_scores;              // likewise: receives the sum
  typename SoftmaxReducer<T, kBytes, kOwners, false>::Target target;
  Phases phases;
};

// The softmax of one row, with the target's packet of it.
template <typename T, int kBytes, int kOwners>
struct TargetSoftmax : SoftmaxReducer<T, kBytes, kOwners, false> {
  using Base = SoftmaxReducer<T, kBytes, kOwners, false>;
  using Vector = Packet<T, kBytes>;
  const T* __restrict__ targets;  // [num_rows, H * C]
  typename Vector::Raw of_row, of_next;

  __device__ __forceinline__ TargetSoftmax(const typename Base::Target& target, const HeadPlace& place,
                                           const typename Base::Owner& owner, const T* rows)
      : Base(target, place, owner), targets(rows) {}
  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    of_next = Vector::load(targets + this->place.row(row));
  }
  __device__ __forceinline__ void enter() { of_row = of_next; }
};

template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
struct ScoredRows {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  using Args = ScoredArgs<Family, T, kBytes, Index, kOwners, kLong>;
  using Owner = EdgeOwner<kOwners>;
  using Raw = typename Vector::Raw;
  static constexpr int kSize = Vector::kSize;
  static constexpr int kValue = Family::kSeparateValues ? kEdgeBatch : 0;  // the first value among the packets
  static constexpr bool kEdges = Family::kEdgeFeatures;
  static constexpr int kTargets = kEdges ? kEdgeBatch : 1;  // packets of the target, one for every edge with W e
  using Flight = PacketFlight<kBytes, kEdgeBatch + kValue>;
  struct Batch {
    typename Flight::Batch packets;
    Acc factor[Owner::kOwned];
  };

  const Args& args;
  PlainRows<T, kBytes, Index> keys, values;
  const HeadPlace& place;
  const Owner& owner;
  ConstantPacket<Family, kSize, Acc> constant_packet;
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
    for (int o = 0; o < Owner::kOwned; ++o) {
      const Index mine = slot + owner.edge(o);
      batch.factor[o] = Acc(1);
      if (args.options.seed && inside<kWhole>(mine, begin, end)) {
        batch.factor[o] = args.options.factor_of(args.options.edge_of(mine), place);
      }
    }
  }
  // Adds the terms of the edges that this lane owns to their scores, and leaves the sums beside them: one lane of each head does.
  __device__ __forceinline__ void add_edge_terms(Index slot, int from, int to, Acc (&score)[Owner::kOwned]) const {
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) {
      if (!owner.has(o, from, to)) continue;
      const int64_t at = place.score(slot + owner.edge(o));
      score[o] += __ldcg(args.edge_terms + at);
      if (owner.writes(place, o, from, to)) __stcg(args.edge_scores + at, score[o]);
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index slot, int from, int to, Cursor& cursor) const {
    Acc terms[kEdgeBatch], score[Owner::kOwned];
    const bool positive[Owner::kOwned] = {};
    if (kLong && args.tiles.chunks > 1) {
      const T* row = args.targets + int64_t(cursor.row) * place.features;
      if constexpr (kEdges) {
        const auto all = long_edge_terms<T, kBytes>(args.keys, args.table.col + slot, slot, from, to, row,
                                                    args.constant, args.family, args.projection, place.features,
                                                    place.head * args.tiles.channels, args.tiles.channels);
#pragma unroll
        for (int u = 0; u < kEdgeBatch; ++u) terms[u] = all.of_edge[u];
      } else {
        long_terms<T, kBytes>(args.keys, args.table.col + slot, from, to, row, args.constant, args.family, place,
                              args.tiles, terms);
      }
    } else {
      Acc target[kTargets][kSize], constant[kSize];
      constant_packet.get(constant);
#pragma unroll
      for (int t = 0; t < kTargets; ++t) Vector::unpack(cursor.reducer.of_row, target[t]);
      if constexpr (kEdges) {
        Index slots[kEdgeBatch];
        batch_slots(slot, slots);
        args.projection.add(slots, from, to, place.features, place.offset, target);
      }
#pragma unroll
      for (int u = 0; u < kEdgeBatch; ++u) {
        terms[u] = Acc(0);
        if (u < from || u >= to || !place.active) continue;
        Acc key[kSize];
        Vector::unpack(Flight::get(batch.packets, u), key);
#pragma unroll
        for (int i = 0; i < kSize; ++i) terms[u] += args.family.term(key[i], target[kEdges ? u : 0][i], constant[i]);
      }
    }
    owner.sum_of_head(terms, args.tiles, score);
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) score[o] *= args.family.scale() * Exponent<Acc>::kScale;
    if constexpr (Family::kEdgeTerms) {
      if (args.edge_terms) add_edge_terms(slot, from, to, score);
    }
    cursor.reducer.add(from, to, score, positive, batch.factor,
                       [&](int u) { return Flight::get(batch.packets, kValue + u); });
  }
};

template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__global__ __launch_bounds__(kAttentionThreads, kAttentionBlocksPerSm) void scored_attention_kernel(
    const ScoredArgs<Family, T, kBytes, Index, kOwners, kLong> args) {
  const Group group(args.tiles.lanes);
  const EdgeOwner<kOwners> owner(args.tiles, group);
  const uint32_t row_bytes = uint32_t(args.tiles.features * sizeof(T));
  if (args.phases.has(0)) {
    for_each_span(args.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
      const HeadPlace place(args.tiles, group, int(tile), Packet<T, kBytes>::kSize);
      const ScoredRows<Family, T, kBytes, Index, kOwners, kLong> rows{args,
                                                                      {args.keys + place.offset, row_bytes},
                                                                      {args.values + place.offset, row_bytes},
                                                                      place,
                                                                      owner,
                                                                      {args.constant, place},
                                                                      {}};
      reduce_span(args.table, k, rows, TargetSoftmax<T, kBytes, kOwners>(args.target, place, owner, args.targets));
    });
  }
  if (!args.phases.has(1) || !has_split_rows(args.table)) return;    // the same in every block
  if (args.phases.together) cooperative_groups::this_grid().sync();  // every block's partials are visible to all
  combine_rows(args.table, args.tiles.tiles, group, [&](int64_t tile) {
    return SoftmaxReducer<T, kBytes, kOwners, false>(
        args.target, HeadPlace(args.tiles, group, int(tile), Packet<T, kBytes>::kSize), owner);
  });
}

namespace bridge {

// Edge features make kernels of their own for long heads the largest of all.
template <typename Family>
constexpr Long kLongHeads = Family::kEdgeFeatures ? Long::kNarrow : Long::kApart;

// Edge features as the kernels take them; all empty without.
struct ScoredEdges {
  OptionalTensor attr;    // [num_edges, D'], packed, of a family with kEdgeFeatures
  OptionalTensor weight;  // [D', H * C], W transposed
  OptionalTensor terms;   // [num_edges, H] by slot, of a family with kEdgeTerms: of the scores
  OptionalTensor second;  // likewise: receives the scores, or what is added to <dO, value>
};

template <typename T>
EdgeProjection<T> edge_projection(const OptionalTensor& attr, const OptionalTensor& weight) {
  if (!attr) return {};
  return {read_pointer<T>(attr), read_pointer<acc_t<T>>(weight), int(attr->size(1))};
}

// What both ops of these families do on the host.
template <template <typename> class Family>
std::tuple<Tensor, Tensor> scored_attention(const char* op, const HeadShape& shape, const Tensor& keys,
                                            const Tensor& values, const Tensor& targets, const OptionalTensor& constant,
                                            const CsrArguments& csr, const OptionalTensor& perm,
                                            const OptionalTensor& seed, double family_factor, double dropout,
                                            const ScoredEdges& edges = {}) {
  const CudaCall call(keys);
  const ScalarType type = keys.scalar_type(), acc = accumulate_type(type);
  check_tensor(targets, op, "the targets' features", type, {csr.num_rows, shape.width()});
  check_tensor(values, op, "the values", type, {shape.rows, shape.width()});
  Tensor out = empty_like_device(keys, {csr.num_rows, shape.width()}, type);
  Tensor lse = empty_like_device(keys, {csr.num_rows, shape.heads}, acc);
  if (csr.num_rows == 0) return {out, lse};
  Tensor partials = empty_like_device(keys, {2 * csr.num_spans, shape.width()}, acc);
  Tensor partial_scores = empty_like_device(keys, {2 * csr.num_spans, shape.heads, kPartialScores}, acc);
  dispatch_heads<false, kLongHeads<Family<float>>, Family<float>::kMostValues>(
      keys, shape, csr.index, {&keys, &values, &targets, &out, constant ? &*constant : &keys}, [&](auto types) {
        using Types = decltype(types);
        using T = typename Types::Element;
        using Index = typename Types::Index;
        using Acc = acc_t<T>;
        using Chosen = FamilyOf<Family<Acc>, T, Index>;
        constexpr int kBytes = Types::kBytes, kOwners = Types::kOwners;
        constexpr bool kLong = Types::kLong;
        ScoredArgs<Chosen, T, kBytes, Index, kOwners, kLong> args{};
        args.table = csr.table<Index>();
        args.tiles = shape.tiles(csr, Packet<T, kBytes>::kSize);
        args.keys = read_pointer<T>(keys);
        args.values = read_pointer<T>(values);
        args.targets = read_pointer<T>(targets);
        args.constant = read_pointer<Acc>(constant);
        args.family = {Acc(family_factor)};
        args.options = edge_options<Acc, Index>(op, csr, perm, std::nullopt, seed, dropout);
        args.projection = edge_projection<T>(edges.attr, edges.weight);
        args.edge_terms = read_pointer<Acc>(edges.terms);
        args.edge_scores = edges.second ? write_pointer<Acc>(*edges.second) : nullptr;
        args.target = {write_pointer<T>(out),
                       write_pointer<Acc>(lse),
                       nullptr,
                       nullptr,
                       write_pointer<Acc>(partials),
                       write_pointer<Acc>(partial_scores),
                       nullptr};
        const auto* kernel =
            reinterpret_cast<const void*>(&scored_attention_kernel<Chosen, T, kBytes, Index, kOwners, kLong>);
        constexpr int kSharedBytes = ScoredRows<Chosen, T, kBytes, Index, kOwners, kLong>::Flight::kSharedBytes;
        launch_phases(plan_heads(kernel, args.table, args.tiles, kReducePhases, kSharedBytes), args, kReducePhases,
                      call.stream);
      });
  return {out, lse};
}

}  // namespace bridge

}  // namespace gnnagg
