// gat_attention and its gradient on the CPU: checks, outputs, and the phases of gat_attention_kernel.h and
// gat_attention_backward_kernel.h.
#include "cpu/attention_host.h"

namespace gnnagg::cpu {
namespace {

// Rows that one turn of the node-by-node phase takes.
constexpr int64_t kRowsPerTurn = 256;
// Numbers per head of a record (a_dst, logsumexp, D), and of what a piece of a split row leaves.
constexpr int64_t kFieldsOfRecord = 3, kFieldsOfPiece = 3;

// Shape of the operands that forward and backward share.
struct GatShape {
  int64_t num_src, width, heads, num_edges;
  ScalarType type, acc, index;

  GatShape(const char* op, const Tensor& z, const Tensor& a_src, const Tensor& rowptr, const Tensor& col)
      : num_edges(col.numel()), type(z.scalar_type()), acc(bridge::accumulate_type(type)), index(rowptr.scalar_type()) {
    const bridge::FeatureShape shape(z, op, "z");
    STD_TORCH_CHECK(z.dim() == 2, op, ": z must be [num_src, F], got ", z.dim(), "-D");
    num_src = shape.rows;
    width = shape.width;
    bridge::check_tensor(a_src, op, "a_src", acc, {num_src, -1});
    heads = a_src.size(1);
    STD_TORCH_CHECK(heads >= 1 && width >= heads && width % heads == 0, op, ": a_src has ", heads,
                    " heads, which do not divide ", width, " features");
  }
};

// One allocation for what the phases of a call leave to each other, handed out piece by piece.
class Scratch {
 public:
  Scratch(const Tensor& like, ScalarType type, int64_t count)
      : memory_(bridge::empty_like_device(like, {count}, type)),
        next_(static_cast<char*>(memory_.mutable_data_ptr())),
        element_(element_bytes(type)) {}

  void* take(int64_t count) {
    void* taken = next_;
    next_ += count * element_;
    return taken;
  }

