// The reducers of gradients, with the heads laid out as heads.cuh says: a sum of packets, and a row's packet that is only read.
#pragma once

#include <type_traits>

#include "cuda/heads.cuh"

namespace gnnagg {

// A sum of packets, one row at a time, stored in the type of the features or, as an intermediate result, in that of the sums.
template <typename T, int kBytes, typename Out = T>
struct PacketSum {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  struct Target {
    Out* out;       // [num_rows, H * C]
    Acc* partials;  // [2 num_spans, H * C]
  };
  struct State {
    Acc value[kSize];
  };
  Target target;
  HeadPlace place;
  State state;

  __device__ __forceinline__ PacketSum(const Target& to, const HeadPlace& at) : target(to), place(at) {}
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] = Acc(0);
  }
  __device__ __forceinline__ void merge(const State& other) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] += other.value[i];
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    if (place.active) Span<Acc, kSize>::store(target.partials + place.row(slot), state.value);
  }
  template <typename Index>
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    State other;
    Span<Acc, kSize>::load(target.partials + place.row(slot), other.value);
    merge(other);
  }
  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index) const {
    if (place.active) store(row, state.value);
  }

 protected:
  template <typename Index>
  __device__ __forceinline__ void store(Index row, const Acc (&values)[kSize]) const {
    if constexpr (std::is_same_v<Out, T>) {
      Vector::store(target.out + place.row(row), values);
    } else {
      Span<Acc, kSize>::store(target.out + place.row(row), values);
    }
  }
};

// Keeps a packet of its row and sums nothing.
template <typename T, int kBytes>
struct RowPacket {
  using Vector = Packet<T, kBytes>;
  const T* __restrict__ rows;  // [num_rows, H * C]
  const HeadPlace& place;
  typename Vector::Raw of_row, of_next;

  __device__ __forceinline__ RowPacket(const T* from, const HeadPlace& at) : rows(from), place(at) {}
  template <typename Index>
  __device__ __forceinline__ void ahead(Index row) {
    of_next = Vector::load(rows + place.row(row));
  }
  __device__ __forceinline__ void enter() { of_row = of_next; }
  __device__ __forceinline__ void reset() {}
  __device__ __forceinline__ void store_partial(int64_t) const {}
  template <typename Index>
  __device__ __forceinline__ void store_row(Index, Index) const {}
};

}  // namespace gnnagg
