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
#include "cuda/scored_attention.cuh"
#include "cuda/target_record.cuh"

namespace gnnagg {

constexpr int kGradientPhases = 4;
constexpr int kPair = 2;  // (logsumexp, D) of a target, (w, ds) of an edge

template <typename Family, typename T, int kBytes, typename Index, int kOwners>
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
  Acc* records;                       // [num_dst, H, 2]: logsumexp, scaled, and D
  Acc* edges;                         // [num_edges, H, 2]: w and ds, by slot of `table`
  T* __restrict__ d_keys;             // [num_src, H * C]
  T* __restrict__ d_values;           // [num_src, H * C]
  T* __restrict__ d_targets;          // [num_dst, H * C]
  Acc* __restrict__ d_constant;       // [num_spans, H * C] or null
  Acc* __restrict__ target_partials;  // [2 num_spans, H * C]
  Acc* __restrict__ key_partials;     // [2 reverse spans, H * C]
  Acc* __restrict__ value_partials;   // [2 reverse spans, H * C]
  int64_t num_dst;
  Phases phases;
};

// A sum of packets, one row at a time, of `kSums` outputs.
template <typename T, int kBytes, int kSums>
struct PacketSums {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  struct Target {
    T* out[kSums];
    Acc* partials[kSums];
  };
  struct State {
    Acc value[kSums][kSize];
  };
  Target target;
  HeadPlace place;
  State state;

  __device__ __forceinline__ PacketSums(const Target& to, const HeadPlace& at) : target(to), place(at) {}
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[s][i] = Acc(0);
    }
  }
  __device__ __forceinline__ void merge(const State& other) {
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[s][i] += other.value[s][i];
    }
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    if (!place.active) return;
#pragma unroll
    for (int s = 0; s < kSums; ++s) Span<Acc, kSize>::store(target.partials[s] + place.row(slot), state.value[s]);
  }
  template <typename Index>
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    State other;
#pragma unroll
    for (int s = 0; s < kSums; ++s) Span<Acc, kSize>::load(target.partials[s] + place.row(slot), other.value[s]);
    merge(other);
  }
  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index) const {
    if (!place.active) return;
#pragma unroll
    for (int s = 0; s < kSums; ++s) Vector::store(target.out[s] + place.row(row), state.value[s]);
  }
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

template <typename Args, typename Family, typename T, int kBytes, typename Index, int kOwners>
struct SourcesOfTarget {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  using Owner = EdgeOwner<kOwners>;
  using Raw = typename Vector::Raw;
  static constexpr int kSize = Vector::kSize, kOwned = Owner::kOwned;
  static constexpr int kValues = Family::kSeparateValues ? kEdgeBatch : 1;
  struct Batch {
    Raw key[kEdgeBatch];
    Raw value[kValues];
    Acc factor[kOwned];
  };

