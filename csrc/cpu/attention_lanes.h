// How the scores of many (edge, head) pairs lie side by side in vectors. Included per level.
//
// Terms. A head block is up to kMostHeads heads that are treated together. A chunk is up to `slots` slots of one row;
// its scores lie in a buffer, slot k's at [k * stride, k * stride + heads). The stride is a power of two, or a
// multiple of kGroup, so that a lane of a group of kGroup belongs to the same head in every turn of `span` lanes. Sums
// over the slots are kept lane by lane, kGroup of them whatever the width of a vector, and folded at the end: the same
// bits at every level.
#pragma once

#include <type_traits>

#include "common/softmax.h"
#include "cpu/attention_exp.h"
#include "cpu/blocks.h"
#include "cpu/index_array.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kGroup = 16;
constexpr int kMostHeads = 64;
constexpr int kBufferLanes = 1024;
constexpr int kMostSlots = 128;
static_assert(kBufferLanes % kMostHeads == 0 && kMostHeads % kGroup == 0);

template <typename Acc>
constexpr int kLanesOf = kVectorBytes / int(sizeof(Acc));
template <typename Acc>
constexpr int kGroupVectors = kGroup / kLanesOf<Acc>;

// Scores of a chunk, with a group to spare: whole vectors may be stored at the last slot.
template <typename Acc>
struct LaneBuffer {
  alignas(kVectorBytes) Acc lane[kBufferLanes + kGroup];
};
// One value per head, repeated over the lanes of a turn.
template <typename Acc>
struct HeadBuffer {
  alignas(kVectorBytes) Acc lane[kMostHeads + kGroup] = {};
};

struct HeadLanes {
  int heads;   // of this block
  int stride;  // lanes of one slot
  int span;    // lanes of one turn
  int slots;   // of the longest chunk

  explicit HeadLanes(int64_t count) : heads(int(count)) {
    stride = heads < kGroup ? int(next_power_of_two(heads)) : ceil_div(heads, kGroup) * kGroup;
    span = stride < kGroup ? kGroup : stride;
    slots = kBufferLanes / stride < kMostSlots ? kBufferLanes / stride : kMostSlots;
  }

  // Lanes of whole turns that `count` slots lie in. What lies behind the last slot belongs to none.
  GNNAGG_INLINE int lanes(int count) const { return (count * stride + span - 1) / span * span; }
};

template <typename Acc>
GNNAGG_INLINE Lanes<Acc> lane_numbers() {
  Lanes<Acc> lane;
  for (int i = 0; i < kLanesOf<Acc>; ++i) lane[i] = i;
  return lane;
}

// Lane i of the result is lane index[i] of `value`.
template <typename Acc>
GNNAGG_INLINE Vector<Acc> permute(Vector<Acc> value, Lanes<Acc> index) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Acc) == sizeof(float)) {
    return _mm512_permutexvar_ps(load_bits<__m512i>(&index), value);
  } else {
    return _mm512_permutexvar_pd(load_bits<__m512i>(&index), value);
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(Acc) == sizeof(float)) {
    return _mm256_permutevar8x32_ps(value, load_bits<__m256i>(&index));
  } else {
    const Lanes<Acc> halves = (index << 1) | ((index << 33) + (LaneInt<Acc>(1) << 32));
    const __m256 moved = _mm256_permutevar8x32_ps(load_bits<__m256>(&value), load_bits<__m256i>(&halves));
    return load_bits<Vector<Acc>>(&moved);
  }
#else
  Vector<Acc> result;
  for (int i = 0; i < kLanesOf<Acc>; ++i) result[i] = value[index[i]];
  return result;
#endif
}

template <typename Acc>
GNNAGG_INLINE Vector<Acc> leaky_relu_lanes(Vector<Acc> value, Vector<Acc> negative_slope) {
  return value > Vector<Acc>{} ? value : product(value, negative_slope);
}

// a * b, rounded, as product().
template <typename Acc>
GNNAGG_INLINE Acc rounded_product(Acc a, Acc b) {
  Acc result = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(result));
#elif defined(__aarch64__)
  asm("" : "+w"(result));
#endif
  return result;
}

// Makes every lane of value[0, span) hold the combination of all lanes of its head. Halves first, as fold_lanes.
template <typename Acc, typename Combine>
GNNAGG_INLINE void fold_heads(const HeadLanes& lanes, Acc* value, const Combine& combine) {
  constexpr int kVectors = kGroupVectors<Acc>, kLanes = kLanesOf<Acc>;
  if (lanes.stride >= kGroup) return;
  Vector<Acc> held[kVectors], next[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) held[v] = load(value + v * kLanes);
  for (int half = kGroup / 2; half >= lanes.stride; half /= 2) {
    const Lanes<Acc> partner = lane_numbers<Acc>() ^ LaneInt<Acc>(half < kLanes ? half : 0);
    const int other = half / kLanes;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      next[v] = combine(held[v], half < kLanes ? permute<Acc>(held[v], partner) : held[(v ^ other) % kVectors]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) held[v] = next[v];
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) store(value + v * kLanes, held[v]);
}

template <typename Acc>
GNNAGG_INLINE void sum_heads(const HeadLanes& lanes, Acc* value) {
  fold_heads(lanes, value, [](Vector<Acc> a, Vector<Acc> b) { return a + b; });
}

// Sets the lanes behind the last of `count` slots, up to the end of the last turn.
template <typename Acc>
GNNAGG_INLINE void fill_behind(const HeadLanes& lanes, int count, Acc* buffer, Acc value) {
  if (lanes.stride >= kGroup) return;
#pragma GCC unroll 8
  for (int v = 0; v < kGroupVectors<Acc>; ++v) {
    store(buffer + count * lanes.stride + v * kLanesOf<Acc>, broadcast<Acc>(value));
  }
}

