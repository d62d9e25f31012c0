// edge_softmax and its gradient on the CPU: checks, output, and the phases of edge_softmax_kernel.h.
#include "cpu/attention_host.h"

namespace gnnagg::cpu {
namespace {

struct Phases {
  AttentionKernels::EdgeSoftmax spans, combine, pieces;
};

// `values` [E, H], and `alpha` for the backward. Both directions run the same phases.
template <typename ChoosePhases>
Tensor edge_rows(const char* op, const Tensor& values, const Tensor* alpha, const Tensor& rowptr, const Tensor& spans,
                 const Tensor& splits, const OptionalTensor& perm, int64_t state_fields, const ChoosePhases& choose) {
  const bridge::FeatureShape shape(values, op, alpha ? "grad" : "score");
  STD_TORCH_CHECK(values.dim() == 2, op, ": ", alpha ? "grad" : "score", " must be [num_edges, H], got ", values.dim(),
                  "-D");
  const ScalarType type = values.scalar_type(), acc = bridge::accumulate_type(type);
  const int64_t num_edges = shape.rows, heads = shape.width;
  EdgeSoftmaxArgs args = {};
  args.csr = csr_args(op, rowptr, rowptr, spans, &splits);
  if (alpha) bridge::check_tensor(*alpha, op, "alpha", type, {num_edges, heads});
  if (perm) bridge::check_tensor(*perm, op, "perm", rowptr.scalar_type(), {num_edges});
  Tensor out = bridge::empty_like_device(values, {num_edges, heads}, type);
  if (out.numel() == 0) return out;
  Tensor state = bridge::empty_like_device(values, {2 * args.csr.num_spans, state_fields, heads}, acc);
  args.values = values.const_data_ptr();
  args.alpha = alpha ? alpha->const_data_ptr() : nullptr;
  args.perm = index_array(perm);
  args.out = out.mutable_data_ptr();
  args.partial_state = state.mutable_data_ptr();
  args.num_edges = num_edges;
  args.heads = heads;
  const Phases phases = choose(attention_kernels(), feature_type(type));
  const int64_t num_splits = count_split_rows(splits), bytes = 2 * num_edges * heads * element_bytes(type);
  bridge::parallel_items(args.csr.num_spans, 1, bytes,
                         [&](int64_t begin, int64_t end) { phases.spans(args, begin, end); });
  if (num_splits > 0) {
    phases.combine(args, 0, num_splits);
    bridge::parallel_items(args.csr.num_spans, 1, bytes,
                           [&](int64_t begin, int64_t end) { phases.pieces(args, begin, end); });
  }
  clear_removed_edges(args.csr, args.perm, num_edges, out);
  return out;
}

}  // namespace

Tensor edge_softmax(Tensor score, Tensor rowptr, Tensor spans, Tensor splits, OptionalTensor perm) {
  return edge_rows(
      "edge_softmax", score, nullptr, rowptr, spans, splits, perm, 2, [](const AttentionKernels& table, FeatureType t) {
        return Phases{table.edge_softmax_spans[t], table.edge_softmax_combine[t], table.edge_softmax_pieces[t]};
      });
}

Tensor edge_softmax_backward(Tensor grad, Tensor alpha, Tensor rowptr, Tensor spans, Tensor splits,
                             OptionalTensor perm) {
  return edge_rows("edge_softmax_backward", grad, &alpha, rowptr, spans, splits, perm, 1,
                   [](const AttentionKernels& table, FeatureType t) {
                     return Phases{table.edge_softmax_backward_spans[t], table.edge_softmax_backward_combine[t],
                                   table.edge_softmax_backward_pieces[t]};
                   });
}

}  // namespace gnnagg::cpu
