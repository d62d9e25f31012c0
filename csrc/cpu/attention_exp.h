// exp of every lane of a vector, at most 1 ulp off (2 where the result is subnormal). Included per level.
//
// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and r = x - n ln 2, |r| <= ln(2) / 2; ln 2 in two parts, of which n
// times the first is exact; exp(r) by its Taylor series. Minus infinity gives 0, plus infinity and overflow plus
// infinity, NaN NaN. The same bits at every level, as products are rounded before they are added.
#pragma once

#include "cpu/simd_lanes.h"

namespace gnnagg::cpu::GNNAGG_LEVEL {

template <typename Acc>
struct ExpLimits;

template <>
struct ExpLimits<float> {
  // Below kLowest exp is 0 and above kHighest infinity, and n still fits the two factors of scale_by_power.
  static constexpr float kLowest = -104.0f, kHighest = 89.0f;
  static constexpr float kPerLn2 = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.63p-1f, kLn2Low = -0x1.bd0106p-13f;  // 9 bits of ln 2, and the rest
  // Adding and subtracting it rounds to an integer, which its low bits hold in between.
  static constexpr float kRounder = 0x1.8p23f;
  static constexpr int32_t kRounderBits = 0x4B400000;
  static constexpr int kBias = 127, kMantissa = 23, kTerms = 8;
};

template <>
struct ExpLimits<double> {
  static constexpr double kLowest = -746.0, kHighest = 710.0;
  static constexpr double kPerLn2 = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;  // 32 bits of ln 2, and the rest
  static constexpr double kRounder = 0x1.8p52;
  static constexpr int64_t kRounderBits = 0x4338000000000000;
  static constexpr int kBias = 1023, kMantissa = 52, kTerms = 14;
};

// Lesser of two values; the first where they are equal or either is NaN.
GNNAGG_INLINE Vector<float> lesser(Vector<float> current, Vector<float> candidate) {
#if defined(__AVX512F__)
  return _mm512_min_ps(candidate, current);
#elif defined(__AVX2__)
  return _mm256_min_ps(candidate, current);
#else
  return candidate < current ? candidate : current;
#endif
}

GNNAGG_INLINE Vector<double> lesser(Vector<double> current, Vector<double> candidate) {
#if defined(__AVX512F__)
  return _mm512_min_pd(candidate, current);
#elif defined(__AVX2__)
  return _mm256_min_pd(candidate, current);
#else
  return candidate < current ? candidate : current;
#endif
}

// value * 2^n for n as ExpLimits allows, rounded once. In two steps, because 2^n alone may be no normal number.
template <typename Acc>
GNNAGG_INLINE Vector<Acc> scale_by_power(Vector<Acc> value, Vector<Acc> n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Acc) == sizeof(float)) {
    return _mm512_scalef_ps(value, n);
  } else {
    return _mm512_scalef_pd(value, n);
  }
#else
  using Limits = ExpLimits<Acc>;
  const Vector<Acc> whole = n + Limits::kRounder, half = product(n, broadcast<Acc>(Acc(0.5))) + Limits::kRounder;
  const Lanes<Acc> power = load_bits<Lanes<Acc>>(&whole) - LaneInt<Acc>(Limits::kRounderBits);
  const Lanes<Acc> first = load_bits<Lanes<Acc>>(&half) - LaneInt<Acc>(Limits::kRounderBits);
  const Lanes<Acc> first_bits = (first + LaneInt<Acc>(Limits::kBias)) << Limits::kMantissa;
  const Lanes<Acc> second_bits = (power - first + LaneInt<Acc>(Limits::kBias)) << Limits::kMantissa;
  return value * load_bits<Vector<Acc>>(&first_bits) * load_bits<Vector<Acc>>(&second_bits);
#endif
}

// 1 / k!
template <typename Acc>
constexpr Acc inverse_factorial(int k) {
  Acc product = Acc(1);
  for (int i = 2; i <= k; ++i) product *= Acc(i);
  return Acc(1) / product;
}

// Sum over k in [kFirst, kLast) of r^(k - kFirst) / k!, as a tree: halves joined by a power of r, which is even.
template <int kFirst, int kLast, typename Acc>
GNNAGG_INLINE Vector<Acc> exp_terms(Vector<Acc> r, Vector<Acc> r2, Vector<Acc> r4, Vector<Acc> r8) {
  constexpr int kCount = kLast - kFirst;
  if constexpr (kCount == 1) {
    return broadcast<Acc>(inverse_factorial<Acc>(kFirst));
  } else if constexpr (kCount == 2) {
    return product(broadcast<Acc>(inverse_factorial<Acc>(kFirst + 1)), r) + inverse_factorial<Acc>(kFirst);
  } else {
    constexpr int kLow = kCount > 8 ? 8 : (kCount > 4 ? 4 : 2);
    const Vector<Acc> low = exp_terms<kFirst, kFirst + kLow, Acc>(r, r2, r4, r8);
    const Vector<Acc> high = exp_terms<kFirst + kLow, kLast, Acc>(r, r2, r4, r8);
    return low + product(high, kLow == 8 ? r8 : (kLow == 4 ? r4 : r2));
  }
}

template <typename Acc>
GNNAGG_INLINE Vector<Acc> exp_lanes(Vector<Acc> x) {
  using Limits = ExpLimits<Acc>;
  x = lesser(greater(x, broadcast<Acc>(Limits::kLowest)), broadcast<Acc>(Limits::kHighest));
  const Vector<Acc> n = (product(x, broadcast<Acc>(Limits::kPerLn2)) + Limits::kRounder) - Limits::kRounder;
  const Vector<Acc> r =
      (x - product(n, broadcast<Acc>(Limits::kLn2High))) - product(n, broadcast<Acc>(Limits::kLn2Low));
  const Vector<Acc> r2 = product(r, r), r4 = product(r2, r2), r8 = product(r4, r4);
  const Vector<Acc> above_one = r + product(r2, exp_terms<2, Limits::kTerms, Acc>(r, r2, r4, r8));
  return scale_by_power<Acc>(above_one + Acc(1), n);
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
