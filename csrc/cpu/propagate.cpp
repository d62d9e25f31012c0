// propagate on the CPU: checks, output, and the hops, each the two phases of aggregate_kernel.h.
#include <cstring>

#include "cpu/ops.h"

namespace gnnagg::cpu {
namespace {

constexpr const char* kOp = "propagate";

}  // namespace

Tensor propagate(Tensor x, OptionalTensor x0, Tensor rowptr, Tensor col, Tensor spans, Tensor splits,
                 OptionalTensor perm, OptionalTensor weight, int64_t hops, double teleport, bool return_all,
                 OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor) {
  const bridge::FeatureShape shape(x, kOp, "x");
  const ScalarType type = x.scalar_type(), acc = bridge::accumulate_type(type);
  SumArgs args = {};
  args.csr = csr_args(kOp, rowptr, col, spans, &splits);
  const int64_t num_edges = col.numel(), num_rows = args.csr.num_rows, width = shape.width;
  bridge::check_tensor(x, kOp, "x", type, {num_rows, -1});
  if (x0) bridge::check_tensor(*x0, kOp, "x0", type, {num_rows, width});
  if (perm) bridge::check_tensor(*perm, kOp, "perm", rowptr.scalar_type(), {num_edges});
  if (weight) bridge::check_tensor(*weight, kOp, "weight", acc, {num_edges});
  STD_TORCH_CHECK(hops >= 0, kOp, ": hops must be at least 0, got ", hops);

  Tensor out = return_all ? bridge::empty_like_device(x, {hops + 1, num_rows, width}, type)
                          : bridge::empty_like_device(x, {num_rows, width}, type);
  if (out.numel() == 0) return out;
  const int64_t hop_bytes = bytes_moved(shape, num_rows, type);
  char* result = bridge::write_pointer<char>(out);
  if (return_all || hops == 0) std::memcpy(result, x.const_data_ptr(), size_t(hop_bytes));
  // Where only the last hop is wanted, hops go to `other` and `out` in turns, so that the last one goes to `out`.
  Tensor other = bridge::empty_like_device(x, {!return_all && hops > 1 ? num_rows : 0, width}, type);
  const auto place_of = [&](int64_t hop) {  // of h[hop], hop >= 1
    if (return_all) return result + hop * hop_bytes;
    return (hops - hop) % 2 == 0 ? result : bridge::write_pointer<char>(other);
  };

  const int64_t num_splits = count_split_rows(splits);
  Tensor partials = bridge::empty_like_device(x, {num_splits ? 2 * args.csr.num_spans : 0, width}, acc);
  args.perm = index_array(perm);
  args.weight = bridge::read_pointer<void>(weight);
  args.partials = partials.mutable_data_ptr();
  args.num_src = num_rows;
  args.width = width;
  args.heads = 1;
  args.teleport = teleport;
  if (teleport != 0) args.x0 = (x0 ? *x0 : x).const_data_ptr();

  const FeatureType t = feature_type(type);
  const Kernels& table = kernels();
  const int64_t bytes = bytes_moved(shape, num_edges + num_rows, type);
  for (int64_t hop = 1; hop <= hops; ++hop) {
    args.x = hop == 1 ? x.const_data_ptr() : place_of(hop - 1);
    args.out = place_of(hop);
    bridge::parallel_items(args.csr.num_spans, 1, bytes,
                           [&](int64_t begin, int64_t end) { table.sum_spans[t](args, begin, end); });
    bridge::parallel_items(num_splits, 1, bytes_moved(shape, 2 * num_splits, acc),
                           [&](int64_t begin, int64_t end) { table.sum_combine[t](args, begin, end); });
  }
  return out;
}

}  // namespace gnnagg::cpu
