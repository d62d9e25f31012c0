// dot_attention and its gradient on the CPU: checks, outputs, and the passes of dot_attention_kernel.h and
// dot_attention_backward_kernel.h.
#include "cpu/score_attention_host.h"

namespace gnnagg::cpu {
namespace {

ScoreShape checked(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& edge_query,
                   const OptionalTensor& edge_attr, const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                   const Tensor& splits, const OptionalTensor& perm, int64_t heads) {
  const ScoreShape shape(op, k, q, "q", heads, edge_attr, rowptr, col, spans, splits, perm);
  shape.check_sources(k, "k");
  shape.check_sources(v, "v");
  STD_TORCH_CHECK(edge_attr.has_value() == edge_query.has_value(), op, ": edge_attr and edge_query go together");
  if (edge_query) {
    bridge::check_tensor(*edge_query, op, "edge_query", shape.acc, {shape.num_dst, heads, shape.edge_dim});
  }
  return shape;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> dot_attention(Tensor q, Tensor k, Tensor v, OptionalTensor edge_query,
                                                 OptionalTensor edge_attr, Tensor rowptr, Tensor col, Tensor spans,
                                                 Tensor splits, OptionalTensor perm, OptionalTensor seed, int64_t heads,
                                                 double scale, double dropout, OptionalTensor, OptionalTensor,
                                                 OptionalTensor, OptionalTensor, OptionalTensor) {
  constexpr const char* kOp = "dot_attention";
  const ScoreShape shape = checked(kOp, q, k, v, edge_query, edge_attr, rowptr, col, spans, splits, perm, heads);
  DotArgs args = {};
  args.score = shape.rows(edge_attr, perm, dropout_args(kOp, seed, dropout));
  Tensor out = shape.empty({shape.num_dst, shape.width}, shape.type, q);
  Tensor lse = shape.empty({shape.num_dst, heads}, shape.acc, q);
  Tensor edge_out =
      edge_attr ? shape.empty({shape.num_dst, heads, shape.edge_dim}, shape.acc, q) : shape.empty({0}, shape.acc, q);
  if (shape.num_dst == 0) return {out, lse, edge_out};
  args.result.piece = shape.padded + heads * shape.edge_stride + 2 * heads;
  Tensor partials =
      shape.empty({count_split_rows(splits) ? 2 * shape.csr.num_spans : 0, args.result.piece}, shape.acc, q);
  args.q = q.const_data_ptr();
  args.k = k.const_data_ptr();
  args.v = v.const_data_ptr();
  args.edge_query = bridge::read_pointer<void>(edge_query);
  args.scale = scale;
  args.result.out = out.mutable_data_ptr();
  args.result.lse = lse.mutable_data_ptr();
  args.result.edge_out = edge_attr ? edge_out.mutable_data_ptr() : nullptr;
  args.result.partials = partials.mutable_data_ptr();
  const FeatureType t = feature_type(shape.type);
  const ScoreKernels& table = score_kernels();
  run_pass(shape, args.score, shape.csr.num_spans, splits, args.result, table.combine_softmax[t],
           [&](int64_t begin, int64_t end) { table.dot_spans[t](args, begin, end); });
  return {out, lse, edge_out};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> dot_attention_backward(
    Tensor grad, Tensor grad_edge_out, Tensor q, Tensor k, Tensor v, OptionalTensor edge_query,
    OptionalTensor edge_attr, Tensor out, Tensor lse, Tensor edge_out, Tensor rowptr, Tensor col, Tensor spans,
    Tensor splits, OptionalTensor perm, Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits,
    OptionalTensor seed, int64_t heads, double scale, double dropout) {
  constexpr const char* kOp = "dot_attention_backward";
  const ScoreShape shape = checked(kOp, q, k, v, edge_query, edge_attr, rowptr, col, spans, splits, perm, heads);
  shape.check_targets(grad, "grad");
  shape.check_targets(out, "out");
  bridge::check_tensor(lse, kOp, "lse", shape.acc, {shape.num_dst, heads});
  const bool with_edges = edge_attr.has_value();
  if (with_edges) {
    bridge::check_tensor(edge_out, kOp, "edge_out", shape.acc, {shape.num_dst, heads, shape.edge_dim});
    bridge::check_tensor(grad_edge_out, kOp, "grad_edge_out", shape.acc, {shape.num_dst, heads, shape.edge_dim});
  }
  DotRowsArgs rows = {};
  rows.score = shape.rows(edge_attr, perm, dropout_args(kOp, seed, dropout));
  DotSourcesArgs sources = {};
  sources.score = shape.sources(edge_attr, perm, t_rowptr, t_col, t_slot, t_spans, t_splits);

  Tensor dq = shape.empty({shape.num_dst, shape.width}, shape.type, q);
  Tensor dk = shape.empty({shape.num_src, shape.width}, shape.type, q);
  Tensor dv = shape.empty({shape.num_src, shape.width}, shape.type, q);
  Tensor d_edge_query =
      with_edges ? shape.empty({shape.num_dst, heads, shape.edge_dim}, shape.acc, q) : shape.empty({0}, shape.acc, q);
  Tensor d_edge_attr =
      with_edges ? shape.empty({shape.num_edges, shape.edge_dim}, shape.type, q) : shape.empty({0}, shape.type, q);
  rows.result.piece = shape.padded + heads * shape.edge_stride;
  sources.result.piece = 2 * shape.padded;
  const int64_t row_places = count_split_rows(splits) ? 2 * shape.csr.num_spans : 0;
  const int64_t source_places = count_split_rows(t_splits) ? 2 * sources.score.csr.num_spans : 0;
  Tensor weights = shape.empty({shape.num_edges, 2, heads}, shape.acc, q);
  Tensor row_partials = shape.empty({row_places, rows.result.piece}, shape.acc, q);
  Tensor source_partials = shape.empty({source_places, sources.result.piece}, shape.acc, q);

  rows.grad = sources.grad = grad.const_data_ptr();
  rows.q = sources.q = q.const_data_ptr();
  rows.k = k.const_data_ptr();
  rows.v = v.const_data_ptr();
  rows.edge_query = bridge::read_pointer<void>(edge_query);
  rows.grad_edge_out = with_edges ? grad_edge_out.const_data_ptr() : nullptr;
  rows.edge_out = with_edges ? edge_out.const_data_ptr() : nullptr;
  rows.out = out.const_data_ptr();
  rows.lse = lse.const_data_ptr();
  rows.scale = scale;
  rows.weights = weights.mutable_data_ptr();
  sources.weights = rows.weights;
  rows.d_edge_attr = with_edges ? d_edge_attr.mutable_data_ptr() : nullptr;
  rows.result.first = dq.mutable_data_ptr();
  rows.result.first_scale = rows.result.wide_scale = sources.result.first_scale = scale;
  rows.result.wide = with_edges ? d_edge_query.mutable_data_ptr() : nullptr;
  rows.result.partials = row_partials.mutable_data_ptr();
  sources.result.first = dk.mutable_data_ptr();
  sources.result.second = dv.mutable_data_ptr();
  sources.result.partials = source_partials.mutable_data_ptr();

  const FeatureType t = feature_type(shape.type);
  const ScoreKernels& table = score_kernels();
  run_pass(shape, rows.score, shape.csr.num_spans, splits, rows.result, table.combine_sums[t],
           [&](int64_t begin, int64_t end) { table.dot_rows[t](rows, begin, end); });
  if (with_edges) clear_removed_edges(shape.csr, rows.score.perm, shape.num_edges, d_edge_attr);
  run_pass(shape, sources.score, sources.score.csr.num_spans, t_splits, sources.result, table.combine_sums[t],
           [&](int64_t begin, int64_t end) { table.dot_sources[t](sources, begin, end); });
  return {dq, dk, dv, d_edge_query, d_edge_attr};
}

}  // namespace gnnagg::cpu
