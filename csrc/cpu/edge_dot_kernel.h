// One dot product per slot and head, on the CPU. Included once per level (GNNAGG_LEVEL).
//
// What: out[perm[s], h] = sum over batches and channels c of head h of a[i, h, c] * b[col[s], h, c], for slot s of row
// i.
// How: the rows of a span are walked slot by slot; a's row stays in the first cache, b's rows are prefetched. A head's
// products are gathered in kDotLanes running sums, lane = channel modulo kDotLanes, whatever the width of a vector.
// Traffic: F * s bytes per slot for b, 4 bytes of col and perm, 4 H bytes written.
// Determinism: the lanes of a head are added in a fixed tree; the same bits at every level and for any thread count.
#pragma once

#include "cpu/blocks.h"
#include "cpu/kernels.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// Running sums of one head: one AVX-512 vector of float, and two, so that every level can hold them as whole vectors.
constexpr int kDotLanes = 16;
// Products of short heads that are laid out at once.
constexpr int64_t kTermsPerTurn = 256;

// Sum of a[c] * b[c] over at least kDotLanes channels.
template <typename T>
GNNAGG_INLINE Accumulate<T> long_dot(const T* a, const T* b, int64_t channels, const Tail<T>& a_tail,
                                     const Tail<T>& b_tail) {
  using Acc = Accumulate<T>;
  constexpr int kVectors = kDotLanes / kWidth<T>;
  Vector<Acc> sum[kVectors] = {};
  int64_t channel = 0;
  for (; channel + kDotLanes <= channels; channel += kDotLanes) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[v] += product(load(a + channel + v * kWidth<T>), load(b + channel + v * kWidth<T>));
    }
  }
  // What is left is shorter than kDotLanes.
  for (int v = 0; v < kVectors && channel < channels; ++v, channel += kWidth<T>) {
    const int64_t left = channels - channel;
    if (left >= kWidth<T>) {
      sum[v] += product(load(a + channel), load(b + channel));
    } else {
      sum[v] += first_lanes<Acc>(product(load_tail(a + channel, a_tail), load_tail(b + channel, b_tail)), int(left));
    }
  }
#pragma GCC unroll 8
  for (int half = kVectors / 2; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) sum[v] += sum[v + half];
  }
  return fold_lanes(sum[0]);
}

// Sum of kChannels products, paired as fold_lanes pairs them.
template <int kChannels, typename Acc>
GNNAGG_INLINE Acc short_sum(const Acc* term) {
  if constexpr (kChannels == 1) {
    return term[0];
  } else {
    Acc half[kChannels / 2];
#pragma GCC unroll 8
    for (int lane = 0; lane < kChannels / 2; ++lane) half[lane] = term[lane] + term[lane + kChannels / 2];
    return short_sum<kChannels / 2>(half);
  }
}

template <typename Acc>
GNNAGG_INLINE Acc short_sum(const Acc* term, int64_t channels) {
  if (channels == 8) return short_sum<8>(term);
  if (channels == 4) return short_sum<4>(term);
  if (channels == 2) return short_sum<2>(term);
  if (channels == 1) return term[0];
  Acc lanes[kDotLanes] = {};
  for (int64_t lane = 0; lane < channels; ++lane) lanes[lane] = term[lane];
  return short_sum<kDotLanes>(lanes);
}

// The heads [first_head, last_head) of one slot; `out` is the first head's. Heads have less than kDotLanes channels and
// together at most kTermsPerTurn: their products are laid out first, then added head by head.
template <typename T>
GNNAGG_INLINE void short_dots(const T* a, const T* b, int64_t heads, int64_t channels, const Tail<T>& a_tail,
                              const Tail<T>& b_tail, Accumulate<T>* out, bool adds) {
  using Acc = Accumulate<T>;
  Acc terms[kTermsPerTurn + kWidth<T>];
  const int64_t count = heads * channels;
  int64_t at = 0;
  for (; at + kWidth<T> <= count; at += kWidth<T>) store(terms + at, product(load(a + at), load(b + at)));
  if (at < count) store(terms + at, product(load_tail(a + at, a_tail), load_tail(b + at, b_tail)));
  for (int64_t head = 0; head < heads; ++head) {
    const Acc total = short_sum(terms + head * channels, channels);
    out[head] = adds ? out[head] + total : total;
  }
}

template <typename T>
void edge_dot_spans(const EdgeDotArgs& args, int64_t begin_span, int64_t end_span) {
  using Acc = Accumulate<T>;
  const SpanView view(args.csr);
  const IndexArray perm = args.perm;
  const int64_t width = args.width, heads = args.heads, channels = width / heads;
  const int64_t last_slot = view.live_edges() - 1;
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  const bool is_short = channels < kDotLanes;
  const int64_t heads_per_turn = is_short && channels > 0 ? kTermsPerTurn / channels : 1;
  for (int64_t span = begin_span; span < end_span; ++span) {
    SpanWalk walk(view, span);
    while (walk.next()) {
      for (int64_t slot = walk.begin; slot < walk.end; ++slot) {
        const int64_t ahead = slot + kPrefetchSlots < last_slot ? slot + kPrefetchSlots : last_slot;
        const char* soon = reinterpret_cast<const char*>(b + view.col[ahead] * width);
        for (int64_t at = 0; at < width * int64_t(sizeof(T)); at += kCacheLine) __builtin_prefetch(soon + at);
        __builtin_prefetch(static_cast<Acc*>(args.out) + (perm ? perm[ahead] : ahead) * heads, 1);
        Acc* out = static_cast<Acc*>(args.out) + (perm ? perm[slot] : slot) * heads;
        for (int64_t batch = 0; batch < args.batch; ++batch) {
          const T* a_row = a + (batch * view.num_rows + walk.row) * width;
          const T* b_row = b + (batch * args.num_src + view.col[slot]) * width;
          for (int64_t head = 0; head < heads; head += heads_per_turn) {
            const int64_t turn = heads - head < heads_per_turn ? heads - head : heads_per_turn;
            const int64_t first = head * channels;
            const Tail<T> a_tail(int(turn * channels % kWidth<T>), a + args.batch * view.num_rows * width);
            const Tail<T> b_tail(a_tail.count, b + args.batch * args.num_src * width);
            if (is_short) {
              short_dots(a_row + first, b_row + first, turn, channels, a_tail, b_tail, out + head, batch > 0);
            } else {
              const Acc total = long_dot(a_row + first, b_row + first, channels, a_tail, b_tail);
              out[head] = batch > 0 ? out[head] + total : total;
            }
          }
        }
        for (int64_t head = 0; args.batch == 0 && head < heads; ++head) out[head] = Acc(0);
      }
    }
  }
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
