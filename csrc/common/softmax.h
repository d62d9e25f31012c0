// The softmax rules of attention: online accumulation, merging, and what a row's result is made of. The CPU and the CUDA
// kernels keep these and nothing else.
//
// Terms. score s of an edge and head; running maximum m; sum l of exp(s - m). logsumexp L = m + log(l + kSoftmaxFloor), so
// that the attention weight is exp(s - L), PyG's exp(s - max) / (sum + 1e-16).
//
// Rules. m begins at kLowestScore, a finite number, so that scores of minus infinity weigh 0 beside finite ones without a
// special case. A row whose scores are all minus infinity, or that holds plus infinity or NaN, is NaN; an empty row is 0 and
// has L = 0.
#pragma once

#include <cstdint>

#include "common/numeric.h"

namespace gnnagg {

// Added to the sum after it is complete, as PyG does.
constexpr double kSoftmaxFloor = 1e-16;

template <typename Acc>
struct SoftmaxLimits;
template <>
struct SoftmaxLimits<float> {
  static constexpr float kLowestScore = -3.0e38f;
};
template <>
struct SoftmaxLimits<double> {
  static constexpr double kLowestScore = -1.0e308;
};

template <typename Acc>
GNNAGG_HOST_DEVICE Acc leaky_relu(Acc value, Acc negative_slope) {
  return value > Acc(0) ? value : value * negative_slope;
}
// Its derivative where it is not differentiable is the slope, as in torch.
template <typename Acc>
GNNAGG_HOST_DEVICE Acc leaky_relu_slope(Acc value, Acc negative_slope) {
  return value > Acc(0) ? Acc(1) : negative_slope;
}

}  // namespace gnnagg
