// Edge features e in R^D of gatv2_attention, and the matrix W that projects them onto the features of a target.
//
// They are given packed (gatv2_edges.h): by slot, so that no kernel goes through perm for them, and with D' features, D rounded up to
// kEdgeDims by zeros, so that those travel kEdgeDims at a time in whole loads. All lanes of a group read them alike.
#pragma once

#include "cuda/heads.cuh"

namespace gnnagg {

// Features of an edge at once: one 16-byte load of floats, and a gradient of W of 4 packets in registers.
constexpr int kEdgeDims = 4;

// kSize consecutive elements of what no phase of this launch writes, as wide as they allow: the address is a multiple of the load.
template <int kSize, typename U>
__device__ __forceinline__ void load_cached(const U* address, acc_t<U> (&values)[kSize]) {
  constexpr int kBytes = kSize * int(sizeof(U)) < kLaneBytes ? kSize * int(sizeof(U)) : kLaneBytes;
  using Vector = Packet<U, kBytes>;
  static_assert(kSize % Vector::kSize == 0, "elements are whole loads");
#pragma unroll
  for (int part = 0; part < kSize; part += Vector::kSize) {
    acc_t<U> loaded[Vector::kSize];
    Vector::unpack(Vector::load(address + part), loaded);
#pragma unroll
    for (int i = 0; i < Vector::kSize; ++i) values[part + i] = loaded[i];
  }
}

// W e of every edge.
template <typename T>
struct EdgeProjection {
  using Acc = acc_t<T>;
  const T* __restrict__ attr;      // [num_edges, D'] by slot
  const Acc* __restrict__ weight;  // [D', H * C], W transposed
  int dims;                        // D'

  // Features [d, d + kEdgeDims) of edges [from, to) of a batch; 0 of the others.
  template <typename Index>
  __device__ __forceinline__ void load(const Index (&slots)[kEdgeBatch], int from, int to, int d,
                                       Acc (&values)[kEdgeBatch][kEdgeDims]) const {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u >= from && u < to) {
        load_cached(attr + int64_t(slots[u]) * dims + d, values[u]);
      } else {
#pragma unroll
        for (int j = 0; j < kEdgeDims; ++j) values[u][j] = Acc(0);
      }
    }
  }
  // W of feature d of an edge, at [offset, offset + kSize) of a row of `width` features.
  template <int kSize>
  __device__ __forceinline__ void column(int d, int width, int offset, Acc (&values)[kSize]) const {
    load_cached(weight + int64_t(d) * width + offset, values);
  }
  // Adds W e at [offset, offset + kSize) of a row to the sums of edges [from, to) of a batch.
  template <int kSize, typename Index>
  __device__ __forceinline__ void add(const Index (&slots)[kEdgeBatch], int from, int to, int width, int offset,
                                      Acc (&sums)[kEdgeBatch][kSize]) const {
#pragma unroll 1
    for (int d = 0; d < dims; d += kEdgeDims) {
      Acc values[kEdgeBatch][kEdgeDims];
      load(slots, from, to, d, values);
#pragma unroll
      for (int j = 0; j < kEdgeDims; ++j) {
        Acc of_packet[kSize];
        column(d + j, width, offset, of_packet);
#pragma unroll
        for (int u = 0; u < kEdgeBatch; ++u) {
#pragma unroll
          for (int i = 0; i < kSize; ++i) sums[u][i] += values[u][j] * of_packet[i];
        }
      }
    }
  }
};

// The slots of the batch at `slot` of the CSR.
template <typename Index>
__device__ __forceinline__ void batch_slots(Index slot, Index (&slots)[kEdgeBatch]) {
#pragma unroll
  for (int u = 0; u < kEdgeBatch; ++u) slots[u] = slot + u;
}

template <typename Acc>
struct BatchTerms {
  Acc of_edge[kEdgeBatch];
};

// As long_terms, where every edge adds W e to the row's features. A function of its own, as few heads are so long and its registers
// would be taken from all others. `head` is the head's first feature, `ids` and `slot` are of the batch's first edge.
template <typename T, int kBytes, typename Index, typename Form>
__device__ __noinline__ BatchTerms<acc_t<T>> long_edge_terms(const T* features, const Index* ids, Index slot, int from,
                                                             int to, const T* row, const acc_t<T>* constant, Form form,
                                                             EdgeProjection<T> projection, int width, int head,
                                                             int channels) {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  BatchTerms<Acc> terms{};
  Index slots[kEdgeBatch];
  batch_slots(slot, slots);
#pragma unroll 1
  for (int c = (threadIdx.x & (kMaxTileLanes - 1)) * Vector::kSize; c < channels; c += kMaxTileLanes * Vector::kSize) {
    Acc of_row[kEdgeBatch][Vector::kSize];
    const auto raw = Vector::load(row + head + c);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) Vector::unpack(raw, of_row[u]);
    projection.add(slots, from, to, width, head + c, of_row);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u < from || u >= to) continue;
      Acc of_edge[Vector::kSize];
      Vector::unpack(Vector::load(features + int64_t(__ldg(ids + u)) * width + head + c), of_edge);
#pragma unroll
      for (int i = 0; i < Vector::kSize; ++i) {
        terms.of_edge[u] += form.term(of_edge[i], of_row[u][i], __ldg(constant + head + c + i));
      }
    }
  }
  return terms;
}

}  // namespace gnnagg
