// The walk over sources of gat_attention_backward.cu, what it is given, and the node-local phase before it.
#pragma once

#include "cuda/edge_options.cuh"
#include "cuda/edge_rows.cuh"
#include "cuda/packet_flight.cuh"
#include "cuda/target_record.cuh"

namespace gnnagg {

// What an edge needs of its target, per head: its share of the score and its logsumexp, both scaled, and D; and padding.
constexpr int kRecord = 4;

template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
struct GatBackwardArgs {
  using Acc = acc_t<T>;
  SpanTable<Index> table;  // of the transpose: rows are sources
  HeadTiles tiles;
  const T* __restrict__ grad;              // [num_dst, H * C]
  const T* __restrict__ z;                 // [num_src, H * C]
  const Acc* __restrict__ a_src;           // [num_src, H]
  const Acc* __restrict__ a_dst;           // [num_dst, H] or null
  const T* __restrict__ out;               // [num_dst, H * C]
  const Acc* __restrict__ lse;             // [num_dst, H]
  const T* __restrict__ positive_out;      // [num_dst, H * C] or null
  const Acc* __restrict__ positive_alpha;  // [num_dst, H] or null
  const Index* __restrict__ slots;         // [num_edges] forward slot of each slot of the transpose
  EdgeOptions<Acc, Index> options;
  Acc* records;                      // [num_dst, H, 4]
  T* __restrict__ dz;                // [num_src, H * C]
  Acc* __restrict__ da_src;          // [num_src, H]
  Acc* __restrict__ da_dst;          // [num_dst, H] or null
  Acc* __restrict__ partials;        // [2 num_spans, H * C]
  Acc* __restrict__ partial_scores;  // [2 num_spans, H]
  Acc* ds;                           // [num_edges, H] or null
  bool ds_by_edge;                   // in edge order, else in the order of forward slots
  EdgeRows<Index> target_rows;       // of the CSR, for the sums of ds
  Acc* partial_sums;                 // [2 num_spans, H]
  bool sums_targets;
  int64_t num_dst;
  Acc negative_slope;
  Phases phases;
};

// Called by every thread.
template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void prepare(const GatBackwardArgs<T, kBytes, Index, kOwners, kLong>& args) {
  using Acc = acc_t<T>;
  for_each_target<T, kBytes>(
      args.grad, args.out, args.positive_out, args.num_dst, args.tiles, [&](int64_t item, Acc dot, Acc positive_dot) {
        const Acc record[kRecord] = {args.a_dst ? args.a_dst[item] * Exponent<Acc>::kScale : Acc(0),
                                     args.lse[item] * Exponent<Acc>::kScale, dot, Acc(0)};
        Span<Acc, kRecord>::store(args.records + item * kRecord, record);
        if (args.positive_out && args.da_dst) {
          args.da_dst[item] = (Acc(1) - args.negative_slope) * (positive_dot - dot * args.positive_alpha[item]);
        }
      });
}

// Gradients of one source: dz of a packet, and of da_src what the edges of this lane give.
template <typename T, int kBytes, int kOwners>
struct SourceGradient {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;

  struct Target {
    const T* __restrict__ z;
    const Acc* __restrict__ a_src;
    T* __restrict__ dz;
    Acc* __restrict__ da_src;
    Acc* __restrict__ partials;
    Acc* __restrict__ partial_scores;
  };
  struct State {
    Acc value[kSize];
    Acc score;
  };

  using Owner = EdgeOwner<kOwners>;

  Target target;
  HeadPlace place;
  Owner owner;
  State state;
  typename Vector::Raw of_row, of_next;  // z
  Acc score_of_row, score_of_next;       // a_src, scaled

