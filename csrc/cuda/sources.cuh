// Sources: how the feature rows of a batch of edges are read, and with which factor they enter the reducer.
#pragma once

#include "cuda/span_walk.cuh"

namespace gnnagg {

// Feature rows as they are. kFresh: written earlier in the same launch, so read past the L1 cache.
template <typename T, int kBytes, typename Index, bool kFresh = false>
struct PlainRows {
  using Vector = Packet<T, kBytes>;
  struct Batch {
    typename Vector::Raw raw[kEdgeBatch];
    Index ids[kEdgeBatch];
  };

  const T* __restrict__ x;  // this lane's packet of source 0
  uint32_t row_bytes;       // F * sizeof(T)

  __device__ __forceinline__ const T* row(Index id) const {
    const char* base = reinterpret_cast<const char*>(x);
    if constexpr (sizeof(Index) == 4) {
      return reinterpret_cast<const T*>(base + uint64_t(uint32_t(id)) * row_bytes);  // one multiply-add
    } else {
      return reinterpret_cast<const T*>(base + id * int64_t(row_bytes));
    }
  }
  __device__ __forceinline__ typename Vector::Raw load(Index id) const {
    return kFresh ? Vector::load_fresh(row(id)) : Vector::load(row(id));
  }
  __device__ __forceinline__ void start(Index, Index, Index) {}
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      batch.ids[u] = ids[u];
      if (inside<kWhole>(Index(slot + u), begin, end)) batch.raw[u] = load(ids[u]);
    }
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed(const Batch& batch, int u, Index slot, Cursor& cursor) const {
    acc_t<T> values[Vector::kSize];
    Vector::unpack(batch.raw[u], values);
    cursor.reducer.add(values, slot, batch.ids[u]);
  }
};

// Factors of edges and sources; any pointer may be null.
template <typename Acc, typename Index>
struct EdgeFactors {
  const Index* __restrict__ perm;     // [num_edges] edge id of each slot; null when slots are in edge order
  const Acc* __restrict__ weight;     // [num_edges, heads]
  const Acc* __restrict__ src_scale;  // [num_src]
  int64_t heads;
};

// Feature rows times one factor per edge, or per edge and head; the packet of a lane must lie within one head. Edge ids are
// read two batches ahead and weights one, so that neither chain of loads holds up the feature rows.
template <typename T, int kBytes, typename Index, bool kFresh = false>
struct ScaledRows {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  struct Batch {
    typename Vector::Raw raw[kEdgeBatch];
    Acc factor[kEdgeBatch];
  };

  PlainRows<T, kBytes, Index, kFresh> rows;
  EdgeFactors<Acc, Index> factors;
  int64_t head;  // this lane's
  Index edges[kEdgeBatch];
  Acc weights[kEdgeBatch];

  __device__ __forceinline__ void read_edges(Index slot, Index begin, Index end) {
    if (factors.perm) {
      load_batch(factors.perm, slot, begin, end, edges);
    } else {
#pragma unroll
      for (int u = 0; u < kEdgeBatch; ++u) edges[u] = slot + u;
    }
  }
  __device__ __forceinline__ void read_weights(Index slot, Index begin, Index end) {
    if (factors.weight && !factors.perm && factors.heads == 1) {
      load_batch(factors.weight, slot, begin, end, weights);
      return;
    }
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      const bool inside = slot + u >= begin && slot + u < end;
      weights[u] = inside && factors.weight ? __ldg(factors.weight + int64_t(edges[u]) * factors.heads + head) : Acc(1);
    }
  }
  __device__ __forceinline__ void start(Index slot, Index begin, Index end) {
    read_edges(slot, begin, end);
    read_weights(slot, begin, end);
    read_edges(slot + kEdgeBatch, begin, end);
  }
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&ids)[kEdgeBatch]) {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      batch.factor[u] = weights[u];
      if (!inside<kWhole>(Index(slot + u), begin, end)) continue;
      batch.raw[u] = rows.load(ids[u]);
      if (factors.src_scale) batch.factor[u] *= __ldg(factors.src_scale + ids[u]);
    }
    read_weights(slot + kEdgeBatch, begin, end);
    read_edges(slot + 2 * kEdgeBatch, begin, end);
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed(const Batch& batch, int u, Index slot, Cursor& cursor) const {
    Acc values[Vector::kSize];
    Vector::unpack(batch.raw[u], values);
#pragma unroll
    for (int i = 0; i < Vector::kSize; ++i) values[i] *= batch.factor[u];
    cursor.reducer.add(values, slot, slot);  // sums do not ask who the source is
  }
};

}  // namespace gnnagg
