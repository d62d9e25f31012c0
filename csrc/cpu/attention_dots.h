// Dot products of a chunk's gathered rows with the row that the chunk belongs to, head by head, in the same pass that
// adds the gathered rows up. Included per level.
//
// Features are taken in groups of kGroup, up to kMostGroups of them in registers. Heads of 1, 2, 4 or 8 channels share
// groups: their sums are folded by halves, several vectors into one. Other heads are walked one at a time. Sums of a
// head are kept in kGroup lanes and folded by halves, so that every level gives the same bits.
#pragma once

#include <utility>

#include "cpu/attention_lanes.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kMostGroups = 4;

// --- lower and upper halves of the heads in two vectors -------------------------------------------------------------

// Lanes of a followed by b that hold the lower (kUpper: upper) halves of groups of kChannels.
template <int kChannels, bool kUpper>
constexpr int half_lane(int i) {
  constexpr int kHalf = kChannels / 2;
  return i / kHalf * kChannels + i % kHalf + (kUpper ? kHalf : 0);
}

template <int kChannels, bool kUpper, typename Acc, int... kLane>
GNNAGG_INLINE Vector<Acc> halves_of(Vector<Acc> a, Vector<Acc> b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, half_lane<kChannels, kUpper>(kLane)...);
}

template <int kChannels, typename Acc>
GNNAGG_INLINE Vector<Acc> add_halves(Vector<Acc> a, Vector<Acc> b) {
  constexpr auto kLanes = std::make_integer_sequence<int, kLanesOf<Acc>>{};
  return halves_of<kChannels, false, Acc>(a, b, kLanes) + halves_of<kChannels, true, Acc>(a, b, kLanes);
}

// Sums of groups of kChannels lanes, in order, to `to`; kVectors vectors hold kVectors * lanes / kChannels of them.
template <int kChannels, int kVectors, int kSums, typename Acc>
GNNAGG_INLINE void store_sums(const Vector<Acc> (&value)[kVectors], Acc* to) {
  constexpr int kLanes = kLanesOf<Acc>;
  if constexpr (kChannels == 1) {
#pragma GCC unroll 16
    for (int v = 0; v < kSums / kLanes; ++v) store(to + v * kLanes, value[v]);
    if constexpr (kSums % kLanes != 0) {
      std::memcpy(to + kSums / kLanes * kLanes, &value[kSums / kLanes], kSums % kLanes * sizeof(Acc));
    }
  } else {
    constexpr int kNext = kVectors > 1 ? kVectors / 2 : 1;
    Vector<Acc> folded[kNext];
#pragma GCC unroll 16
    for (int v = 0; v < kNext; ++v) {
      if constexpr (kChannels > kLanes) {
        constexpr int kHalf = kChannels / kLanes / 2;  // a head of several vectors
        const int first = v / kHalf * 2 * kHalf + v % kHalf;
        folded[v] = value[first] + value[first + kHalf];
      } else {
        folded[v] = add_halves<kChannels, Acc>(value[2 * v < kVectors ? 2 * v : 0],
                                               value[2 * v + 1 < kVectors ? 2 * v + 1 : 0]);
      }
    }
    store_sums<kChannels / 2, kNext, kSums, Acc>(folded, to);
  }
}

// --- one block of features -------------------------------------------------------------------------------------------

// What a block adds up and multiplies with; all pointers stand at its first feature.
template <typename T>
struct DotBlock {
  using Acc = Accumulate<T>;
  const T* gathered;      // + rows.row[k] * width
  const T* gathered_end;  // end of the whole table
  const T* mine;          // the chunk's own row
  const T* mine_end;      // end of its whole table
  int64_t width;
  const ChunkRows& rows;
  const Acc* weight;  // at the block's first head, stride `stride`
  Acc* dot;           // likewise
  int stride;
  bool adds;           // to dots of earlier blocks of the head
  const Acc* earlier;  // sums of earlier chunks; null for none
  Acc* sums;           // sums so far; null when finished
  T* out;              // finished sums
};

// Vector v of a block of `count` features; 0 behind them.
template <typename T>
GNNAGG_INLINE Vector<Accumulate<T>> load_part(const T* from, int v, int count, const Tail<T>& tail) {
  const int left = count - v * kWidth<T>;
  if (left >= kWidth<T>) return load(from + v * kWidth<T>);
  if (left <= 0) return Vector<Accumulate<T>>{};
  return first_lanes<Accumulate<T>>(load_tail(from + v * kWidth<T>, tail), left);
}

template <typename T>
GNNAGG_INLINE void store_part(T* to, int v, int count, Vector<Accumulate<T>> value) {
  const int left = count - v * kWidth<T>;
  if (left > 0) store_count<T>(to + v * kWidth<T>, value, left < kWidth<T> ? left : kWidth<T>);
}