  const Args& args;
  PlainRows<T, kBytes, Index> keys, values;
  const HeadPlace& place;
  const Owner& owner;
  Acc constant[kSize];
  Acc (&d_constant)[kSize];

  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (!inside<kWhole>(Index(slot + u), begin, end)) continue;
      batch.key[u] = keys.load(ids[u]);
      if constexpr (Family::kSeparateValues) batch.value[u] = values.load(ids[u]);
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
                                           Acc (&terms)[kEdgeBatch], Acc (&dots)[kEdgeBatch]) const {
    if (args.tiles.chunks > 1) {
      const int64_t row = int64_t(cursor.row) * place.features;
      long_terms<T, kBytes>(args.keys, args.table.col + slot, from, to, args.targets + row, args.constant, args.family,
                            place, args.tiles, terms);
      long_terms<T, kBytes>(args.values, args.table.col + slot, from, to, args.grad + row,
                            static_cast<const Acc*>(nullptr), Product<Acc>{}, place, args.tiles, dots);
      return;
    }
    Acc target[kSize], grad[kSize];
    Vector::unpack(cursor.reducer.of_row, target);
    Vector::unpack(cursor.reducer.grad_of_row, grad);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      terms[u] = dots[u] = Acc(0);
      if (u < from || u >= to || !place.active) continue;
      Acc key[kSize], value[kSize];
      Vector::unpack(batch.key[u], key);
      Vector::unpack(Family::kSeparateValues ? batch.value[Family::kSeparateValues ? u : 0] : batch.key[u], value);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        terms[u] += args.family.term(key[i], target[i], constant[i]);
        dots[u] += grad[i] * value[i];
      }
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed_segment(const Batch& batch, Index slot, int from, int to, Cursor& cursor) const {
    Acc terms[kEdgeBatch], dots[kEdgeBatch], score[kOwned], dot[kOwned], scaled_ds[kOwned];
    products(batch, slot, from, to, cursor, terms, dots);
    owner.sum_of_head(terms, args.tiles, score);
    owner.sum_of_head(dots, args.tiles, dot);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) {
      const Acc alpha =
          Exponent<Acc>::exp(score[o] * (args.family.scale() * Exponent<Acc>::kScale) - cursor.reducer.record[0]);
      const Acc ds = alpha * (dot[o] * batch.factor[o] - cursor.reducer.record[1]);
      scaled_ds[o] = ds * args.family.scale();
      const bool mine = owner.edge(o) >= from && owner.edge(o) < to;
      if (mine && place.active && place.first_chunk && place.in_head < kOwners) {
        const Acc pair[kPair] = {alpha * batch.factor[o], scaled_ds[o]};
        Span<Acc, kPair>::store(args.edges + place.score(slot + owner.edge(o)) * kPair, pair);
      }
    }
    Acc target[kSize];
    Vector::unpack(cursor.reducer.of_row, target);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u < from || u >= to) continue;
      const Acc of_edge = owner.of_edge(scaled_ds, u);
      Acc key[kSize];
      Vector::unpack(batch.key[u], key);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        cursor.reducer.state.value[0][i] += of_edge * args.family.of_target(key[i], target[i], constant[i]);
        if constexpr (Family::kConstant) d_constant[i] += of_edge * args.family.of_constant(key[i], target[i]);
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
  struct Batch {
    typename Vector::Raw target[kEdgeBatch], grad[kEdgeBatch];
    Acc pair[kEdgeBatch][kPair];
  };

  const Args& args;
  PlainRows<T, kBytes, Index> targets, grads;
  const HeadPlace& place;
  Acc constant[kSize];
  Index slot_ahead[kEdgeBatch];

  __device__ __forceinline__ void start(Index at, Index begin, Index end) {
    load_batch(args.slots, at, begin, end, slot_ahead);
  }
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index at, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (!inside<kWhole>(Index(at + u), begin, end)) continue;
      batch.target[u] = targets.load(ids[u]);
      batch.grad[u] = grads.load(ids[u]);
      Span<Acc, kPair>::load(args.edges + place.score(slot_ahead[u]) * kPair, batch.pair[u]);
    }
    load_batch(args.slots, Index(at + kEdgeBatch), begin, end, slot_ahead);
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed(const Batch& batch, int u, Index, Cursor& cursor) const {
    Acc key[kSize], target[kSize], grad[kSize];
    Vector::unpack(cursor.reducer.of_row, key);
    Vector::unpack(batch.target[u], target);
    Vector::unpack(batch.grad[u], grad);
    auto& value = cursor.reducer.state.value;
    constexpr int kOfValue = Family::kSeparateValues ? 1 : 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      value[0][i] += batch.pair[u][1] * args.family.of_source(key[i], target[i], constant[i]);
      value[kOfValue][i] += batch.pair[u][0] * grad[i];
    }
  }
};

// Called by every thread.
template <typename Family, typename T, int kBytes, typename Index, int kOwners>
__device__ __forceinline__ void prepare(const GradientArgs<Family, T, kBytes, Index, kOwners>& args) {
  using Acc = acc_t<T>;
  for_each_target<T, kBytes>(args.grad, args.out, static_cast<const T*>(nullptr), args.num_dst, args.tiles,
                             [&](int64_t item, Acc dot, Acc) {
                               const Acc record[kPair] = {args.lse[item] * Exponent<Acc>::kScale, dot};
                               Span<Acc, kPair>::store(args.records + item * kPair, record);
                             });
}

