// The running softmax of one row and head, kept alike by every lane of the head (common/softmax.h has the rules).
#pragma once

#include "common/softmax.h"
#include "cuda/heads.cuh"

namespace gnnagg {

// Scores are kept times kScale, so that their exponential is one instruction: base 2 for float.
template <typename Acc>
struct Exponent;
template <>
struct Exponent<float> {
  static constexpr float kScale = 1.4426950408889634f;  // log2(e)
  static constexpr float kUnscale = 0.6931471805599453f;
  static __device__ __forceinline__ float exp(float scaled) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(scaled));
    return result;
  }
  static __device__ __forceinline__ float log(float value) { return log2f(value); }
};
template <>
struct Exponent<double> {
  static constexpr double kScale = 1.0;
  static constexpr double kUnscale = 1.0;
  static __device__ __forceinline__ double exp(double scaled) { return ::exp(scaled); }
  static __device__ __forceinline__ double log(double value) { return ::log(value); }
};

template <typename Acc>
struct RunningSoftmax {
  using Exp = Exponent<Acc>;
  Acc greatest;  // of the scaled scores so far
  Acc sum;       // of exp(score - greatest)

  __device__ __forceinline__ void reset() {
    greatest = SoftmaxLimits<Acc>::kLowestScore;
    sum = Acc(0);
  }
  // Raises the greatest score to `most`; `rescale(factor)` is called where it grew.
  template <typename Rescale>
  __device__ __forceinline__ void raise(Acc most, Rescale rescale) {
    if (most > greatest) {
      const Acc factor = Exp::exp(greatest - most);
      greatest = most;
      sum *= factor;
      rescale(factor);
    }
  }
  // Takes in the sums of later edges of the row. Calls combine(factor of mine, factor of theirs).
  template <typename Combine>
  __device__ __forceinline__ void merge(const RunningSoftmax& other, Combine combine) {
    const Acc most = greater(greatest, other.greatest);
    const Acc mine = Exp::exp(greatest - most), theirs = Exp::exp(other.greatest - most);
    sum = sum * mine + other.sum * theirs;
    greatest = most;
    combine(mine, theirs);
  }
  // 1 / (sum + 1e-16); NaN for a row of minus infinities.
  __device__ __forceinline__ Acc inverse() const {
    return greatest == SoftmaxLimits<Acc>::kLowestScore ? Acc(NAN) : Acc(1) / (sum + Acc(kSoftmaxFloor));
  }
  __device__ __forceinline__ Acc logsumexp() const {
    if (greatest == SoftmaxLimits<Acc>::kLowestScore) return Acc(NAN);
    return (greatest + Exp::log(sum + Acc(kSoftmaxFloor))) * Exp::kUnscale;
  }
};

}  // namespace gnnagg
