// What dot_attention does for the features of edges beside its walk over nodes (edge_terms.cu). Letters as there.
#pragma once

#include "bridge/cuda_dispatch.h"

namespace gnnagg::bridge {

// Features of edges and where they lie.
struct EdgeAttributes {
  const CsrArguments& csr;
  const OptionalTensor& perm;  // [num_edges] edge id of each slot
  const Tensor& attr;          // [num_edges, D]
  int64_t heads;

  // Checks the tensors against the CSR and `type`.
  EdgeAttributes(const char* op, const CsrArguments& rows, const OptionalTensor& ids, const Tensor& features,
                 int64_t num_heads, ScalarType type);
  int64_t dims() const { return attr.size(1); }
  ScalarType acc() const { return accumulate_type(attr.scalar_type()); }
};

// Numbers [num_edges, H] by slot.
struct EdgeTerms {
  Tensor terms;  // scale * <query[i, h], e>, as the scaled scores of softmax.cuh
  Tensor dots;   // <grad[i, h], e> where there is a gradient, else room for as many numbers
};

EdgeTerms edge_terms(const EdgeAttributes& edges, const Tensor& query, const OptionalTensor& grad, double scale);

// [num_dst, H, D]: the sums over a row of e times the number of every edge. With `lse` that is a scaled score, and replaced by the weight
// exp(score - logsumexp) * mask first.
Tensor edge_sums(const char* op, const EdgeAttributes& edges, const Tensor& numbers, const OptionalTensor& lse,
                 const OptionalTensor& seed, double dropout);

// [num_edges, D]: the sum over heads of ds * query[i, h] + w * grad[i, h].
Tensor edge_gradient(const EdgeAttributes& edges, const Tensor& query, const Tensor& grad, const Tensor& weights,
                     const Tensor& ds);

}  // namespace gnnagg::bridge