// sums[f] += weight[k, head(f)] * gathered[k, f] and dot[k, h] = sum over f of gathered[k, f] * mine[f], for kGroups
// groups of features (`count` of them when kPartial). kChannels: of every head; 0 when the block lies within one head.
template <int kChannels, int kGroups, bool kPartial, typename T>
GNNAGG_INLINE void add_and_dot(const DotBlock<T>& block, int count) {
  using Acc = Accumulate<T>;
  constexpr int kVectors = kGroups * kGroupVectors<Acc>, kLanes = kLanesOf<Acc>;
  const Tail<T> tail(kPartial && count % kLanes ? count % kLanes : kLanes, block.gathered_end);
  const Tail<T> mine_tail(tail.count, block.mine_end);
  const int features = kPartial ? count : kGroups * kGroup;
  Lanes<Acc> pick = {};
  if constexpr (kChannels > 0) {
    for (int i = 0; i < kLanes; ++i) pick[i] = i / kChannels;
  }
  Vector<Acc> mine[kVectors], sum[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    mine[v] = load_part(block.mine, v, features, mine_tail);
    sum[v] = Vector<Acc>{};
    if (block.earlier) {
      const int left = features - v * kLanes;
      if (left > 0) sum[v] = load_count(block.earlier + v * kLanes, left < kLanes ? left : kLanes);
    }
  }
  const Acc* weight = block.weight;
  Acc* dot = block.dot;
  for (int k = 0; k < block.rows.count; ++k, weight += block.stride, dot += block.stride) {
    prefetch<kGroups * kGroup * int64_t(sizeof(T))>(block.gathered + block.rows.row[k + kPrefetchSlots] * block.width);
    const T* gathered = block.gathered + block.rows.row[k] * block.width;
    Vector<Acc> value[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      value[v] = kPartial ? load_part(gathered, v, features, tail) : load(gathered + v * kLanes);
    }
    if constexpr (kChannels > 0) {
      Vector<Acc> term[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const Vector<Acc> factor = permute<Acc>(load(weight + v * kLanes / kChannels), pick);
        sum[v] += product(value[v], factor);
        term[v] = product(value[v], mine[v]);
      }
      if constexpr (kPartial) {
        Acc sums[kGroup / kChannels];
        store_sums<kChannels, kVectors, kGroup / kChannels, Acc>(term, sums);
        for (int h = 0; h < count / kChannels; ++h) dot[h] = sums[h];
      } else {
        store_sums<kChannels, kVectors, kGroups * kGroup / kChannels, Acc>(term, dot);
      }
    } else {
      const Vector<Acc> factor = broadcast<Acc>(weight[0]);
      Vector<Acc> lane_sum[kGroupVectors<Acc>];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[v] += product(value[v], factor);
        const Vector<Acc> term = product(value[v], mine[v]);
        if (v < kGroupVectors<Acc>) {
          lane_sum[v] = term;
        } else {
          lane_sum[v % kGroupVectors<Acc>] += term;
        }
      }
#pragma GCC unroll 8
      for (int half = kGroupVectors<Acc> / 2; half > 0; half /= 2) {
        for (int v = 0; v < half; ++v) lane_sum[v] += lane_sum[v + half];
      }
      const Acc total = fold_lanes(lane_sum[0]);
      dot[0] = block.adds ? dot[0] + total : total;
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    if (block.sums) {
      store_part<Acc>(block.sums, v, features, sum[v]);
    } else {
      store_part<T>(block.out, v, features, sum[v]);
    }
  }
}

// The features [first, last) from block's first on, in steps of groups; `block` is moved along.
template <int kChannels, typename T>
GNNAGG_INLINE void add_and_dot_all(DotBlock<T> block, int64_t features) {
  constexpr int kInBlock = kMostGroups * kGroup;
  while (features > 0) {
    int64_t step;
    if (features >= kInBlock) {
      step = kInBlock;
      add_and_dot<kChannels, kMostGroups, false>(block, kInBlock);
    } else if (features >= kGroup) {
      step = kGroup;
      add_and_dot<kChannels, 1, false>(block, kGroup);
    } else {
      step = features;
      add_and_dot<kChannels, 1, true>(block, int(features));
    }
    features -= step;
    block.gathered += step;
    block.mine += step;
    if (block.earlier) block.earlier += step;
    if (block.sums) block.sums += step;
    if (block.out) block.out += step;
    if constexpr (kChannels > 0) {
      block.weight += step / kChannels;
      block.dot += step / kChannels;
    } else {
      block.adds = true;
    }
  }
}

// All heads of a head block, of `channels` each.
template <typename T>
__attribute__((noinline)) void add_and_dot_heads(DotBlock<T> block, int heads, int64_t channels) {
  const int64_t features = heads * channels;
  switch (channels) {
    case 1: return add_and_dot_all<1>(block, features);
    case 2: return add_and_dot_all<2>(block, features);
    case 4: return add_and_dot_all<4>(block, features);
    case 8: return add_and_dot_all<8>(block, features);
    default: break;
  }
  for (int h = 0; h < heads; ++h) {
    add_and_dot_all<0>(block, channels);
    block.gathered += channels;
    block.mine += channels;
    if (block.earlier) block.earlier += channels;
    if (block.sums) block.sums += channels;
    if (block.out) block.out += channels;
    ++block.weight;
    ++block.dot;
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
