// Where the heads of a feature row lie among the lanes of a group. Attention needs a group to hold whole heads, because their
// products are added across lanes.
#pragma once

#include "cuda/group.cuh"
#include "cuda/vector.cuh"

namespace gnnagg {

__device__ __forceinline__ float greater(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double greater(double a, double b) { return fmax(a, b); }

// A row [H, C] cut into tiles of whole heads. A head takes `packets` lanes; where that is more than a warp has, one head takes
// `chunks` tiles, and its products are gathered from all of them.
struct HeadTiles {
  int features;       // H * C
  int heads;          // H
  int channels;       // C
  int lanes;          // lanes of a group, a power of two
  int packets;        // lanes that one head takes, at most a warp
  int heads_in_tile;  // whole heads of a tile
  int chunks;         // tiles that one head takes: 1, or more where heads_in_tile is 1
  int tiles;          // tiles of a row

  // `elements` of a lane divide `channels`; features fit an int.
  static HeadTiles of(int heads, int channels, int elements, int most_lanes) {
    const int packets = channels / elements;
    if (packets > kMaxTileLanes) {
      const int chunks = ceil_div(packets, kMaxTileLanes);
      return {heads * channels, heads, channels, kMaxTileLanes, kMaxTileLanes, 1, chunks, heads * chunks};
    }
    const int fit = (packets > most_lanes ? kMaxTileLanes : most_lanes) / packets;
    const int whole = fit < heads ? fit : heads;
    return {heads * channels, heads, channels, int(next_power_of_two(whole * packets)),
            packets,          whole, 1,        ceil_div(heads, whole)};
  }
};

// Where a lane of a group works in one tile. Lanes without features point at the first of the tile's head, and write nothing.
struct HeadPlace {
  int features;  // H * C
  int heads;     // H
  int head;      // this lane's
  int offset;    // its first feature in the row
  int in_head;   // which lane of its head this is
  bool active;
  bool first_chunk;  // of its head
  bool leads;        // the one lane of its head that writes what a head has one of

  __device__ __forceinline__ HeadPlace(const HeadTiles& tiles, const Group& group, int tile, int elements)
      : features(tiles.features), heads(tiles.heads) {
    const int in_tile = tiles.chunks > 1 ? 0 : group.lane / tiles.packets;
    const int first = tiles.chunks > 1 ? tile / tiles.chunks : tile * tiles.heads_in_tile;
    const int chunk = tiles.chunks > 1 ? tile % tiles.chunks : 0;
    in_head = group.lane - in_tile * tiles.packets;
    const int channel = (chunk * tiles.packets + in_head) * elements;
    active = in_tile < tiles.heads_in_tile && first + in_tile < heads && channel < tiles.channels;
    head = active ? first + in_tile : first;
    offset = head * tiles.channels + (active ? channel : 0);
    first_chunk = chunk == 0;
    leads = active && channel == 0;
  }

  __device__ __forceinline__ int64_t row(int64_t row) const { return row * int64_t(features) + offset; }
  __device__ __forceinline__ int64_t score(int64_t row) const { return row * int64_t(heads) + head; }
};

// Which edges of a batch a lane works out the scores of. The first kOwners lanes of a head share the batch among them, and so
// do the next: lane l owns edges l % kOwners, l % kOwners + kOwners, ... What an owner has found, every lane of its head can
// ask for. kOwners divides the lanes of a head, so that owners stand side by side.
template <int kOwners>
struct EdgeOwner {
  static constexpr int kOwned = kEdgeBatch / kOwners;
  static_assert(kOwned * kOwners == kEdgeBatch && (kOwners & (kOwners - 1)) == 0, "owners share a batch evenly");

  unsigned mask;  // of the group
  int lanes;      // of the group
  int own;        // this lane's first edge
  int base;       // first lane of its head

  __device__ __forceinline__ EdgeOwner(const HeadTiles& tiles, const Group& group)
      : mask(group.mask()),
        lanes(group.lanes),
        own(group.lane % kOwners),
        base(group.lane / tiles.packets * tiles.packets) {}

  __device__ __forceinline__ int edge(int o) const { return o * kOwners + own; }
  // Whether its o-th edge is one of [from, to) of the batch.
  __device__ __forceinline__ bool has(int o, int from, int to) const { return edge(o) >= from && edge(o) < to; }
  // Whether this lane, of all that own that edge, writes what a head and edge has one of.
  __device__ __forceinline__ bool writes(const HeadPlace& place, int o, int from, int to) const {
    return has(o, from, to) && place.active && place.first_chunk && place.in_head < kOwners;
  }
  // The value of this lane's o-th edge, of a batch that every lane has.
  template <typename Value>
  __device__ __forceinline__ Value pick(const Value (&batch)[kEdgeBatch], int o) const {
    Value value = batch[o * kOwners];
#pragma unroll
    for (int i = 1; i < kOwners; ++i) value = own == i ? batch[o * kOwners + i] : value;
    return value;
  }
  // What the owner of edge u has in `mine`.
  template <typename Value>
  __device__ __forceinline__ Value of_edge(const Value (&mine)[kOwned], int u) const {
    if constexpr (kOwners == 1) return mine[u];
    return __shfl_sync(mask, mine[u / kOwners], base + u % kOwners, lanes);
  }
  template <typename Acc>
  __device__ __forceinline__ Acc sum_of_owners(Acc value) const {
#pragma unroll
    for (int step = 1; step < kOwners; step *= 2) value += __shfl_xor_sync(mask, value, step, lanes);
    return value;
  }
  template <typename Acc>
  __device__ __forceinline__ Acc greatest_of_owners(Acc value) const {
#pragma unroll
    for (int step = 1; step < kOwners; step *= 2) value = greater(value, __shfl_xor_sync(mask, value, step, lanes));
    return value;
  }

  // Sums over the lanes of a head of what each has for every edge of the batch; a lane receives those of its own edges. Lanes
  // without features pass 0. Where a head takes a power of two of lanes, owners exchange halves, so that one edge costs fewer
  // shuffles than lanes have bits. The order of the additions depends on the tiles alone.
  template <typename Acc>
  __device__ __forceinline__ void sum_of_head(Acc (&values)[kEdgeBatch], const HeadTiles& tiles,
                                              Acc (&mine)[kOwned]) const {
    const int packets = tiles.packets;
    if ((packets & (packets - 1)) == 0) {
      if constexpr (kOwners >= 2) exchange<1>(values);
      if constexpr (kOwners >= 4) exchange<2>(values);
#pragma unroll
      for (int o = 0; o < kOwned; ++o) mine[o] = values[o * kOwners];
      for (int step = kOwners; step < packets; step *= 2) {
#pragma unroll
        for (int o = 0; o < kOwned; ++o) mine[o] += __shfl_xor_sync(mask, mine[o], step, lanes);
      }
      return;
    }
    const int in_head = (int(threadIdx.x) & (lanes - 1)) - base;
    for (int step = 1; step < packets; step *= 2) {
#pragma unroll
      for (int u = 0; u < kEdgeBatch; ++u) {
        const Acc other = __shfl_down_sync(mask, values[u], step, lanes);
        if (in_head + step < packets) values[u] += other;
      }
    }
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) values[u] = __shfl_sync(mask, values[u], base, lanes);
#pragma unroll
    for (int o = 0; o < kOwned; ++o) mine[o] = pick(values, o);
  }

 private:
  // Lanes that differ in bit kBit swap: each keeps, in the place of the even one, the sum of the edge of a pair that it owns.
  template <int kBit, typename Acc>
  __device__ __forceinline__ void exchange(Acc (&values)[kEdgeBatch]) const {
    const bool odd = own & kBit;
#pragma unroll
    for (int u = 0; u < kEdgeBatch; u += 2 * kBit) {
      const Acc keep = odd ? values[u + kBit] : values[u], give = odd ? values[u] : values[u + kBit];
      values[u] = keep + __shfl_xor_sync(mask, give, kBit, lanes);
    }
  }
};

// A product of two packets, in the form of score_family.cuh.
template <typename Acc>
struct Product {
  __device__ __forceinline__ Acc term(Acc a, Acc b, Acc) const { return a * b; }
};

// This lane's share of the sums of `form.term(edge's feature, row's feature, constant's)` over a head, for edges [from, to) of a
// batch and heads of more than one chunk: all of their chunks are read from memory.
template <typename T, int kBytes, typename Index, typename Form>
__device__ __forceinline__ void long_terms(const T* features, const Index* ids, int from, int to, const T* row,
                                           const acc_t<T>* constant, const Form& form, const HeadPlace& place,
                                           const HeadTiles& tiles, acc_t<T> (&terms)[kEdgeBatch]) {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  const int64_t head = int64_t(place.head) * tiles.channels;
#pragma unroll
  for (int u = 0; u < kEdgeBatch; ++u) terms[u] = Acc(0);
  for (int c = (threadIdx.x & (kMaxTileLanes - 1)) * Vector::kSize; c < tiles.channels;
       c += kMaxTileLanes * Vector::kSize) {
    Acc of_row[Vector::kSize];
    Vector::unpack(Vector::load(row + head + c), of_row);
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u < from || u >= to) continue;
      Acc of_edge[Vector::kSize];
      Vector::unpack(Vector::load(features + int64_t(__ldg(ids + u)) * place.features + head + c), of_edge);
#pragma unroll
      for (int i = 0; i < Vector::kSize; ++i) {
        terms[u] += form.term(of_edge[i], of_row[i], constant ? __ldg(constant + head + c + i) : Acc(0));
      }
    }
  }
}

}  // namespace gnnagg
