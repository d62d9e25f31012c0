// Fills the table of one level with the kernels of gatv2_attention and dot_attention. Included once per level.
#pragma once

#include "cpu/dot_attention_backward_kernel.h"
#include "cpu/gatv2_attention_backward_kernel.h"

// One entry per FeatureType.
#define GNNAGG_ALL_TYPES(kernel) {kernel<float>, kernel<double>, kernel<Half>, kernel<BFloat16>}

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr ScoreKernels kScoreTable = {GNNAGG_ALL_TYPES(gatv2_spans),     GNNAGG_ALL_TYPES(gatv2_rows),
                                      GNNAGG_ALL_TYPES(gatv2_sources),   GNNAGG_ALL_TYPES(dot_spans),
                                      GNNAGG_ALL_TYPES(dot_rows),        GNNAGG_ALL_TYPES(dot_sources),
                                      GNNAGG_ALL_TYPES(combine_softmax), GNNAGG_ALL_TYPES(combine_sums)};

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