// A table [rows, heads] that slots read rows of.
template <typename T>
struct HeadTable {
  using Acc = Accumulate<T>;
  const T* values;        // at the head block's first head; null for a table that there is not
  int64_t row_stride;     // between rows
  uintptr_t whole_until;  // last address from which a whole vector can be read

  HeadTable(const void* table, int64_t first, int64_t stride, int64_t rows)
      : values(table ? static_cast<const T*>(table) + first : nullptr),
        row_stride(stride),
        whole_until(uintptr_t(static_cast<const T*>(table) + rows * stride) - kWidth<T> * sizeof(T)) {}

  // One row to `to`, widened. May store up to a vector's lanes more than `heads`.
  GNNAGG_INLINE void read(int64_t row, int heads, Acc* to) const {
    const T* from = values + row * row_stride;
    for (int head = 0; head < heads; head += kWidth<T>) {
      if (uintptr_t(from + head) <= whole_until) {
        store(to + head, load(from + head));
      } else {
        for (int h = head; h < heads; ++h) to[h] = widen(from[h]);
        return;
      }
    }
  }

  // The rows row[0..count) to the lanes of slots 0..count.
  GNNAGG_INLINE void gather(const HeadLanes& lanes, const int64_t* row, int count, Acc* to) const {
    if constexpr (std::is_same_v<T, Acc>) {
      // Whole rows of a size that the compiler knows: no store reaches into the next slot's lanes.
      if (lanes.heads == lanes.stride) {
        switch (lanes.stride) {
          case 1: return copy<1>(row, count, to);
          case 2: return copy<2>(row, count, to);
          case 4: return copy<4>(row, count, to);
          case 8: return copy<8>(row, count, to);
          default: break;
        }
      }
    }
    for (int k = 0; k < count; ++k) read(row[k], lanes.heads, to + k * lanes.stride);
  }

  template <int kHeads>
  GNNAGG_INLINE void copy(const int64_t* row, int count, Acc* to) const {
    for (int k = 0; k < count; ++k) std::memcpy(to + k * kHeads, values + row[k] * row_stride, kHeads * sizeof(T));
  }

  // One row repeated over the lanes of a turn; 0 without a table.
  GNNAGG_INLINE void spread(int64_t row, const HeadLanes& lanes, Acc* to) const {
    if (values) {
      read(row, lanes.heads, to);
    } else {
      for (int lane = 0; lane < lanes.stride; ++lane) to[lane] = Acc(0);
    }
    for (int lane = lanes.stride; lane < lanes.span; ++lane) to[lane] = to[lane - lanes.stride];
  }
};

// The first `count` accumulators at `from`, narrowed.
template <typename T>
GNNAGG_INLINE void write_row(T* to, const Accumulate<T>* from, int count) {
  int done = 0;
  for (; done + kWidth<T> <= count; done += kWidth<T>) store(to + done, load(from + done));
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == sizeof(float)) {
    _mm512_mask_storeu_ps(to + done, __mmask16(mask_of(count - done)), load(from + done));
    return;
  } else if constexpr (sizeof(T) == sizeof(double)) {
    _mm512_mask_storeu_pd(to + done, __mmask8(mask_of(count - done)), load(from + done));
    return;
  }
#endif
  for (; done < count; ++done) to[done] = narrow<T>(from[done]);
}

// Which head's value each feature of a vector takes, counted from the head of its first feature.
template <typename T>
class HeadSpread {
  using Acc = Accumulate<T>;

 public:
  explicit HeadSpread(int64_t channels) : channels_(channels) {
    for (int offset = 0; offset < kWidth<T> && offset < channels; ++offset) {
      for (int lane = 0; lane < kWidth<T>; ++lane) {
        narrow_[offset][lane] = channels < kWidth<T> ? (offset + lane) / LaneInt<Acc>(channels) : 0;
      }
    }
  }

  // kVectors vectors from `feature` on: heads of their first features, and lanes from there.
  template <int kVectors>
  GNNAGG_INLINE void locate(int64_t feature, int (&head)[kVectors], Lanes<Acc> (&pick)[kVectors]) const {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t at = uint32_t(feature) + uint32_t(v * kWidth<T>), offset = at % uint32_t(channels_);
      head[v] = int(at / uint32_t(channels_));
      if (channels_ < kWidth<T>) {
        pick[v] = narrow_[offset];
      } else {
        const int64_t left = channels_ - offset;
        pick[v] = -(lane_numbers<Acc>() >= LaneInt<Acc>(left < kWidth<T> ? left : kWidth<T>));
      }
    }
  }

 private:
  int64_t channels_;
  Lanes<Acc> narrow_[kWidth<T>];  // for heads of less than a vector, by the first feature's place in its head
};

// The rows that a chunk's slots read and those of the slots after it, which are requested ahead.
struct ChunkRows {
  int count = 0;
  int64_t row[kMostSlots + kPrefetchSlots];
  int64_t edge[kMostSlots];  // edge ids, where they are wanted

  GNNAGG_INLINE void fill(const IndexArray& col, int64_t begin, int64_t end, int64_t last_slot) {
    count = int(end - begin);
    const int64_t there = last_slot + 1 - begin;
    const int wanted = count + int(kPrefetchSlots), readable = there < wanted ? int(there) : wanted;
    col.read(begin, readable, row);
    for (int k = readable; k < wanted; ++k) row[k] = row[readable - 1];
  }

  GNNAGG_INLINE void identify(const IndexArray& perm, int64_t begin) {
    if (perm) {
      perm.read(begin, count, edge);
    } else {
      for (int k = 0; k < count; ++k) edge[k] = begin + k;
    }
  }
};

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
