// Vectors of the instruction set that the including file is compiled for, in a namespace of its own (GNNAGG_LEVEL), so
// that no code of one set can stand in for that of another. GCC vector extensions; intrinsics where they say it better.
//
// Products are rounded before they are added (no fused multiply-add), so every level gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/half.h"

#if defined(__x86_64__)
// GCC 12 takes the deliberately undefined operands inside these functions for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define GNNAGG_INLINE inline __attribute__((always_inline))

namespace gnnagg::cpu::GNNAGG_LEVEL {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <typename Acc>
struct VectorTypes;

template <>
struct VectorTypes<float> {
  typedef float Value __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Lane __attribute__((vector_size(kVectorBytes)));
  using LaneInt = int32_t;
};

template <>
struct VectorTypes<double> {
  typedef double Value __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Lane __attribute__((vector_size(kVectorBytes)));
  using LaneInt = int64_t;
};

// A vector of accumulators, and integers of the same width: compare results (all bits set where true) and slots.
template <typename Acc>
using Vector = typename VectorTypes<Acc>::Value;
template <typename Acc>
using Lanes = typename VectorTypes<Acc>::Lane;
template <typename Acc>
using LaneInt = typename VectorTypes<Acc>::LaneInt;
template <typename T>
constexpr int kWidth = kVectorBytes / int(sizeof(Accumulate<T>));

typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfWords __attribute__((vector_size(kVectorBytes / 2)));

template <typename Acc>
GNNAGG_INLINE Vector<Acc> broadcast(Acc value) {
  return Vector<Acc>{} + value;
}

// a * b, rounded: the empty statement keeps the compiler from fusing it with a later addition.
template <typename V>
GNNAGG_INLINE V product(V a, V b) {
  V result = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(result));
#elif defined(__aarch64__)
  asm("" : "+w"(result));
#endif
  return result;
}

template <typename V, typename Memory>
GNNAGG_INLINE V load_bits(const Memory* from) {
  V result;
  std::memcpy(&result, from, sizeof(V));
  return result;
}

template <typename V, typename Memory>
GNNAGG_INLINE void store_bits(Memory* to, V value) {
  std::memcpy(to, &value, sizeof(V));
}

// --- load: kWidth<T> consecutive features, widened -------------------------------------------------------------------

GNNAGG_INLINE Vector<float> load(const float* from) { return load_bits<Vector<float>>(from); }
GNNAGG_INLINE Vector<double> load(const double* from) { return load_bits<Vector<double>>(from); }

GNNAGG_INLINE Vector<float> widen_bfloat16(HalfWords bits) {
#if defined(__AVX512F__)
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bits<__m256i>(&bits)), 16));
#elif defined(__AVX2__)
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bits<__m128i>(&bits)), 16));
#elif defined(__SSE2__)
  return _mm_castsi128_ps(
      _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&bits))));
#else
  const Words words = __builtin_convertvector(bits, Words) << 16;
  return load_bits<Vector<float>>(&words);
#endif
}

GNNAGG_INLINE Words widen_words(HalfWords bits) {
#if defined(__SSE2__) && !defined(__AVX2__)
  const __m128i words =
      _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&bits)), _mm_setzero_si128());
  return load_bits<Words>(&words);
#else
  return __builtin_convertvector(bits, Words);
#endif
}

GNNAGG_INLINE Vector<float> widen_half(HalfWords bits) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(load_bits<__m256i>(&bits));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(load_bits<__m128i>(&bits));
#elif defined(__aarch64__)
  return vcvt_f32_f16(load_bits<float16x4_t>(&bits));
#else
  // As widen(Half), lane by lane.
  const Words words = widen_words(bits), magnitude = (words & 0x7fffu) << 13;
  const Vector<float> scaled = load_bits<Vector<float>>(&magnitude) * float_from_bits(0x77800000u);
  const Words finite = load_bits<Words>(&scaled), special = magnitude | 0x7f800000u;
  const Words result = ((words & 0x8000u) << 16) | ((words & 0x7c00u) == 0x7c00u ? special : finite);
  return load_bits<Vector<float>>(&result);
#endif
}

GNNAGG_INLINE Vector<float> load(const BFloat16* from) { return widen_bfloat16(load_bits<HalfWords>(from)); }
GNNAGG_INLINE Vector<float> load(const Half* from) { return widen_half(load_bits<HalfWords>(from)); }

// --- store: narrowed, round to nearest even -------------------------------------------------------------------------

