// The walks over sources of the gradient of scored_gradient.cuh: the sums of w dO, which are the values' gradient, then those of ds times
// what the family makes of target and key, which are the keys'. One after the other, so that one table is read at random at a time.
#pragma once

#include "cuda/gradient_args.cuh"
#include "cuda/packet_flight.cuh"
#include "cuda/packet_sum.cuh"

namespace gnnagg {

// A Source: rows of targets, with a number of every edge and head by slot of the CSR.
template <typename T, int kBytes, typename Index, bool kKeepsSlots>
struct NumberedTargets {
  using Acc = acc_t<T>;
  using Flight = PacketFlight<kBytes, kEdgeBatch>;
  struct Batch {
    typename Flight::Batch packets;
    Acc number[kEdgeBatch];
    Index slot[kKeepsSlots ? kEdgeBatch : 1];
  };

  PlainRows<T, kBytes, Index> rows;
  const Acc* numbers;               // [num_edges, H], written earlier in this launch
  const Index* __restrict__ slots;  // [num_edges] of each slot of the transpose
  const HeadPlace& place;
  Index slot_ahead[kEdgeBatch];
  Flight flight;

  __device__ __forceinline__ NumberedTargets(const T* features, const Acc* by_slot, const Index* slots_of_edges,
                                             const HeadPlace& at)
      : rows{features + at.offset, uint32_t(at.features * sizeof(T))},
        numbers(by_slot),
        slots(slots_of_edges),
        place(at) {}
  __device__ __forceinline__ void start(Index at, Index begin, Index end) {
    load_batch(slots, at, begin, end, slot_ahead);
  }
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index at, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
    flight.begin(batch.packets);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (!inside<kWhole>(Index(at + u), begin, end)) continue;
      flight.request(batch.packets, u, rows.row(ids[u]));
      batch.number[u] = __ldcg(numbers + place.score(slot_ahead[u]));
      if constexpr (kKeepsSlots) batch.slot[u] = slot_ahead[u];
    }
    load_batch(slots, Index(at + kEdgeBatch), begin, end, slot_ahead);
  }
};

// The rows of dO, weighed.
template <typename T, int kBytes, typename Index>
struct GradsOfSource : NumberedTargets<T, kBytes, Index, false> {
  using Base = NumberedTargets<T, kBytes, Index, false>;
  using Vector = Packet<T, kBytes>;
  using Base::Base;

  template <typename Cursor>
  __device__ __forceinline__ void feed(const typename Base::Batch& batch, int u, Index, Cursor& cursor) const {
    acc_t<T> grad[Vector::kSize];
    Vector::unpack(Base::Flight::get(batch.packets, u), grad);
#pragma unroll
    for (int i = 0; i < Vector::kSize; ++i) cursor.reducer.state.value[i] += batch.number[u] * grad[i];
  }
};

// The targets' rows, for the gradient of the key.
template <typename T, int kBytes, typename Index, typename Args>
struct TargetsOfSource : NumberedTargets<T, kBytes, Index, Args::Family::kEdgeFeatures> {
  static constexpr bool kEdges = Args::Family::kEdgeFeatures;
  using Base = NumberedTargets<T, kBytes, Index, kEdges>;
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;

  const Args& args;
  ConstantPacket<typename Args::Family, kSize, Acc> constant_packet;

