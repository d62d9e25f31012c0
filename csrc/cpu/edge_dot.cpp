// edge_dot on the CPU: checks, output, and the one phase of edge_dot_kernel.h. A span writes only its own slots.
#include "cpu/ops.h"

namespace gnnagg::cpu {
namespace {

constexpr const char* kOp = "edge_dot";

}  // namespace

Tensor edge_dot(Tensor a, Tensor b, Tensor rowptr, Tensor col, Tensor spans, OptionalTensor perm, int64_t heads) {
  const bridge::FeatureShape targets(a, kOp, "a"), sources(b, kOp, "b");
  const ScalarType type = a.scalar_type(), acc = bridge::accumulate_type(type), index = rowptr.scalar_type();
  EdgeDotArgs args = {};
  args.csr = csr_args(kOp, rowptr, col, spans, nullptr);
  const int64_t num_edges = col.numel();
  STD_TORCH_CHECK(b.scalar_type() == type, kOp, ": a and b must have one dtype");
  STD_TORCH_CHECK(targets.rows == args.csr.num_rows, kOp, ": a must have ", args.csr.num_rows, " rows, got ",
                  targets.rows);
  STD_TORCH_CHECK(targets.width == sources.width && targets.batch == sources.batch, kOp,
                  ": a and b must have the same features and batches");
  STD_TORCH_CHECK(heads >= 1 && targets.width % heads == 0, kOp, ": heads = ", heads, " must divide ", targets.width);
  if (perm) bridge::check_tensor(*perm, kOp, "perm", index, {num_edges});

  Tensor out = bridge::empty_like_device(a, {num_edges, heads}, acc);
  if (num_edges == 0) return out;
  args.a = a.const_data_ptr();
  args.b = b.const_data_ptr();
  args.perm = index_array(perm);
  args.out = out.mutable_data_ptr();
  args.batch = sources.batch;
  args.num_src = sources.rows;
  args.width = sources.width;
  args.heads = heads;
  const FeatureType t = feature_type(type);
  const Kernels& table = kernels();
  bridge::parallel_items(args.csr.num_spans, 1, bytes_moved(sources, num_edges, type),
                         [&](int64_t begin, int64_t end) { table.edge_dot_spans[t](args, begin, end); });
  clear_removed_edges(args.csr, args.perm, num_edges, out);
  return out;
}

}  // namespace gnnagg::cpu