  __device__ __forceinline__ SourceGradient(const Target& to, const HeadPlace& at, const Owner& own)
      : target(to), place(at), owner(own) {}

  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    of_next = Vector::load(target.z + place.row(row));
    score_of_next = __ldg(target.a_src + place.score(row));
  }
  __device__ __forceinline__ void enter() {
    of_row = of_next;
    score_of_row = score_of_next * Exponent<Acc>::kScale;
  }
  __device__ __forceinline__ void reset() {
    state.score = Acc(0);
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] = Acc(0);
  }
  // Edges [from, to) of a batch, all of this row: the ds and the shares of dO of those that this lane owns, and `packet(u)`,
  // everyone's dO.
  template <typename PacketOf>
  __device__ __forceinline__ void add(int from, int to, const Acc (&ds)[Owner::kOwned],
                                      const Acc (&share)[Owner::kOwned], PacketOf packet) {
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) {
      if (owner.has(o, from, to)) state.score += ds[o];
    }
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u < from || u >= to) continue;
      const Acc of_edge = owner.of_edge(share, u);
      Acc values[kSize];
      Vector::unpack(packet(u), values);
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[i] += of_edge * values[i];
    }
  }
  __device__ __forceinline__ void merge(const State& other) {
    state.score += other.score;
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] += other.value[i];
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    const Acc score = owner.sum_of_owners(state.score);
    if (place.active) Span<Acc, kSize>::store(target.partials + place.row(slot), state.value);
    if (place.leads) __stcg(target.partial_scores + place.score(slot), score);
  }
  template <typename Index>
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    State other;
    Span<Acc, kSize>::load(target.partials + place.row(slot), other.value);
    other.score = owner.own == 0 ? __ldcg(target.partial_scores + place.score(slot)) : Acc(0);
    merge(other);
  }
  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index) const {
    const Acc score = owner.sum_of_owners(state.score);
    if (place.active) Vector::store(target.dz + place.row(row), state.value);
    if (place.leads) target.da_src[place.score(row)] = score;
  }
};

template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
struct TargetRows {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  using Args = GatBackwardArgs<T, kBytes, Index, kOwners, kLong>;
  using Owner = EdgeOwner<kOwners>;
  static constexpr int kSize = Vector::kSize;
  static constexpr int kOwned = Owner::kOwned;
  // Packets of dO, and the owned edges' records where those fly.
  using Flight = PacketFlight<kBytes, kEdgeBatch + kOwned>;
  static constexpr bool kRecordsFly = kBytes == kRecord * int(sizeof(Acc));
  struct Batch {
    typename Flight::Batch packets;
    Acc record[kRecordsFly ? 1 : kOwned][kRecord];
    Acc score[kOwned];  // the edge's own
    Acc factor[kOwned];
    Index place[kOwned];  // of ds
  };