// Called by every thread, once the records are visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners>
__device__ __forceinline__ void walk_targets(const GradientArgs<Family, T, kBytes, Index, kOwners>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners>;
  constexpr int kSize = Packet<T, kBytes>::kSize;
  const Group group(args.tiles.lanes);
  const EdgeOwner<kOwners> owner(args.tiles, group);
  const uint32_t row_bytes = uint32_t(args.tiles.features * sizeof(T));
  for_each_span(args.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.tiles, group, int(tile), kSize);
    acc_t<T> d_constant[kSize] = {};
    SourcesOfTarget<Args, Family, T, kBytes, Index, kOwners> sources{
        args,      {args.keys + place.offset, row_bytes}, {args.values + place.offset, row_bytes}, place, owner, {},
        d_constant};
    load_constant(args.constant, place, sources.constant);
    reduce_span(args.table, k, sources, TargetGradient<Args, T, kBytes>(args, place));
    if constexpr (Family::kConstant) {
      if (place.active) Span<acc_t<T>, kSize>::store(args.d_constant + place.row(k), d_constant);
    }
  });
}

// Called by every thread, once the edges' pairs are visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners>
__device__ __forceinline__ void walk_sources(const GradientArgs<Family, T, kBytes, Index, kOwners>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners>;
  constexpr int kSize = Packet<T, kBytes>::kSize;
  const Group group(args.reverse_tiles.lanes);
  const uint32_t row_bytes = uint32_t(args.reverse_tiles.features * sizeof(T));
  for_each_span(args.reverse, args.reverse_tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.reverse_tiles, group, int(tile), kSize);
    TargetsOfSource<Args, Family, T, kBytes, Index> targets{
        args, {args.targets + place.offset, row_bytes}, {args.grad + place.offset, row_bytes}, place, {}, {}};
    load_constant(args.constant, place, targets.constant);
    reduce_span(args.reverse, k, targets, KeyGradient<Args, Family, T, kBytes>(args, place));
  });
}

template <typename Family, typename T, int kBytes, typename Index, int kOwners>
__global__ __launch_bounds__(kAttentionThreads, kAttentionBlocksPerSmLarge) void scored_gradient_kernel(
    const GradientArgs<Family, T, kBytes, Index, kOwners> args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners>;
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
};

// What both ops of these families do on the host.
template <template <typename> class Family>
ScoredGradients scored_gradient(const char* op, const HeadShape& shape, const Tensor& grad, const Tensor& keys,
                                const Tensor& values, const Tensor& targets, const OptionalTensor& constant,
                                const Tensor& out, const Tensor& lse, const CsrArguments& csr,
                                const CsrArguments& reverse, const Tensor& t_slot, const OptionalTensor& perm,
                                const OptionalTensor& seed, double family_factor, double dropout) {
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
    dispatch_heads<false>(
        keys, shape, csr.index, {&keys, &values, &targets, &grad, &out, &d_keys, &d_targets}, [&](auto types) {
          using Types = decltype(types);
          using T = typename Types::Element;
          using Index = typename Types::Index;
          using Acc = acc_t<T>;
          constexpr int kBytes = Types::kBytes, kOwners = Types::kOwners, kSize = Packet<T, kBytes>::kSize;
          GradientArgs<Family<Acc>, T, kBytes, Index, kOwners> args{};
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
              reinterpret_cast<const void*>(&scored_gradient_kernel<Family<Acc>, T, kBytes, Index, kOwners>);
          const auto& most = csr.num_spans > reverse.num_spans ? args.table : args.reverse;
          launch_phases(plan_heads(kernel, most, args.tiles, kGradientPhases), args, kGradientPhases, call.stream);
        });
  }
  if constexpr (kConstant) {
    const int64_t dims[] = {0};
    d_constant = torch::stable::sum(d_constant, torch::headeronly::IntHeaderOnlyArrayRef(dims, 1));
  }
  return {d_keys, d_values, d_targets, d_constant};
}

}  // namespace bridge

}  // namespace gnnagg
