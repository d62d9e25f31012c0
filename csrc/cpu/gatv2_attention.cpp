// gatv2_attention and its gradient on the CPU: checks, outputs, padded parameters, and the passes of
// gatv2_attention_kernel.h and gatv2_attention_backward_kernel.h.
#include "cpu/score_attention_host.h"

namespace gnnagg::cpu {
namespace {

// Groups of spans whose gradients of att and W are kept apart: no more threads than that work on one call.
constexpr int64_t kMostGroups = 128;

// att [H, C] or, with D columns, W [F, D] transposed, as [D, padded row].
template <typename Acc>
void pad(const ScoreShape& shape, const Acc* from, int64_t columns, Acc* to) {
  for (int64_t d = 0; d < columns; ++d) {
    for (int64_t f = 0; f < shape.width; ++f) {
      to[d * shape.padded + f / shape.channels * shape.stride + f % shape.channels] = from[f * columns + d];
    }
  }
}

Tensor padded(const ScoreShape& shape, const Tensor& from, int64_t columns) {
  Tensor to = bridge::zeros_like_device(from, {columns, shape.padded}, shape.acc);
  if (shape.acc == ScalarType::Double) {
    pad(shape, bridge::read_pointer<double>(from), columns, bridge::write_pointer<double>(to));
  } else {
    pad(shape, bridge::read_pointer<float>(from), columns, bridge::write_pointer<float>(to));
  }
  return to;
}

// The other way, summed over groups in order: [groups, D, padded row] to [F, D].
template <typename Acc>
void sum_groups(const ScoreShape& shape, const Acc* from, int64_t groups, int64_t columns, Acc* to) {
  for (int64_t f = 0; f < shape.width; ++f) {
    for (int64_t d = 0; d < columns; ++d) {
      Acc sum = Acc(0);
      for (int64_t group = 0; group < groups; ++group) {
        sum += from[(group * columns + d) * shape.padded + f / shape.channels * shape.stride + f % shape.channels];
      }
      to[f * columns + d] = sum;
    }
  }
}

void sum_groups(const ScoreShape& shape, const Tensor& from, int64_t groups, int64_t columns, Tensor& to) {
  if (shape.acc == ScalarType::Double) {
    sum_groups(shape, bridge::read_pointer<double>(from), groups, columns, bridge::write_pointer<double>(to));
  } else {
    sum_groups(shape, bridge::read_pointer<float>(from), groups, columns, bridge::write_pointer<float>(to));
  }
}

ScoreShape checked(const char* op, const Tensor& l, const Tensor& r, const Tensor& att, const OptionalTensor& edge_attr,
                   const OptionalTensor& edge_weight, const Tensor& rowptr, const Tensor& col, const Tensor& spans,
                   const Tensor& splits, const OptionalTensor& perm) {
  STD_TORCH_CHECK(att.dim() == 2, op, ": att must be [H, C], got ", att.dim(), "-D");
  const ScoreShape shape(op, l, r, "r", att.size(0), edge_attr, rowptr, col, spans, splits, perm);
  shape.check_sources(l, "l");
  bridge::check_tensor(att, op, "att", shape.acc, {shape.heads, shape.channels});
  STD_TORCH_CHECK(edge_attr.has_value() == edge_weight.has_value(), op, ": edge_attr and edge_weight go together");
  if (edge_weight) bridge::check_tensor(*edge_weight, op, "edge_weight", shape.acc, {shape.width, shape.edge_dim});
  return shape;
}

}  // namespace

const ScoreKernels& score_kernels() {
#if defined(__x86_64__)
  const Kernels* level = &kernels();
  if (level == &kKernelsAvx512) return kScoreAvx512;
  if (level == &kKernelsAvx2) return kScoreAvx2;
#endif
  return kScoreBaseline;
}

std::tuple<Tensor, Tensor> gatv2_attention(Tensor l, Tensor r, Tensor att, OptionalTensor edge_attr,
                                           OptionalTensor edge_weight, Tensor rowptr, Tensor col, Tensor spans,
                                           Tensor splits, OptionalTensor perm, OptionalTensor seed,
                                           double negative_slope, double dropout, OptionalTensor, OptionalTensor,
                                           OptionalTensor, OptionalTensor, OptionalTensor) {
  constexpr const char* kOp = "gatv2_attention";
  const ScoreShape shape = checked(kOp, l, r, att, edge_attr, edge_weight, rowptr, col, spans, splits, perm);
  Gatv2Args args = {};
  args.score = shape.rows(edge_attr, perm, dropout_args(kOp, seed, dropout));
  Tensor out = shape.empty({shape.num_dst, shape.width}, shape.type, r);
  Tensor lse = shape.empty({shape.num_dst, shape.heads}, shape.acc, r);
  if (shape.num_dst == 0) return {out, lse};
  args.result.piece = shape.padded + 2 * shape.heads;
  Tensor partials =
      shape.empty({count_split_rows(splits) ? 2 * shape.csr.num_spans : 0, args.result.piece}, shape.acc, r);
  Tensor att_row = padded(shape, att, 1);
  Tensor matrix = edge_weight ? padded(shape, *edge_weight, shape.edge_dim) : att_row;
  args.l = l.const_data_ptr();
  args.r = r.const_data_ptr();
  args.att = att_row.const_data_ptr();
  args.matrix = edge_weight ? matrix.const_data_ptr() : nullptr;
  args.negative_slope = negative_slope;
  args.result.out = out.mutable_data_ptr();
  args.result.lse = lse.mutable_data_ptr();
  args.result.partials = partials.mutable_data_ptr();
  const FeatureType t = feature_type(shape.type);
  const ScoreKernels& table = score_kernels();
  run_pass(shape, args.score, shape.csr.num_spans, splits, args.result, table.combine_softmax[t],
           [&](int64_t begin, int64_t end) { table.gatv2_spans[t](args, begin, end); });
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gatv2_attention_backward(
    Tensor grad, Tensor l, Tensor r, Tensor att, OptionalTensor edge_attr, OptionalTensor edge_weight, Tensor out,
    Tensor lse, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, OptionalTensor perm, Tensor t_rowptr,
    Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits, OptionalTensor seed, double negative_slope,
    double dropout, bool need_edge) {
  constexpr const char* kOp = "gatv2_attention_backward";
  const ScoreShape shape = checked(kOp, l, r, att, edge_attr, edge_weight, rowptr, col, spans, splits, perm);
  shape.check_targets(grad, "grad");
  shape.check_targets(out, "out");
  bridge::check_tensor(lse, kOp, "lse", shape.acc, {shape.num_dst, shape.heads});
  Gatv2RowsArgs rows = {};
  rows.score = shape.rows(edge_attr, perm, dropout_args(kOp, seed, dropout));
  Gatv2SourcesArgs sources = {};
  sources.score = shape.sources(edge_attr, perm, t_rowptr, t_col, t_slot, t_spans, t_splits);

  const bool with_edges = need_edge && edge_attr.has_value();
  const int64_t columns = with_edges ? shape.edge_dim : 0, num_spans = shape.csr.num_spans;
  Tensor dl = shape.empty({shape.num_src, shape.width}, shape.type, l);
  Tensor dr = shape.empty({shape.num_dst, shape.width}, shape.type, l);
  Tensor d_att = shape.empty({shape.heads, shape.channels}, shape.acc, l);
  Tensor d_edge_attr =
      with_edges ? shape.empty({shape.num_edges, columns}, shape.type, l) : shape.empty({0}, shape.type, l);
  Tensor d_edge_weight =
      with_edges ? shape.empty({shape.width, columns}, shape.acc, l) : shape.empty({0}, shape.acc, l);
  const int64_t groups = num_spans < kMostGroups ? num_spans : kMostGroups;
  Tensor weights = shape.empty({shape.num_edges, 2, shape.heads}, shape.acc, l);
  Tensor att_groups = bridge::zeros_like_device(l, {groups, shape.padded}, shape.acc);
  Tensor matrix_groups = bridge::zeros_like_device(l, {with_edges ? groups : 0, columns, shape.padded}, shape.acc);
  const int64_t row_places = count_split_rows(splits) ? 2 * num_spans : 0;
  const int64_t source_places = count_split_rows(t_splits) ? 2 * sources.score.csr.num_spans : 0;
  Tensor partials = shape.empty({row_places > source_places ? row_places : source_places, shape.padded}, shape.acc, l);
  Tensor att_row = padded(shape, att, 1);
  Tensor matrix = edge_weight ? padded(shape, *edge_weight, shape.edge_dim) : att_row;

  rows.grad = sources.grad = grad.const_data_ptr();
  rows.l = sources.l = l.const_data_ptr();
  rows.r = sources.r = r.const_data_ptr();
  rows.out = out.const_data_ptr();
  rows.lse = lse.const_data_ptr();
  rows.att = sources.att = att_row.const_data_ptr();
  rows.matrix = sources.matrix = edge_weight ? matrix.const_data_ptr() : nullptr;
  rows.negative_slope = sources.negative_slope = negative_slope;
  rows.weights = weights.mutable_data_ptr();
  sources.weights = rows.weights;
  rows.d_att = att_groups.mutable_data_ptr();
  rows.d_matrix = with_edges ? matrix_groups.mutable_data_ptr() : nullptr;
  rows.d_edge_attr = with_edges ? d_edge_attr.mutable_data_ptr() : nullptr;
  rows.num_groups = groups;
  rows.result.first = dr.mutable_data_ptr();
  rows.result.factors = rows.att;
  sources.result.first = dl.mutable_data_ptr();
  sources.result.first_scale = 1.0;
  rows.result.partials = sources.result.partials = partials.mutable_data_ptr();
  rows.result.piece = sources.result.piece = shape.padded;

  const FeatureType t = feature_type(shape.type);
  const ScoreKernels& table = score_kernels();
  run_pass(shape, rows.score, groups, splits, rows.result, table.combine_sums[t],
           [&](int64_t begin, int64_t end) { table.gatv2_rows[t](rows, begin, end); });
  sum_groups(shape, att_groups, groups, 1, d_att);
  if (with_edges) {
    sum_groups(shape, matrix_groups, groups, columns, d_edge_weight);
    clear_removed_edges(shape.csr, rows.score.perm, shape.num_edges, d_edge_attr);
  }
  run_pass(shape, sources.score, sources.score.csr.num_spans, t_splits, sources.result, table.combine_sums[t],
           [&](int64_t begin, int64_t end) { table.gatv2_sources[t](sources, begin, end); });
  return {dl, dr, d_att, d_edge_attr, d_edge_weight};
}

}  // namespace gnnagg::cpu
