// The CPU ops, as they are registered, and what they share: tensors to the plain arguments of kernels.h.
#pragma once

#include <cstring>
#include <tuple>

#include "bridge/check.h"
#include "bridge/parallel.h"
#include "cpu/kernels.h"

namespace gnnagg::cpu {

using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

inline FeatureType feature_type(ScalarType type) {
  switch (type) {
    case ScalarType::Double: return kDouble;
    case ScalarType::Half: return kHalf;
    case ScalarType::BFloat16: return kBFloat16;
    default: return kFloat;
  }
}

// Null for a tensor that there is not.
inline IndexArray index_array(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.scalar_type() == ScalarType::Long};
}
inline IndexArray index_array(const OptionalTensor& tensor) {
  return tensor ? index_array(*tensor) : IndexArray{nullptr, false};
}
inline IndexOutput index_output(const Tensor& tensor) {
  return {tensor.mutable_data_ptr(), tensor.scalar_type() == ScalarType::Long};
}

// Checks one CSR and its schedule; `splits` may be null.
inline CsrArgs csr_args(const char* op, const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                        const Tensor* splits) {
  const ScalarType index = bridge::check_csr(rowptr, col, op);
  const int64_t num_spans = bridge::check_schedule(spans, index, op);
  if (splits) bridge::check_tensor(*splits, op, "splits", index, {num_spans + 1, 2});
  return {index_array(rowptr), index_array(col),
          index_array(spans),  splits ? index_array(*splits) : IndexArray{nullptr, false},
          rowptr.numel() - 1,  num_spans};
}

inline int64_t element_bytes(ScalarType type) {
  return type == ScalarType::Double ? 8 : type == ScalarType::Float ? 4 : 2;
}

// Bytes of `rows` feature rows of every batch.
inline int64_t bytes_moved(const bridge::FeatureShape& shape, int64_t rows, ScalarType type) {
  return shape.batch * rows * shape.width * element_bytes(type);
}

// Slots behind rowptr[R] are removed edges: their rows of `out` [E, ...] become 0.
inline void clear_removed_edges(const CsrArgs& csr, const IndexArray& perm, int64_t num_edges, Tensor& out) {
  const int64_t live = csr.rowptr[csr.num_rows];
  if (live >= num_edges) return;
  const int64_t bytes = out.numel() / num_edges * element_bytes(out.scalar_type());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  for (int64_t slot = live; slot < num_edges; ++slot) {
    std::memset(to + (perm ? perm[slot] : slot) * bytes, 0, size_t(bytes));
  }
}

// Split rows that the schedule lists.
int64_t count_split_rows(const Tensor& splits);

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_from_coo(Tensor row, Tensor col, int64_t num_rows, int64_t num_cols,
                                                        int64_t loops, bool wide);
std::tuple<Tensor, Tensor, Tensor> csr_transpose(Tensor rowptr, Tensor col, int64_t num_cols);
std::tuple<Tensor, Tensor> build_spans(Tensor rowptr, int64_t num_edges, int64_t num_spans);

// The arguments t_* of the differentiable ops are for autograd formulas; no kernel reads them.
Tensor aggregate_sum(Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, OptionalTensor perm,
                     OptionalTensor weight, OptionalTensor src_scale, OptionalTensor dst_scale, bool mean, bool acc_out,
                     OptionalTensor t_rowptr, OptionalTensor t_col, OptionalTensor t_slot, OptionalTensor t_spans,
                     OptionalTensor t_splits);
std::tuple<Tensor, Tensor> aggregate_extremum(Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits,
                                              bool minimum, bool with_arg, OptionalTensor t_rowptr,
                                              OptionalTensor t_col, OptionalTensor t_slot, OptionalTensor t_spans,
                                              OptionalTensor t_splits);
