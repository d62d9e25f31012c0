// What both ways of computing the gradient of max and min are given. The op (extremum_backward.cu) checks and chooses.
#pragma once

#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"

namespace gnnagg {

struct ExtremumBackward {
  const bridge::Tensor &grad, &winner, &x, &out, &t_slot;  // [B, num_dst, F] x 4 (x: num_src rows), [num_edges]
  const bridge::Tensor& dx;                                // [B, num_src, F], to be written
  bridge::CsrArguments csr, reverse;
  bridge::FeatureShape shape;  // of x
  cudaStream_t stream;
};

void extremum_backward_by_gather(const ExtremumBackward& call);
void extremum_backward_by_scatter(const ExtremumBackward& call);

}  // namespace gnnagg