  __device__ __forceinline__ TargetsOfSource(const Args& all, const HeadPlace& at)
      : Base(all.targets, all.ds, all.slots, at), args(all), constant_packet(all.constant, at) {}
  template <typename Cursor>
  __device__ __forceinline__ void feed(const typename Base::Batch& batch, int u, Index, Cursor& cursor) const {
    Acc target[kSize];
    Vector::unpack(Base::Flight::get(batch.packets, u), target);
    add(batch.number[u], target, cursor);
  }
  template <typename Cursor>
    requires kEdges
  __device__ __forceinline__ void feed_segment(const typename Base::Batch& batch, Index, int from, int to,
                                               Cursor& cursor) const {
    Acc target[kEdgeBatch][kSize];
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) Vector::unpack(Base::Flight::get(batch.packets, u), target[u]);
    args.projection.add(batch.slot, from, to, this->place.features, this->place.offset, target);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u >= from && u < to) add(batch.number[u], target[u], cursor);
    }
  }

 private:
  template <typename Cursor>
  __device__ __forceinline__ void add(Acc ds, const Acc (&target)[kSize], Cursor& cursor) const {
    Acc key[kSize], constant[kSize];
    Vector::unpack(cursor.reducer.of_row, key);
    constant_packet.get(constant);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      cursor.reducer.state.value[i] += ds * args.family.of_source(key[i], target[i], constant[i]);
    }
  }
};

// The sums of w dO: of separate values they are the result, of others what KeyGradient begins with.
template <typename T, int kBytes, typename Args>
using ValueGradient = PacketSum<T, kBytes, std::conditional_t<Args::Family::kSeparateValues, T, acc_t<T>>>;

template <typename T, int kBytes, typename Args>
__device__ __forceinline__ ValueGradient<T, kBytes, Args> value_gradient(const Args& args, const HeadPlace& place) {
  if constexpr (Args::Family::kSeparateValues) {
    return {{args.d_values, args.value_partials}, place};
  } else {
    return {{args.value_sums, args.value_partials}, place};
  }
}

// The gradient of one key, with its packet.
template <typename T, int kBytes, typename Args>
struct KeyGradient : PacketSum<T, kBytes> {
  using Base = PacketSum<T, kBytes>;
  using Vector = Packet<T, kBytes>;
  const Args& args;
  typename Vector::Raw of_row, of_next;

  __device__ __forceinline__ KeyGradient(const Args& all, const HeadPlace& place)
      : Base({all.d_keys, all.key_partials}, place), args(all) {}
  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    of_next = Vector::load(args.keys + this->place.row(row));
  }
  __device__ __forceinline__ void enter() { of_row = of_next; }
  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index) const {
    if (!this->place.active) return;
    acc_t<T> values[Base::kSize] = {};
    if constexpr (!Args::Family::kSeparateValues) {
      Span<acc_t<T>, Base::kSize>::load(args.value_sums + this->place.row(row), values);
    }
#pragma unroll
    for (int i = 0; i < Base::kSize; ++i) values[i] += this->state.value[i];
    this->store(row, values);
  }
};

// Called by every thread, once the weights are visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void walk_grads(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  const Group group(args.reverse_tiles.lanes);
  for_each_span(args.reverse, args.reverse_tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.reverse_tiles, group, int(tile), Packet<T, kBytes>::kSize);
    reduce_span(args.reverse, k, GradsOfSource<T, kBytes, Index>(args.grad, args.weights, args.slots, place),
                value_gradient<T, kBytes, Args>(args, place));
  });
}

// Called by every thread, once ds, and what walk_grads left of whole rows, is visible.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void walk_targets(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  const Group group(args.reverse_tiles.lanes);
  for_each_span(args.reverse, args.reverse_tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.reverse_tiles, group, int(tile), Packet<T, kBytes>::kSize);
    reduce_span(args.reverse, k, TargetsOfSource<T, kBytes, Index, Args>(args, place),
                KeyGradient<T, kBytes, Args>(args, place));
  });
}

// Called by every thread, once the partials of the walk are visible. `make(place)` gives its reducer.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong, typename Make>
__device__ __forceinline__ void combine_sources(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args,
                                                Make make) {
  const Group group(args.reverse_tiles.lanes);
  combine_rows(args.reverse, args.reverse_tiles.tiles, group, [&](int64_t tile) {
    return make(HeadPlace(args.reverse_tiles, group, int(tile), Packet<T, kBytes>::kSize));
  });
}

}  // namespace gnnagg
