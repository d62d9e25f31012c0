// gat_attention_backward: the gradients of gat_attention with one gather, of dO.
//
// What. With D[i,h] = <dO[i,h], out[i,h]>, alpha[e] = exp(score[e] - logsumexp[i]), m[e] = dropout's mask:
//   ds[e] = alpha[e] (m[e] <dO[i], z[j]> - D[i]) * (1 or the negative slope),
//   dz[j] = sum of alpha[e] m[e] dO[i], da_src[j] = sum of ds[e] over the edges out of j, da_dst[i] = sum of ds[e] over those into i.
//
// How. prepare is node-local: D, and the three scalars of a target packed in one record. walk_sources goes over the rows of the
// transpose as every aggregation does: z[j] stays in registers, dO[i] and the record of i are gathered, the dot product is added
// across the lanes of a head. combine_sources puts split rows together. da_dst comes in one of two ways. Node-local, where the
// forward kept the sums over its positive scores (outP, A): as the de of a row add up to 0, sum ds = (1 - slope) (<dO, outP> -
// D A). Or the ds are written per edge and added up over the rows of the forward CSR (edge_rows.cuh): right where rows are short,
// and needed when the edge scores have a gradient anyway.
//
// Traffic. Per edge: F * s bytes of dO at random, 4 of col, a record of 16 H bytes; with ds written 4 H bytes at random, read once in
// order, and 4 of t_slot; with options 4 of perm at random. Per node: z, dO, out read, dz written, and outP where it is kept.
//
// Launch contract. One cooperative launch of four phases, or four ordinary ones; any grid size is right. d_edge must be zero where
// edges may be dead.
//
// Determinism. As aggregate_sum; no atomics.
#include "bridge/attention.h"
#include "cuda/edge_rows.cuh"
#include "cuda/packet_flight.cuh"
#include "cuda/target_record.cuh"

namespace gnnagg {
namespace {

constexpr int kPhases = 4;

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
      if (owner.edge(o) >= from && owner.edge(o) < to) state.score += ds[o];
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
  using Flight =
      PacketFlight<kBytes, kEdgeBatch + kOwned>;  // packets of dO, and the owned edges' records where those fly
  static constexpr bool kNarrow = kSize == 1;
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
    flight.begin(batch.packets);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (inside<kWhole>(Index(slot + u), begin, end)) flight.request(batch.packets, u, rows.row(ids[u]));
    }
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
      if (args.ds && place.active && place.first_chunk && place.in_head < kOwners && owner.edge(o) >= from &&
          owner.edge(o) < to) {
        __stcg(args.ds + place.score(batch.place[o]), ds[o]);
      }
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

template <typename Acc>
struct EdgeValue {
  const Acc* values;
  __device__ __forceinline__ Acc operator()(int64_t at) const { return __ldcg(values + at); }
};

template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ auto target_sums(const GatBackwardArgs<T, kBytes, Index, kOwners, kLong>& args) {
  return SumRule<acc_t<T>, EdgeValue<acc_t<T>>>{{args.ds}, args.da_dst, args.partial_sums};
}

template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__global__ __launch_bounds__(kAttentionThreads, kAttentionBlocksPerSm) void gat_attention_backward_kernel(
    const GatBackwardArgs<T, kBytes, Index, kOwners, kLong> args) {
  const auto grid = cooperative_groups::this_grid();
  const Group group(args.tiles.lanes);
  if (args.phases.has(0)) prepare(args);
  if (args.phases.together) grid.sync();  // the records of all targets are visible
  if (args.phases.has(1)) walk_sources(args, group);
  if (args.phases.together) grid.sync();  // partials and ds of every block are visible
  if (args.phases.has(2)) combine_sources(args, group);
  if (!args.sums_targets) return;  // the same in every block
  const auto sum_of_ds = target_sums(args);
  if (args.phases.has(2)) reduce_edge_spans(args.target_rows, sum_of_ds);
  if (args.phases.together) grid.sync();  // partial sums of every block are visible
  if (args.phases.has(3)) combine_edge_rows(args.target_rows, sum_of_ds);
}

}  // namespace

