// Fills the table of one level: every kernel for every feature and index type. Included once per level (GNNAGG_LEVEL).
#pragma once

#include "cpu/aggregate_kernel.h"
#include "cpu/edge_dot_kernel.h"
#include "cpu/extremum_backward_kernel.h"
#include "cpu/extremum_kernel.h"
#include "cpu/multi_kernel.h"
#include "cpu/propagate_kernel.h"

// One row per FeatureType, one column per IndexType.
#define GNNAGG_ALL_TYPES(kernel)                                                                          \
  {                                                                                                       \
    {kernel<float, int32_t>, kernel<float, int64_t>}, {kernel<double, int32_t>, kernel<double, int64_t>}, \
        {kernel<Half, int32_t>, kernel<Half, int64_t>}, {                                                 \
      kernel<BFloat16, int32_t>, kernel<BFloat16, int64_t>                                                \
    }                                                                                                     \
  }

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr Kernels kTable = {
    GNNAGG_ALL_TYPES(sum_spans),        GNNAGG_ALL_TYPES(sum_combine),       GNNAGG_ALL_TYPES(extremum_spans),
    GNNAGG_ALL_TYPES(extremum_combine), GNNAGG_ALL_TYPES(extremum_backward), GNNAGG_ALL_TYPES(multi_piece),
    GNNAGG_ALL_TYPES(edge_dot_spans),   GNNAGG_ALL_TYPES(hop_spans),         GNNAGG_ALL_TYPES(hop_combine)};

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
