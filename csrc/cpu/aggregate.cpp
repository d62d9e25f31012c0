// aggregate_sum on the CPU: checks, output, and the two phases of aggregate_kernel.h, spans and split rows.
#include "cpu/ops.h"

namespace gnnagg::cpu {
namespace {

constexpr const char* kOp = "aggregate_sum";

}  // namespace

Tensor aggregate_sum(Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, OptionalTensor perm,
                     OptionalTensor weight, OptionalTensor src_scale, OptionalTensor dst_scale, bool mean, bool acc_out,
                     OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor) {
  const bridge::FeatureShape shape(x, kOp, "x");
  const ScalarType type = x.scalar_type(), acc = bridge::accumulate_type(type);
  SumArgs args = {};
  args.csr = csr_args(kOp, rowptr, col, spans, &splits);
  const int64_t num_edges = col.numel(), num_rows = args.csr.num_rows;
  args.heads = 1;
  if (perm) bridge::check_tensor(*perm, kOp, "perm", rowptr.scalar_type(), {num_edges});
  if (weight && weight->dim() == 2) {
    args.heads = weight->size(1);
    bridge::check_tensor(*weight, kOp, "weight", acc, {num_edges, args.heads});
    STD_TORCH_CHECK(args.heads >= 1 && shape.width % args.heads == 0, kOp, ": weight has ", args.heads,
                    " heads, which do not divide ", shape.width, " features");
  } else if (weight) {
    bridge::check_tensor(*weight, kOp, "weight", acc, {num_edges});
  }
  if (src_scale) bridge::check_tensor(*src_scale, kOp, "src_scale", acc, {shape.rows});
  if (dst_scale) bridge::check_tensor(*dst_scale, kOp, "dst_scale", acc, {num_rows});

  Tensor out = bridge::empty_rows(x, num_rows, shape.width, acc_out ? acc : type);
  if (out.numel() == 0) return out;
  const int64_t num_splits = count_split_rows(splits);
  Tensor partials =
      bridge::empty_like_device(x, {num_splits ? shape.batch : 0, 2 * args.csr.num_spans, shape.width}, acc);
  args.x = x.const_data_ptr();
  args.perm = index_array(perm);
  args.weight = bridge::read_pointer<void>(weight);
  args.src_scale = bridge::read_pointer<void>(src_scale);
  args.dst_scale = bridge::read_pointer<void>(dst_scale);
  args.out = out.mutable_data_ptr();
  args.partials = partials.mutable_data_ptr();
  args.num_src = shape.rows;
  args.width = shape.width;
  args.mean = mean;
  args.acc_out = acc_out;

  const FeatureType t = feature_type(type);
  const Kernels& table = kernels();
  const int64_t bytes = bytes_moved(shape, num_edges + num_rows, type);
  bridge::parallel_items(shape.batch * args.csr.num_spans, 1, bytes,
                         [&](int64_t begin, int64_t end) { table.sum_spans[t](args, begin, end); });
  bridge::parallel_items(shape.batch * num_splits, 1, bytes_moved(shape, 2 * num_splits, acc),
                         [&](int64_t begin, int64_t end) { table.sum_combine[t](args, begin, end); });
  return out;
}

}  // namespace gnnagg::cpu