GNNAGG_INLINE HalfWords narrow_bfloat16(Vector<float> value) {
  const Words bits = load_bits<Words>(&value);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  const Words result = (value != value) ? quiet : rounded;
#if defined(__AVX512F__)
  const __m256i narrowed = _mm512_cvtepi32_epi16(load_bits<__m512i>(&result));
  return load_bits<HalfWords>(&narrowed);
#else
  return __builtin_convertvector(result, HalfWords);
#endif
}

GNNAGG_INLINE HalfWords narrow_half(Vector<float> value) {
#if defined(__AVX512F__)
  const __m256i bits = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return load_bits<HalfWords>(&bits);
#elif defined(__F16C__)
  const __m128i bits = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return load_bits<HalfWords>(&bits);
#elif defined(__aarch64__)
  const float16x4_t narrowed = vcvt_f16_f32(value);
  return load_bits<HalfWords>(&narrowed);
#else
  HalfWords result;
  for (int lane = 0; lane < kWidth<float>; ++lane) result[lane] = narrow<Half>(value[lane]).bits;
  return result;
#endif
}

GNNAGG_INLINE void store(float* to, Vector<float> value) { store_bits(to, value); }
GNNAGG_INLINE void store(double* to, Vector<double> value) { store_bits(to, value); }
GNNAGG_INLINE void store(BFloat16* to, Vector<float> value) { store_bits(to, narrow_bfloat16(value)); }
GNNAGG_INLINE void store(Half* to, Vector<float> value) { store_bits(to, narrow_half(value)); }

// --- tails: the last vector of a row, of which `count` features exist ------------------------------------------------

// AVX-512 masks the missing lanes. Other sets read a whole vector where that stays inside the tensor (what lies in the
// missing lanes is the next row, and is dropped), and copy the features one by one near the tensor's end.
template <typename T>
struct Tail {
  int count;              // 1..kWidth<T>
  uintptr_t whole_until;  // last address from which a whole vector can be read

  Tail(int features, const T* tensor_end)
      : count(features), whole_until(uintptr_t(tensor_end) - kWidth<T> * sizeof(T)) {}
};

template <typename T>
GNNAGG_INLINE auto load_count(const T* from, int count) {
  if (count == kWidth<T>) return load(from);
  T buffer[kWidth<T>] = {};
  std::memcpy(buffer, from, size_t(count) * sizeof(T));
  return load(buffer);
}

template <typename T>
GNNAGG_INLINE void store_count(T* to, Vector<Accumulate<T>> value, int count) {
  if (count == kWidth<T>) {
    store(to, value);
    return;
  }
  T buffer[kWidth<T>];
  store(buffer, value);
  std::memcpy(to, buffer, size_t(count) * sizeof(T));
}

#if defined(__AVX512F__)
GNNAGG_INLINE unsigned mask_of(int count) { return (1u << count) - 1u; }

GNNAGG_INLINE Vector<float> load_tail(const float* from, const Tail<float>& tail) {
  return _mm512_maskz_loadu_ps(__mmask16(mask_of(tail.count)), from);
}
GNNAGG_INLINE Vector<double> load_tail(const double* from, const Tail<double>& tail) {
  return _mm512_maskz_loadu_pd(__mmask8(mask_of(tail.count)), from);
}
GNNAGG_INLINE Vector<float> load_tail(const BFloat16* from, const Tail<BFloat16>& tail) {
  const __m256i bits = _mm256_maskz_loadu_epi16(__mmask16(mask_of(tail.count)), from);
  return widen_bfloat16(load_bits<HalfWords>(&bits));
}
GNNAGG_INLINE Vector<float> load_tail(const Half* from, const Tail<Half>& tail) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16(mask_of(tail.count)), from));
}
#else
template <typename T>
GNNAGG_INLINE Vector<Accumulate<T>> load_tail(const T* from, const Tail<T>& tail) {
  return uintptr_t(from) <= tail.whole_until ? load(from) : load_count(from, tail.count);
}
#endif

// What load_tail read, with 0 in the missing lanes.
template <typename Acc>
GNNAGG_INLINE Vector<Acc> first_lanes(Vector<Acc> value, int count) {
#if defined(__AVX512F__)
  (void)count;
  return value;
#else
  constexpr int kLanes = kVectorBytes / int(sizeof(Acc));
  Lanes<Acc> lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < LaneInt<Acc>(count) ? value : Vector<Acc>{};
#endif
}

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
