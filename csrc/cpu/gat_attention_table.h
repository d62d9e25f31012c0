// Fills the table of one level with the kernels of gat_attention and edge_softmax. Included once per level.
#pragma once

#include "cpu/edge_softmax_kernel.h"
#include "cpu/gat_attention_backward_kernel.h"
#include "cpu/gat_attention_kernel.h"
#include "cpu/gat_combine.h"

// One entry per FeatureType.
#define GNNAGG_ALL_TYPES(kernel) {kernel<float>, kernel<double>, kernel<Half>, kernel<BFloat16>}
#define GNNAGG_ACCUMULATE_TYPES(kernel) {kernel<float>, kernel<double>}

namespace gnnagg::cpu::GNNAGG_LEVEL {

constexpr AttentionKernels kAttentionTable = {GNNAGG_ALL_TYPES(gat_spans),
                                              GNNAGG_ALL_TYPES(gat_combine),
                                              GNNAGG_ALL_TYPES(gat_prepare),
                                              GNNAGG_ALL_TYPES(gat_backward_spans),
                                              GNNAGG_ALL_TYPES(gat_backward_combine),
                                              GNNAGG_ACCUMULATE_TYPES(score_sum_spans),
                                              GNNAGG_ACCUMULATE_TYPES(score_sum_combine),
                                              GNNAGG_ALL_TYPES(edge_softmax_spans),
                                              GNNAGG_ALL_TYPES(edge_softmax_combine),
                                              GNNAGG_ALL_TYPES(edge_softmax_pieces),
                                              GNNAGG_ALL_TYPES(edge_softmax_backward_spans),
                                              GNNAGG_ALL_TYPES(edge_softmax_backward_combine),
                                              GNNAGG_ALL_TYPES(edge_softmax_backward_pieces)};

}  // namespace gnnagg::cpu::GNNAGG_LEVEL