using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward_cuda(
    const Tensor& grad, const Tensor& z, const Tensor& a_src, const OptionalTensor& a_dst,
    const OptionalTensor& edge_score, const Tensor& out, const Tensor& lse, const Tensor& positive_out,
    const Tensor& positive_alpha, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
    const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col, const Tensor& t_slot,
    const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed, double negative_slope, double dropout,
    bool need_dst, bool need_edge) {
  const char* op = "gat_attention_backward";
  const bridge::CudaCall call(z);
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits), reverse(op, t_rowptr, t_col, t_spans, t_splits);
  const bridge::HeadShape shape(op, "z", z, a_src.size(1));
  const ScalarType type = z.scalar_type(), acc = bridge::accumulate_type(type);
  const int64_t heads = shape.heads, width = shape.width();
  bridge::check_tensor(grad, op, "grad", type, {csr.num_rows, width});
  bridge::check_tensor(out, op, "out", type, {csr.num_rows, width});
  bridge::check_tensor(lse, op, "lse", acc, {csr.num_rows, heads});
  bridge::check_tensor(a_src, op, "a_src", acc, {shape.rows, heads});
  if (a_dst) bridge::check_tensor(*a_dst, op, "a_dst", acc, {csr.num_rows, heads});
  if (edge_score) bridge::check_tensor(*edge_score, op, "edge_score", acc, {csr.num_edges, heads});
  bridge::check_transpose(op, csr, reverse, t_slot, shape.rows);
  const bool positive = positive_out.numel() != 0;
  if (positive) {
    bridge::check_tensor(positive_out, op, "positive_out", type, {csr.num_rows, width});
    bridge::check_tensor(positive_alpha, op, "positive_alpha", acc, {csr.num_rows, heads});
  }
  const bool node_local = positive && !need_edge;
  const bool writes_ds = need_edge || (need_dst && !node_local);
  const auto make = [&](std::initializer_list<int64_t> sizes, ScalarType dtype) {
    return bridge::empty_like_device(z, sizes, dtype);
  };
  Tensor dz = make({shape.rows, width}, type), da_src = make({shape.rows, heads}, acc);
  Tensor da_dst = need_dst ? make({csr.num_rows, heads}, acc) : make({0}, acc);
  Tensor d_edge = need_edge ? bridge::zeros_like_device(z, {csr.num_edges, heads}, acc) : make({0}, acc);
  if (shape.rows == 0 && csr.num_rows == 0) return {dz, da_src, da_dst, d_edge};
  Tensor ds = need_edge ? d_edge : make({writes_ds ? csr.num_edges : 0, heads}, acc);
  Tensor records = make({csr.num_rows, heads, kRecord}, acc);
  Tensor partials = make({2 * reverse.num_spans, width}, acc),
         partial_scores = make({2 * reverse.num_spans, heads}, acc);
  Tensor partial_sums = make({need_dst && writes_ds ? 2 * csr.num_spans : 0, heads}, acc);

  bridge::dispatch_heads<true, bridge::Long::kApart>(
      z, shape, csr.index, {&z, &grad, &out, &dz, &positive_out}, [&](auto types) {
        using Types = decltype(types);
        using T = typename Types::Element;
        using Index = typename Types::Index;
        using Acc = acc_t<T>;
        constexpr int kBytes = Types::kBytes;
        constexpr int kOwners = Types::kOwners;
        constexpr bool kLong = Types::kLong;
        GatBackwardArgs<T, kBytes, Index, kOwners, kLong> args{};
        args.table = reverse.table<Index>();
        args.tiles = shape.tiles(reverse, Packet<T, kBytes>::kSize);
        args.grad = bridge::read_pointer<T>(grad);
        args.z = bridge::read_pointer<T>(z);
        args.a_src = bridge::read_pointer<Acc>(a_src);
        args.a_dst = bridge::read_pointer<Acc>(a_dst);
        args.out = bridge::read_pointer<T>(out);
        args.lse = bridge::read_pointer<Acc>(lse);
        args.positive_out = node_local ? bridge::read_pointer<T>(positive_out) : nullptr;
        args.positive_alpha = node_local ? bridge::read_pointer<Acc>(positive_alpha) : nullptr;
        args.slots = bridge::read_pointer<Index>(t_slot);
        args.options = bridge::edge_options<Acc, Index>(op, csr, perm, edge_score, seed, dropout);
        args.records = bridge::write_pointer<Acc>(records);
        args.dz = bridge::write_pointer<T>(dz);
        args.da_src = bridge::write_pointer<Acc>(da_src);
        args.da_dst = need_dst ? bridge::write_pointer<Acc>(da_dst) : nullptr;
        args.partials = bridge::write_pointer<Acc>(partials);
        args.partial_scores = bridge::write_pointer<Acc>(partial_scores);
        args.ds = writes_ds ? bridge::write_pointer<Acc>(ds) : nullptr;
        args.ds_by_edge = need_edge;
        args.sums_targets = need_dst && writes_ds;
        args.target_rows =
            EdgeRows<Index>::of(csr.table<Index>(), need_edge ? bridge::read_pointer<Index>(perm) : nullptr, heads);
        args.partial_sums = bridge::write_pointer<Acc>(partial_sums);
        args.num_dst = csr.num_rows;
        args.negative_slope = Acc(negative_slope);
        const auto* kernel =
            reinterpret_cast<const void*>(&gat_attention_backward_kernel<T, kBytes, Index, kOwners, kLong>);
        constexpr int kSharedBytes = TargetRows<T, kBytes, Index, kOwners, kLong>::Flight::kSharedBytes;
        launch_phases(bridge::plan_heads(kernel, args.table, args.tiles, kPhases, kSharedBytes), args, kPhases,
                      call.stream);
      });
  return {dz, da_src, da_dst, d_edge};
}

}  // namespace gnnagg
