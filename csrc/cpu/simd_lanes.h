// Operations between and across the lanes of vectors: signs, the greater value, who holds it, NaN, sums of all lanes.
#pragma once

#include "common/reduce.h"
#include "cpu/simd.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

// Flips the sign of every lane where `sign` holds sign bits.
template <typename Acc>
GNNAGG_INLINE Vector<Acc> flip_sign(Vector<Acc> value, Lanes<Acc> sign) {
  const Lanes<Acc> bits = load_bits<Lanes<Acc>>(&value) ^ sign;
  return load_bits<Vector<Acc>>(&bits);
}

template <typename Acc>
GNNAGG_INLINE Lanes<Acc> sign_if(bool negative) {
  return Lanes<Acc>{} + (negative ? LaneInt<Acc>(LaneInt<Acc>(1) << (8 * sizeof(Acc) - 1)) : LaneInt<Acc>(0));
}

// Greater of two values; the first where they are equal or either is NaN.
GNNAGG_INLINE Vector<float> greater(Vector<float> current, Vector<float> candidate) {
#if defined(__AVX512F__)
  return _mm512_max_ps(candidate, current);
#elif defined(__AVX2__)
  return _mm256_max_ps(candidate, current);
#else
  return candidate > current ? candidate : current;
#endif
}

GNNAGG_INLINE Vector<double> greater(Vector<double> current, Vector<double> candidate) {
#if defined(__AVX512F__)
  return _mm512_max_pd(candidate, current);
#elif defined(__AVX2__)
  return _mm256_max_pd(candidate, current);
#else
  return candidate > current ? candidate : current;
#endif
}

// merge_winner (reduce.h) with one more value that is not NaN, at slot `here`, lane by lane. `winner` counts slots from
// 0.
template <typename Acc>
GNNAGG_INLINE void update_winner(Vector<Acc> value, Lanes<Acc> here, Vector<Acc>& best, Lanes<Acc>& winner) {
  const Lanes<Acc> none = Lanes<Acc>{} + LaneInt<Acc>(kNoWinner), one_less = Lanes<Acc>{} - LaneInt<Acc>(1);
#if defined(__AVX512F__)
  const __m512i held = load_bits<__m512i>(&winner), minus_one = load_bits<__m512i>(&one_less);
  const __m512i slot = load_bits<__m512i>(&here), no_winner = load_bits<__m512i>(&none);
  __m512i next;
  if constexpr (sizeof(Acc) == sizeof(float)) {
    const __m512i count = _mm512_maskz_min_epi32(__mmask16(-1), held, no_winner);
    next = _mm512_mask_add_epi32(held, _mm512_cmp_ps_mask(value, best, _CMP_EQ_OQ), count, minus_one);
    next = _mm512_mask_mov_epi32(next, _mm512_cmp_ps_mask(value, best, _CMP_GT_OQ), slot);
  } else {
    const __m512i count = _mm512_maskz_min_epi64(__mmask8(-1), held, no_winner);
    next = _mm512_mask_add_epi64(held, _mm512_cmp_pd_mask(value, best, _CMP_EQ_OQ), count, minus_one);
    next = _mm512_mask_mov_epi64(next, _mm512_cmp_pd_mask(value, best, _CMP_GT_OQ), slot);
  }
  winner = load_bits<Lanes<Acc>>(&next);
#else
  Lanes<Acc> one_more = winner < none ? winner : none;
#if defined(__AVX2__)
  if constexpr (sizeof(Acc) == sizeof(float)) {
    const __m256i count = _mm256_min_epi32(load_bits<__m256i>(&winner), load_bits<__m256i>(&none));
    one_more = load_bits<Lanes<Acc>>(&count);
  }
#endif
  one_more += one_less;
  winner = value == best ? one_more : winner;
  winner = value > best ? here : winner;
#endif
  best = greater(best, value);
}

// Remembers whether any lane of the vectors that it saw was NaN.
template <typename Acc>
class NanWatch {
 public:
  GNNAGG_INLINE void see(Vector<Acc> a, Vector<Acc> b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Acc) == sizeof(float)) {
      seen_ |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    } else {
      seen_ |= _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q);
    }
#else
    Lanes<Acc> is_nan;
#if defined(__AVX2__)
    if constexpr (sizeof(Acc) == sizeof(float)) {
      is_nan = Lanes<Acc>(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
    } else {
      is_nan = Lanes<Acc>(_mm256_cmp_pd(a, b, _CMP_UNORD_Q));
    }
#else
    is_nan = (a != a) | (b != b);
#endif
    seen_ |= is_nan;
#endif
  }

  template <int kVectors>
  GNNAGG_INLINE void see_all(const Vector<Acc> (&value)[kVectors]) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += 2) see(value[v], value[v + 1 < kVectors ? v + 1 : v]);
  }

  GNNAGG_INLINE bool any() const {
#if defined(__AVX512F__)
    return seen_ != 0;
#else
    LaneInt<Acc> any = 0;
    for (int lane = 0; lane < kVectorBytes / int(sizeof(Acc)); ++lane) any |= seen_[lane];
    return any != 0;
#endif
  }

 private:
#if defined(__AVX512F__)
  uint32_t seen_ = 0;
#else
  Lanes<Acc> seen_ = {};
#endif
};

// Sum of all lanes, halves first: lane i + lane (i + n/2), and so on, which is the same tree for any vector width.
#if defined(__SSE2__)
GNNAGG_INLINE float fold_lanes(__m128 v) {
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}
GNNAGG_INLINE double fold_lanes(__m128d v) { return _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v))); }
#endif
#if defined(__AVX2__)
GNNAGG_INLINE float fold_lanes(__m256 v) {
  return fold_lanes(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}
GNNAGG_INLINE double fold_lanes(__m256d v) {
  return fold_lanes(_mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1)));
}
#endif
#if defined(__AVX512F__)
GNNAGG_INLINE float fold_lanes(__m512 v) {
  return fold_lanes(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
GNNAGG_INLINE double fold_lanes(__m512d v) {
  return fold_lanes(_mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1)));
}
#endif
#if !defined(__SSE2__)
template <typename V>
GNNAGG_INLINE auto fold_lanes(V v) {
  constexpr int kLanes = int(sizeof(v) / sizeof(v[0]));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) v[lane] += v[lane + half];
  }
  return v[0];
}
#endif

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
