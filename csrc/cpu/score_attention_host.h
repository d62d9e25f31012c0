// What the host sides of gatv2_attention and dot_attention share: shapes, padded rows, the running of passes.
#pragma once

#include "cpu/attention_host.h"
#include "cpu/score_attention_args.h"

namespace gnnagg::cpu {

// Sizes that a forward and a backward call are checked against, and the CSR of the forward.
struct ScoreShape {
  const char* op;
  CsrArgs csr;
  int64_t num_src, num_dst, heads, channels, width, num_edges, edge_dim;
  int64_t stride, padded;  // of a head in a padded row, and of the row
  int64_t edge_stride;
  ScalarType type, acc, index;

  ScoreShape(const char* op_name, const Tensor& sources, const Tensor& targets, const char* targets_name,
             int64_t num_heads, const OptionalTensor& edge_attr, const Tensor& rowptr, const Tensor& col,
             const Tensor& spans, const Tensor& splits, const OptionalTensor& perm)
      : op(op_name),
        csr(csr_args(op_name, rowptr, col, spans, &splits)),
        num_dst(csr.num_rows),
        heads(num_heads),
        num_edges(col.numel()),
        edge_dim(0),
        type(sources.scalar_type()),
        acc(bridge::accumulate_type(type)),
        index(rowptr.scalar_type()) {
    STD_TORCH_CHECK(bridge::is_feature_type(type), op, ": features must be float32, float64, float16 or bfloat16");
    bridge::check_tensor(targets, op, targets_name, type, {num_dst, -1});
    width = targets.size(1);
    STD_TORCH_CHECK(heads >= 1 && width >= heads && width % heads == 0, op, ": heads = ", heads, " must divide ", width,
                    " features, and leave some");
    channels = width / heads;
    stride = ceil_div<int64_t>(channels, kScoreLanes) * kScoreLanes;
    padded = heads * stride;
    num_src = sources.dim() == 2 ? sources.size(0) : 0;
    if (edge_attr) {
      bridge::check_tensor(*edge_attr, op, "edge_attr", type, {num_edges, -1});
      edge_dim = edge_attr->size(1);
      STD_TORCH_CHECK(edge_dim >= 1, op, ": edge_attr must have columns");
    }
    edge_stride = ceil_div<int64_t>(edge_dim, kScoreLanes) * kScoreLanes;
    if (perm) bridge::check_tensor(*perm, op, "perm", index, {num_edges});
  }

  void check_sources(const Tensor& tensor, const char* name) const {
    bridge::check_tensor(tensor, op, name, type, {num_src, width});
  }
  void check_targets(const Tensor& tensor, const char* name) const {
    bridge::check_tensor(tensor, op, name, type, {num_dst, width});
  }

  int64_t bytes_of(int64_t rows) const { return rows * width * element_bytes(type); }

  // For a pass over the rows of the forward's CSR.
  ScoreArgs rows(const OptionalTensor& edge_attr, const OptionalTensor& perm, const DropoutArgs& dropout) const {
    ScoreArgs args = {};
    args.csr = csr;
    args.perm = index_array(perm);
    args.edge_attr = bridge::read_pointer<void>(edge_attr);
    args.num_edges = num_edges;
    args.num_cols = num_src;
    args.heads = heads;
    args.channels = channels;
    args.stride = stride;
    args.edge_dim = edge_dim;
    args.edge_stride = edge_stride;
    args.dropout = dropout;
    return args;
  }

  // For a pass over the sources, which draws no masks.
  ScoreArgs sources(const OptionalTensor& edge_attr, const OptionalTensor& perm, const Tensor& t_rowptr,
                    const Tensor& t_col, const Tensor& t_slot, const Tensor& t_spans, const Tensor& t_splits) const {
    ScoreArgs args = rows(edge_attr, perm, {false, 0, 0, 1.0});
    args.csr = csr_args(op, t_rowptr, t_col, t_spans, &t_splits);
    STD_TORCH_CHECK(t_rowptr.scalar_type() == index && args.csr.num_rows == num_src, op,
                    ": t_rowptr must be the transpose's, [", num_src + 1, "], got [", args.csr.num_rows + 1, "]");
    bridge::check_tensor(t_col, op, "t_col", index, {num_edges});
    bridge::check_tensor(t_slot, op, "t_slot", index, {num_edges});
    args.slot = index_array(t_slot);
    args.num_cols = num_dst;
    return args;
  }

  Tensor empty(std::initializer_list<int64_t> sizes, ScalarType scalar, const Tensor& like) const {
    return bridge::empty_like_device(like, sizes, scalar);
  }
};

// Spans, then split rows. `spans(begin, end)` runs items of `num_items`.
template <typename Spans, typename Rows, typename Combine>
void run_pass(const ScoreShape& shape, const ScoreArgs& args, int64_t num_items, const Tensor& splits, const Rows& rows,
              Combine combine, const Spans& spans) {
  bridge::parallel_items(num_items, 1, shape.bytes_of(shape.num_edges + args.csr.num_rows), spans);
  const int64_t num_splits = count_split_rows(splits);
  bridge::parallel_items(num_splits, 1, num_splits * 2 * rows.piece * element_bytes(shape.acc),
                         [&](int64_t begin, int64_t end) { combine(args, rows, begin, end); });
}

}  // namespace gnnagg::cpu