 private:
  Tensor memory_;
  char* next_;
  int64_t element_;
};

int64_t bytes_of(const GatShape& shape, int64_t rows) { return rows * shape.width * element_bytes(shape.type); }

}  // namespace

const AttentionKernels& attention_kernels() {
#if defined(__x86_64__)
  const Kernels* level = &kernels();
  if (level == &kKernelsAvx512) return kAttentionAvx512;
  if (level == &kKernelsAvx2) return kAttentionAvx2;
#endif
  return kAttentionBaseline;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention(Tensor z, Tensor a_src, OptionalTensor a_dst,
                                                         OptionalTensor edge_score, Tensor rowptr, Tensor col,
                                                         Tensor spans, Tensor splits, OptionalTensor perm,
                                                         OptionalTensor seed, double negative_slope, double dropout,
                                                         bool with_positive, OptionalTensor, OptionalTensor,
                                                         OptionalTensor, OptionalTensor, OptionalTensor) {
  constexpr const char* kOp = "gat_attention";
  GatArgs args = {};
  args.csr = csr_args(kOp, rowptr, col, spans, &splits);
  const GatShape shape(kOp, z, a_src, rowptr, col);
  const int64_t num_rows = args.csr.num_rows, num_spans = args.csr.num_spans, heads = shape.heads, width = shape.width;
  if (a_dst) bridge::check_tensor(*a_dst, kOp, "a_dst", shape.acc, {num_rows, heads});
  if (edge_score) bridge::check_tensor(*edge_score, kOp, "edge_score", shape.acc, {shape.num_edges, heads});
  if (perm) bridge::check_tensor(*perm, kOp, "perm", shape.index, {shape.num_edges});
  args.dropout = dropout_args(kOp, seed, dropout);

  const auto make = [&](bool wanted, int64_t columns, ScalarType type) {
    return wanted ? bridge::empty_like_device(z, {num_rows, columns}, type) : bridge::empty_like_device(z, {0}, type);
  };
  Tensor out = make(true, width, shape.type), lse = make(true, heads, shape.acc);
  Tensor positive_out = make(with_positive, width, shape.type);
  Tensor positive_alpha = make(with_positive, heads, shape.acc);
  if (num_rows == 0) return {out, lse, positive_out, positive_alpha};
  const int64_t places = 2 * num_spans, features = places * width;
  Scratch scratch(z, shape.acc, (with_positive ? 2 : 1) * features + places * kFieldsOfPiece * heads);
  args.z = z.const_data_ptr();
  args.a_src = a_src.const_data_ptr();
  args.a_dst = bridge::read_pointer<void>(a_dst);
  args.edge_score = bridge::read_pointer<void>(edge_score);
  args.perm = index_array(perm);
  args.out = out.mutable_data_ptr();
  args.lse = lse.mutable_data_ptr();
  args.positive_out = with_positive ? positive_out.mutable_data_ptr() : nullptr;
  args.positive_alpha = with_positive ? positive_alpha.mutable_data_ptr() : nullptr;
  args.partials = scratch.take(features);
  args.positive_partials = with_positive ? scratch.take(features) : nullptr;
  args.partial_state = scratch.take(places * kFieldsOfPiece * heads);
  args.num_src = shape.num_src;
  args.num_edges = shape.num_edges;
  args.width = width;
  args.heads = heads;
  args.negative_slope = negative_slope;

  const FeatureType t = feature_type(shape.type);
  const AttentionKernels& table = attention_kernels();
  const int64_t num_splits = count_split_rows(splits);
  bridge::parallel_items(num_spans, 1, bytes_of(shape, shape.num_edges + num_rows),
                         [&](int64_t begin, int64_t end) { table.gat_spans[t](args, begin, end); });
  bridge::parallel_items(num_splits, 1, bytes_of(shape, 2 * num_splits),
                         [&](int64_t begin, int64_t end) { table.gat_combine[t](args, begin, end); });
  return {out, lse, positive_out, positive_alpha};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward(
    Tensor grad, Tensor z, Tensor a_src, OptionalTensor a_dst, OptionalTensor edge_score, Tensor out, Tensor lse,
    Tensor positive_out, Tensor positive_alpha, Tensor rowptr, Tensor col, Tensor spans, Tensor splits,
    OptionalTensor perm, Tensor t_rowptr, Tensor t_col, Tensor t_slot, Tensor t_spans, Tensor t_splits,
    OptionalTensor seed, double negative_slope, double dropout, bool need_dst, bool need_edge) {
  constexpr const char* kOp = "gat_attention_backward";
  const CsrArgs csr = csr_args(kOp, rowptr, col, spans, &splits);
  const GatShape shape(kOp, z, a_src, rowptr, col);
  const int64_t num_rows = csr.num_rows, heads = shape.heads, width = shape.width;
  GatBackwardArgs args = {};
  args.csr = csr_args(kOp, t_rowptr, t_col, t_spans, &t_splits);
  STD_TORCH_CHECK(t_rowptr.scalar_type() == shape.index && args.csr.num_rows == shape.num_src, kOp,
                  ": t_rowptr must be the transpose's, [", shape.num_src + 1, "], got [", args.csr.num_rows + 1, "]");
  bridge::check_tensor(t_col, kOp, "t_col", shape.index, {shape.num_edges});
  bridge::check_tensor(t_slot, kOp, "t_slot", shape.index, {shape.num_edges});
  bridge::check_tensor(grad, kOp, "grad", shape.type, {num_rows, width});
  bridge::check_tensor(out, kOp, "out", shape.type, {num_rows, width});
  bridge::check_tensor(lse, kOp, "lse", shape.acc, {num_rows, heads});
  const bool has_positive = positive_out.dim() == 2;
  if (has_positive) {
    bridge::check_tensor(positive_out, kOp, "positive_out", shape.type, {num_rows, width});
    bridge::check_tensor(positive_alpha, kOp, "positive_alpha", shape.acc, {num_rows, heads});
  }
  if (a_dst) bridge::check_tensor(*a_dst, kOp, "a_dst", shape.acc, {num_rows, heads});
  if (edge_score) bridge::check_tensor(*edge_score, kOp, "edge_score", shape.acc, {shape.num_edges, heads});
  if (perm) bridge::check_tensor(*perm, kOp, "perm", shape.index, {shape.num_edges});
  args.dropout = dropout_args(kOp, seed, dropout);

  Tensor dz = bridge::empty_like_device(z, {shape.num_src, width}, shape.type);
  Tensor da_src = bridge::empty_like_device(z, {shape.num_src, heads}, shape.acc);
  Tensor da_dst = need_dst ? bridge::empty_like_device(z, {num_rows, heads}, shape.acc)
                           : bridge::empty_like_device(z, {0}, shape.acc);
  Tensor dedge = need_edge ? bridge::empty_like_device(z, {shape.num_edges, heads}, shape.acc)
                           : bridge::empty_like_device(z, {0}, shape.acc);
  const bool sums_dst = need_dst && !has_positive;
  Tensor by_slot = bridge::empty_like_device(z, {sums_dst && !need_edge ? shape.num_edges : 0, heads}, shape.acc);
  const int64_t places = 2 * args.csr.num_spans, num_splits = count_split_rows(t_splits);
  const int64_t row_places = sums_dst ? 2 * csr.num_spans : 0;
  Scratch scratch(z, shape.acc, num_rows * kFieldsOfRecord * heads + places * (width + heads) + row_places * heads);
  void* record = scratch.take(num_rows * kFieldsOfRecord * heads);
  const FeatureType t = feature_type(shape.type), acc_type = feature_type(shape.acc);
  const AttentionKernels& table = attention_kernels();

  const GatPrepareArgs prepare = {grad.const_data_ptr(),
                                  out.const_data_ptr(),
                                  lse.const_data_ptr(),
                                  bridge::read_pointer<void>(a_dst),
                                  has_positive ? positive_out.const_data_ptr() : nullptr,
                                  has_positive ? positive_alpha.const_data_ptr() : nullptr,
                                  record,
                                  need_dst ? da_dst.mutable_data_ptr() : nullptr,
                                  num_rows,
                                  width,
                                  heads,
                                  negative_slope};
  bridge::parallel_items(num_rows, kRowsPerTurn, bytes_of(shape, 2 * num_rows),
                         [&](int64_t begin, int64_t end) { table.gat_prepare[t](prepare, begin, end); });

  args.slot = index_array(t_slot);
  args.perm = index_array(perm);
  args.grad = grad.const_data_ptr();
  args.z = z.const_data_ptr();
  args.a_src = a_src.const_data_ptr();
  args.edge_score = bridge::read_pointer<void>(edge_score);
  args.record = record;
  args.dz = dz.mutable_data_ptr();
  args.da_src = da_src.mutable_data_ptr();
  args.ds = need_edge ? dedge.mutable_data_ptr() : (sums_dst ? by_slot.mutable_data_ptr() : nullptr);
  args.partials = scratch.take(places * width);
  args.partial_scores = scratch.take(places * heads);
  args.num_dst = num_rows;
  args.num_edges = shape.num_edges;
  args.width = width;
  args.heads = heads;
  args.negative_slope = negative_slope;
  args.ds_by_edge = need_edge;
  if (shape.num_src > 0) {
    bridge::parallel_items(args.csr.num_spans, 1, bytes_of(shape, shape.num_edges + shape.num_src),
                           [&](int64_t begin, int64_t end) { table.gat_backward_spans[t](args, begin, end); });
    bridge::parallel_items(num_splits, 1, bytes_of(shape, 2 * num_splits),
                           [&](int64_t begin, int64_t end) { table.gat_backward_combine[t](args, begin, end); });
  }
  if (need_edge) clear_removed_edges(csr, args.perm, shape.num_edges, dedge);
  if (!sums_dst || num_rows == 0) return {dz, da_src, da_dst, dedge};

  const ScoreSumArgs sum = {csr,
                            args.ds,
                            need_edge ? args.perm : IndexArray{nullptr, false},
                            da_dst.mutable_data_ptr(),
                            scratch.take(row_places * heads),
                            shape.num_edges,
                            heads};
  const int64_t score_bytes = shape.num_edges * heads * element_bytes(shape.acc);
  bridge::parallel_items(csr.num_spans, 1, score_bytes,
                         [&](int64_t begin, int64_t end) { table.score_sum_spans[acc_type](sum, begin, end); });
  bridge::parallel_items(count_split_rows(splits), 1, score_bytes,
                         [&](int64_t begin, int64_t end) { table.score_sum_combine[acc_type](sum, begin, end); });
  return {dz, da_src, da_dst, dedge};
}

}  // namespace gnnagg::cpu
