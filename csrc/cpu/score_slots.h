// Numbers of the slots of a chunk side by side, and the memory that rows and chunks of a call lie in. Included per level.
//
// Terms. A chunk is up to kChunkSlots slots of one row. What belongs to (head, slot) of it lies as [H, kChunkSlots], so
// that an exponential takes a vector of slots. Sums over channels or slots are kept in kScoreLanes lanes, lane = place
// modulo kScoreLanes, and folded halves first: the same bits at every level.
#pragma once

#include "cpu/attention_lanes.h"
#include "cpu/score_attention_args.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr int kChunkSlots = kScoreLanes;
// Slots whose dot products are taken together, so that one fold serves them all.
constexpr int kBatchSlots = 4;
// Vectors that make up kScoreLanes numbers.
template <typename Acc>
constexpr int kLaneVectors = kScoreLanes / kLanesOf<Acc>;

// --- memory ----------------------------------------------------------------------------------------------------------

// Rows and chunks of one call: memory is zero and begins at cache lines.
template <typename Acc>
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    const int64_t bytes = count * int64_t(sizeof(Acc)) + kCacheLine;
    memory_ = __builtin_malloc(size_t(bytes));
    __builtin_memset(memory_, 0, size_t(bytes));
    next_ = reinterpret_cast<Acc*>((uintptr_t(memory_) + kCacheLine - 1) / kCacheLine * kCacheLine);
  }
  ~Scratch() { __builtin_free(memory_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // What take(count) uses up.
  static constexpr int64_t room(int64_t count) {
    constexpr int64_t kInLine = kCacheLine / int64_t(sizeof(Acc));
    return (count + kInLine - 1) / kInLine * kInLine;
  }
  Acc* take(int64_t count) {
    Acc* taken = next_;
    next_ += room(count);
    return taken;
  }

 private:
  void* memory_;
  Acc* next_;
};

// --- chunks: [kChunkSlots] numbers -----------------------------------------------------------------------------------

// Calls body(offset) for every vector of a chunk.
template <typename Acc, typename Body>
GNNAGG_INLINE void for_each_slot_vector(const Body& body) {
#pragma GCC unroll 8
  for (int v = 0; v < kLaneVectors<Acc>; ++v) body(v * kLanesOf<Acc>);
}

template <typename Acc>
GNNAGG_INLINE Acc fold_lane_vectors(Vector<Acc> (&part)[kLaneVectors<Acc>]) {
#pragma GCC unroll 8
  for (int half = kLaneVectors<Acc> / 2; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) part[v] += part[v + half];
  }
  return fold_lanes(part[0]);
}

template <typename Acc>
GNNAGG_INLINE Acc sum_of_slots(const Acc* a) {
  Vector<Acc> part[kLaneVectors<Acc>];
  for_each_slot_vector<Acc>([&](int at) { part[at / kLanesOf<Acc>] = load(a + at); });
  return fold_lane_vectors<Acc>(part);
}

template <typename Acc>
GNNAGG_INLINE Acc greatest_lane(Vector<Acc> value) {
#pragma GCC unroll 8
  for (int half = kLanesOf<Acc> / 2; half > 0; half /= 2) {
    value = greater(value, permute<Acc>(value, lane_numbers<Acc>() ^ LaneInt<Acc>(half)));
  }
  return value[0];
}

// The first `count` lanes, and 0 behind them.
template <typename Acc>
GNNAGG_INLINE Vector<Acc> zero_behind(Vector<Acc> value, int count) {
  return lane_numbers<Acc>() < LaneInt<Acc>(count) ? value : Vector<Acc>{};
}

GNNAGG_INLINE float log_of(float value) { return __builtin_logf(value); }
GNNAGG_INLINE double log_of(double value) { return __builtin_log(value); }

// <a, b> of `count` numbers of padded rows, a multiple of kScoreLanes.
template <typename Acc>
GNNAGG_INLINE Acc padded_dot(const Acc* a, const Acc* b, int64_t count) {
  Vector<Acc> part[kLaneVectors<Acc>] = {};
  for (int64_t first = 0; first < count; first += kScoreLanes) {
    for_each_slot_vector<Acc>(
        [&](int at) { part[at / kLanesOf<Acc>] += product(load(a + first + at), load(b + first + at)); });
  }
  return fold_lane_vectors<Acc>(part);
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