  const Args& args;
  PlainRows<T, kBytes, Index> rows;
  const HeadPlace& place;
  const Owner& owner;
  Flight flight;

  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    request_rows<kWhole>(flight, batch.packets, rows, slot, begin, end, ids);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Index mine = slot + owner.edge(o);
      batch.score[o] = Acc(0);
      batch.factor[o] = Acc(1);
      if (!inside<kWhole>(mine, begin, end)) continue;
      const Acc* record = args.records + place.score(owner.pick(ids, o)) * kRecord;
      if constexpr (kRecordsFly) {
        flight.request(batch.packets, kEdgeBatch + o, record);
      } else {
        Span<Acc, kRecord>::load(record, batch.record[o]);
      }
      if (args.ds || args.options.any()) batch.place[o] = __ldg(args.slots + mine);
      if (args.options.any()) {
        const int64_t edge = args.options.edge_of(batch.place[o]);
        batch.score[o] = args.options.score_of(edge, place) * Exponent<Acc>::kScale;
        batch.factor[o] = args.options.factor_of(edge, place);
        if (args.ds_by_edge) batch.place[o] = Index(edge);
      }
    }
  }

  // (target's share of the score, logsumexp, D, -) of this lane's o-th edge.
  __device__ __forceinline__ void record_of(const Batch& batch, int o, Acc (&record)[kRecord]) const {
    if constexpr (kRecordsFly) {
      const uint4 raw = Flight::get(batch.packets, kEdgeBatch + o);
      const uint32_t bits[kRecord] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < kRecord; ++i) record[i] = __uint_as_float(bits[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kRecord; ++i) record[i] = batch.record[o][i];
    }
  }

  // This lane's share of <dO[i], z[j]> for the edges [from, to) of a batch: that of its packet, or of every chunk of the head.
  template <typename Cursor>
  __device__ __forceinline__ void multiply(const Batch& batch, Index slot, int from, int to, const Cursor& cursor,
                                           Acc (&products)[kEdgeBatch]) const {
    if (kLong && args.tiles.chunks > 1) {
      long_terms<T, kBytes>(args.grad, args.table.col + slot, from, to, args.z + int64_t(cursor.row) * place.features,
                            static_cast<const Acc*>(nullptr), Product<Acc>{}, place, args.tiles, products);
      return;
    }
    Acc z[kSize];
    Vector::unpack(cursor.reducer.of_row, z);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      products[u] = Acc(0);
      if (u < from || u >= to || !place.active) continue;
      Acc grad[kSize];
      Vector::unpack(Flight::get(batch.packets, u), grad);
#pragma unroll
      for (int i = 0; i < kSize; ++i) products[u] += grad[i] * z[i];
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index slot, int from, int to, Cursor& cursor) const {
    Acc products[kEdgeBatch], mine[kOwned], ds[kOwned], share[kOwned];
    multiply(batch, slot, from, to, cursor, products);
    owner.sum_of_head(products, args.tiles, mine);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      Acc record[kRecord];
      record_of(batch, o, record);
      const Acc score = batch.score[o] + record[0] + cursor.reducer.score_of_row;
      const Acc alpha = Exponent<Acc>::exp(leaky_relu(score, args.negative_slope) - record[1]);
      ds[o] = alpha * (mine[o] * batch.factor[o] - record[2]) * leaky_relu_slope(score, args.negative_slope);
      share[o] = alpha * batch.factor[o];
      if (args.ds && owner.writes(place, o, from, to)) __stcg(args.ds + place.score(batch.place[o]), ds[o]);
    }
    cursor.reducer.add(from, to, ds, share, [&](int u) { return Flight::get(batch.packets, u); });
  }
};

template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ typename SourceGradient<T, kBytes, kOwners>::Target source_target(
    const GatBackwardArgs<T, kBytes, Index, kOwners, kLong>& args) {
  return {args.z, args.a_src, args.dz, args.da_src, args.partials, args.partial_scores};
}

// Called by every thread, once the records are visible.
template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void walk_sources(const GatBackwardArgs<T, kBytes, Index, kOwners, kLong>& args,
                                             const Group& group) {
  for_each_span(args.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.tiles, group, int(tile), Packet<T, kBytes>::kSize);
    const EdgeOwner<kOwners> owner(args.tiles, group);
    const TargetRows<T, kBytes, Index, kOwners, kLong> rows{
        args, {args.grad + place.offset, uint32_t(place.features * sizeof(T))}, place, owner, {}};
    reduce_span(args.table, k, rows, SourceGradient<T, kBytes, kOwners>(source_target(args), place, owner));
  });
}

// Called by every thread, once the partials are visible.
template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void combine_sources(const GatBackwardArgs<T, kBytes, Index, kOwners, kLong>& args,
                                                const Group& group) {
  combine_rows(args.table, args.tiles.tiles, group, [&](int64_t tile) {
    return SourceGradient<T, kBytes, kOwners>(source_target(args),
                                              HeadPlace(args.tiles, group, int(tile), Packet<T, kBytes>::kSize),
                                              EdgeOwner<kOwners>(args.tiles, group));
  });
}

}  // namespace gnnagg
