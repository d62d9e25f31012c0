// Fills the table of one level: every kernel for every feature type. Included once per level (GNNAGG_LEVEL).
#pragma once

#include "cpu/aggregate_kernel.h"
#include "cpu/edge_dot_kernel.h"
#include "cpu/extremum_backward_kernel.h"
#include "cpu/extremum_kernel.h"
#include "cpu/multi_kernel.h"

// One entry per FeatureType.
#define GNNAGG_ALL_TYPES(kernel) {kernel<float>, kernel<double>, kernel<Half>, kernel<BFloat16>}

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr Kernels kTable = {GNNAGG_ALL_TYPES(sum_spans),         GNNAGG_ALL_TYPES(sum_combine),
                            GNNAGG_ALL_TYPES(extremum_spans),    GNNAGG_ALL_TYPES(extremum_combine),
                            GNNAGG_ALL_TYPES(extremum_backward), GNNAGG_ALL_TYPES(multi_piece),
                            GNNAGG_ALL_TYPES(edge_dot_spans)};

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
