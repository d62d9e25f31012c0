// Attention dropout of a chunk (common/philox.h), several edges at a time. Included per level.
#pragma once

#include "common/philox.h"
#include "cpu/attention_lanes.h"
#include "cpu/gat_attention_args.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

typedef uint64_t Wide __attribute__((vector_size(kVectorBytes)));
constexpr int kWideLanes = kVectorBytes / 8;

// Product of the low halves of every lane.
GNNAGG_INLINE Wide multiply_low(Wide a, Wide b) {
#if defined(__AVX512F__)
  const __m512i result = _mm512_mul_epu32(load_bits<__m512i>(&a), load_bits<__m512i>(&b));
  return load_bits<Wide>(&result);
#elif defined(__AVX2__)
  const __m256i result = _mm256_mul_epu32(load_bits<__m256i>(&a), load_bits<__m256i>(&b));
  return load_bits<Wide>(&result);
#elif defined(__SSE2__)
  const __m128i result = _mm_mul_epu32(load_bits<__m128i>(&a), load_bits<__m128i>(&b));
  return load_bits<Wide>(&result);
#else
  constexpr uint64_t kLow = 0xFFFFFFFFu;
  return (a & kLow) * (b & kLow);
#endif
}

// DropoutRule::kept_of_block for one edge per lane, by the rounds of philox(). Words live in the low halves of lanes;
// what the high halves hold after a round is never read.
GNNAGG_INLINE Wide kept_of_blocks(const DropoutArgs& rule, Wide edge, Wide block) {
  constexpr int kHalf = 32;
  Wide c0 = edge, c1 = edge >> kHalf, c2 = block, c3 = {};
  uint32_t k0 = uint32_t(rule.seed), k1 = uint32_t(rule.seed >> kHalf);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Wide first = multiply_low(c0, Wide{} + uint64_t(kPhiloxFirstFactor));
    const Wide second = multiply_low(c2, Wide{} + uint64_t(kPhiloxSecondFactor));
    c0 = (second >> kHalf) ^ c1 ^ uint64_t(k0);
    c2 = (first >> kHalf) ^ c3 ^ uint64_t(k1);
    c1 = second;
    c3 = first;
    k0 += kPhiloxFirstWeyl;
    k1 += kPhiloxSecondWeyl;
  }
  const Wide words[kPhiloxWords] = {c0, c1, c2, c3};
  Wide kept = {};
#pragma GCC unroll 4
  for (int w = 0; w < kPhiloxWords; ++w) {
    const Wide drawn = (words[w] << kHalf) >> (2 * kHalf - DropoutRule::kBits);
    const Wide is_below = (drawn - uint64_t(rule.threshold)) >> (2 * kHalf - 1);
    kept |= (is_below ^ uint64_t(1)) << w;
  }
  return kept;
}

// One bit per lane of a chunk's buffer: whether the slot and head is kept.
class KeptLanes {
 public:
  // `first_head` is a multiple of kPhiloxWords.
  __attribute__((noinline)) void draw(const DropoutArgs& rule, const HeadLanes& lanes, int64_t first_head,
                                      const int64_t* edge, int count) {
    // Blocks in the order of the buffer: each gives the bits of up to kPhiloxWords lanes.
    const int blocks = ceil_div(lanes.stride, kPhiloxWords);
    const int bits = lanes.stride < kPhiloxWords ? lanes.stride : kPhiloxWords;
    uint64_t edge_of[kMostBlocks + kWideLanes], block_of[kMostBlocks + kWideLanes];
    int total = 0;
    for (int k = 0; k < count; ++k) {
      for (int b = 0; b < blocks; ++b, ++total) {
        edge_of[total] = uint64_t(edge[k]);
        block_of[total] = uint64_t(first_head / kPhiloxWords + b);
      }
    }
    for (int lane = 0; lane < kWideLanes; ++lane) edge_of[total + lane] = block_of[total + lane] = 0;

    Wide place;
    for (int lane = 0; lane < kWideLanes; ++lane) place[lane] = uint64_t(lane * bits);
    const uint64_t wanted = (uint64_t(1) << bits) - 1;
    uint64_t pending = 0;
    int num_pending = 0, next = 0;
    for (int q = 0; q < total; q += kWideLanes) {
      const Wide drawn = kept_of_blocks(rule, load_bits<Wide>(edge_of + q), load_bits<Wide>(block_of + q));
      uint64_t kept[kWideLanes], all = 0;
      store_bits(kept, (drawn & wanted) << place);
      for (int lane = 0; lane < kWideLanes; ++lane) all |= kept[lane];
      pending |= all << num_pending;
      for (num_pending += kWideLanes * bits; num_pending >= kGroup; num_pending -= kGroup, pending >>= kGroup) {
        group_[next++] = uint16_t(pending);
      }
    }
    group_[next] = uint16_t(pending);
  }

  // The lanes from `at`, 0 where dropped.
  template <typename Acc>
  GNNAGG_INLINE Vector<Acc> apply(int at, Vector<Acc> value) const {
    const uint32_t bits = uint32_t(group_[at / kGroup]) >> (at % kGroup);
#if defined(__AVX512F__)
    if constexpr (sizeof(Acc) == sizeof(float)) {
      return _mm512_maskz_mov_ps(__mmask16(bits), value);
    } else {
      return _mm512_maskz_mov_pd(__mmask8(bits), value);
    }
#else
    const Lanes<Acc> bit = (Lanes<Acc>{} + LaneInt<Acc>(1)) << lane_numbers<Acc>();
    return ((bit & LaneInt<Acc>(bits)) != Lanes<Acc>{}) ? value : Vector<Acc>{};
#endif
  }

 private:
  static constexpr int kMostBlocks =
      kBufferLanes / kPhiloxWords > kMostSlots ? kBufferLanes / kPhiloxWords : kMostSlots;
  static_assert(kGroup == 16, "a group's bits are a uint16_t");
  uint16_t group_[kBufferLanes / kGroup + kWideLanes];
};

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
