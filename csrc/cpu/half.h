// The two 16-bit float formats as bit patterns, with exact widening and round-to-nearest-even narrowing (NaN kept).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/numeric.h"

namespace gnnagg::cpu {

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

// Type that sums of T are kept in.
template <typename T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

GNNAGG_HOST_DEVICE float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

GNNAGG_HOST_DEVICE uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

GNNAGG_HOST_DEVICE float widen(float value) { return value; }
GNNAGG_HOST_DEVICE double widen(double value) { return value; }
GNNAGG_HOST_DEVICE float widen(BFloat16 value) { return float_from_bits(uint32_t(value.bits) << 16); }

// binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. Moved into place, a finite value is off by the exponent
// bias alone, which one exact multiplication by 2^112 corrects, subnormals included.
GNNAGG_HOST_DEVICE float widen(Half value) {
  const uint32_t sign = uint32_t(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = uint32_t(value.bits & 0x7fffu) << 13;
  const bool is_finite = (value.bits & 0x7c00u) != 0x7c00u;
  const float scaled = float_from_bits(magnitude) * float_from_bits(0x77800000u);
  return float_from_bits(sign | (is_finite ? bits_from_float(scaled) : magnitude | 0x7f800000u));
}

template <typename T>
GNNAGG_HOST_DEVICE T narrow(Accumulate<T> value);

template <>
GNNAGG_HOST_DEVICE float narrow<float>(float value) {
  return value;
}

template <>
GNNAGG_HOST_DEVICE double narrow<double>(double value) {
  return value;
}

template <>
GNNAGG_HOST_DEVICE BFloat16 narrow<BFloat16>(float value) {
  const uint32_t bits = bits_from_float(value);
  if (value != value) return {uint16_t((bits >> 16) | 0x0040u)};
  return {uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
GNNAGG_HOST_DEVICE Half narrow<Half>(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x03ffu))};
  if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the value, rounded to a multiple of 2^-24, in the low mantissa bits.
    return {uint16_t(sign | (bits_from_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000u))};
  }
  magnitude += 0x0fffu + ((magnitude >> 13) & 1u);
  return {uint16_t(sign | ((magnitude - 0x38000000u) >> 13))};
}

}  // namespace gnnagg::cpu
