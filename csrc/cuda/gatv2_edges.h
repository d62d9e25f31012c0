// What gatv2_attention does for the features of edges beside its walk over nodes.
#pragma once

#include "bridge/attention.h"

namespace gnnagg::bridge {

// Edge features as the kernels take them (edge_features.cuh).
struct PackedEdges {
  Tensor attr;    // [num_edges, D'] by slot
  Tensor weight;  // [D', H * C], W transposed
  int64_t dims;   // D
};

// Checks edge features [num_edges, D] and W [H * C, D], which come together, and packs them; none where there are none.
std::optional<PackedEdges> pack_edges(const char* op, const HeadShape& shape, const CsrArguments& csr, const Tensor& l,
                                      const OptionalTensor& perm, const OptionalTensor& attr,
                                      const OptionalTensor& weight);

struct EdgeFeatureGradients {
  Tensor d_attr;    // [num_edges, D], by edge
  Tensor d_weight;  // [H * C, D]
};

// `ds` [num_edges, H] is by slot.
EdgeFeatureGradients gatv2_edge_gradient(const HeadShape& shape, const Tensor& l, const Tensor& r, const Tensor& att,
                                         const PackedEdges& edges, const Tensor& ds, const CsrArguments& csr,
                                         const OptionalTensor& perm, double negative_slope);

}  // namespace gnnagg::bridge