Tensor extremum_backward(Tensor grad, Tensor arg, Tensor x, Tensor out, Tensor rowptr, Tensor col, Tensor spans,
                         Tensor splits, Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> aggregate_multi(
    Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, int64_t which, bool with_arg,
    OptionalTensor t_rowptr, OptionalTensor t_col, OptionalTensor t_slot, OptionalTensor t_spans,
    OptionalTensor t_splits);
Tensor edge_dot(Tensor a, Tensor b, Tensor rowptr, Tensor col, Tensor spans, OptionalTensor perm, int64_t heads);
Tensor dropout_mask(Tensor seed, int64_t num_edges, int64_t heads, double p);
Tensor edge_softmax(Tensor score, Tensor rowptr, Tensor spans, Tensor splits, OptionalTensor perm);
Tensor edge_softmax_backward(Tensor grad, Tensor alpha, Tensor rowptr, Tensor spans, Tensor splits,
                             OptionalTensor perm);
std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention(Tensor z, Tensor a_src, OptionalTensor a_dst,
                                                         OptionalTensor edge_score, Tensor rowptr, Tensor col,
                                                         Tensor spans, Tensor splits, OptionalTensor perm,
                                                         OptionalTensor seed, double negative_slope, double dropout,
                                                         bool with_positive, OptionalTensor t_rowptr,
                                                         OptionalTensor t_col, OptionalTensor t_slot,
                                                         OptionalTensor t_spans, OptionalTensor t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward(
    Tensor grad, Tensor z, Tensor a_src, OptionalTensor a_dst, OptionalTensor edge_score, Tensor out, Tensor lse,
    Tensor positive_out, Tensor positive_alpha, Tensor rowptr, Tensor col, Tensor spans, Tensor splits,
    OptionalTensor perm, Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits,
    OptionalTensor seed, double negative_slope, double dropout, bool need_dst, bool need_edge);
std::tuple<Tensor, Tensor> gatv2_attention(Tensor l, Tensor r, Tensor att, OptionalTensor edge_attr,
                                           OptionalTensor edge_weight, Tensor rowptr, Tensor col, Tensor spans,
                                           Tensor splits, OptionalTensor perm, OptionalTensor seed,
                                           double negative_slope, double dropout, OptionalTensor t_rowptr,
                                           OptionalTensor t_col, OptionalTensor t_slot, OptionalTensor t_spans,
                                           OptionalTensor t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gatv2_attention_backward(
    Tensor grad, Tensor l, Tensor r, Tensor att, OptionalTensor edge_attr, OptionalTensor edge_weight, Tensor out,
    Tensor lse, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, OptionalTensor perm, Tensor t_rowptr,
    Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits, OptionalTensor seed, double negative_slope,
    double dropout, bool need_edge);
std::tuple<Tensor, Tensor, Tensor> dot_attention(Tensor q, Tensor k, Tensor v, OptionalTensor edge_query,
                                                 OptionalTensor edge_attr, Tensor rowptr, Tensor col, Tensor spans,
                                                 Tensor splits, OptionalTensor perm, OptionalTensor seed, int64_t heads,
                                                 double scale, double dropout, OptionalTensor t_rowptr,
                                                 OptionalTensor t_col, OptionalTensor t_slot, OptionalTensor t_spans,
                                                 OptionalTensor t_splits);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> dot_attention_backward(
    Tensor grad, Tensor grad_edge_out, Tensor q, Tensor k, Tensor v, OptionalTensor edge_query,
    OptionalTensor edge_attr, Tensor out, Tensor lse, Tensor edge_out, Tensor rowptr, Tensor col, Tensor spans,
    Tensor splits, OptionalTensor perm, Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits,
    OptionalTensor seed, int64_t heads, double scale, double dropout);
Tensor propagate(Tensor x, OptionalTensor x0, Tensor rowptr, Tensor col, Tensor spans, Tensor splits,
                 OptionalTensor perm, OptionalTensor weight, int64_t hops, double teleport, bool return_all,
                 OptionalTensor t_rowptr, OptionalTensor t_col, OptionalTensor t_slot, OptionalTensor t_spans,
                 OptionalTensor t_splits);

}  // namespace gnnagg::cpu
