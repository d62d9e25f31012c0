// gat_attention_backward: the gradients of gat_attention with one gather, of dO.
//
// What. With D[i,h] = <dO[i,h], out[i,h]>, alpha[e] = exp(score[e] - logsumexp[i]), m[e] = dropout's mask:
//   ds[e] = alpha[e] (m[e] <dO[i], z[j]> - D[i]) * (1 or the negative slope),
//   dz[j] = sum of alpha[e] m[e] dO[i], da_src[j] = sum of ds[e] over the edges out of j, da_dst[i] = sum of ds[e] over those into i.
//
// How. prepare is node-local: D, and the three scalars of a target packed in one record. walk_sources goes over the rows of the
// transpose as every aggregation does: z[j] stays in registers, dO[i] and the record of i are gathered, the dot product is added
// across the lanes of a head. combine_sources puts split rows together. da_dst comes in one of two ways. Node-local, where the
// forward kept the sums over its positive scores (outP, A): as the de of a row add up to 0, sum ds = (1 - slope) (<dO, outP> -
// D A). Or the ds are written per edge and added up over the rows of the forward CSR (edge_rows.cuh): right where rows are short,
// and needed when the edge scores have a gradient anyway.
//
// Traffic. Per edge: F * s bytes of dO at random, 4 of col, a record of 16 H bytes; with ds written 4 H bytes at random, read once in
// order, and 4 of t_slot; with options 4 of perm at random. Per node: z, dO, out read, dz written, and outP where it is kept.
//
// Launch contract. One cooperative launch of four phases, or four ordinary ones; any grid size is right. d_edge must be zero where
// edges may be dead.
//
// Determinism. As aggregate_sum; no atomics.
#include "bridge/attention.h"
#include "cuda/gat_gradient.cuh"

namespace gnnagg {
namespace {

constexpr int kPhases = 4;

template <typename Acc>
struct EdgeValue {
  const Acc* values;
  __device__ __forceinline__ Acc operator()(int64_t at) const { return __ldcg(values + at); }
};

template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ auto target_sums(const GatBackwardArgs<T, kBytes, Index, kOwners, kLong>& args) {
  return SumRule<acc_t<T>, EdgeValue<acc_t<T>>>{{args.ds}, args.da_dst, args.partial_sums};
}

template <typename T, int kBytes, typename Index, int kOwners, bool kLong>
__global__ __launch_bounds__(kAttentionThreads, kAttentionBlocksPerSm) void gat_attention_backward_kernel(
    const GatBackwardArgs<T, kBytes, Index, kOwners, kLong> args) {
  const auto grid = cooperative_groups::this_grid();
  const Group group(args.tiles.lanes);
  if (args.phases.has(0)) prepare(args);
  if (args.phases.together) grid.sync();  // the records of all targets are visible
  if (args.phases.has(1)) walk_sources(args, group);
  if (args.phases.together) grid.sync();  // partials and ds of every block are visible
  if (args.phases.has(2)) combine_sources(args, group);
  if (!args.sums_targets) return;  // the same in every block
  const auto sum_of_ds = target_sums(args);
  if (args.phases.has(2)) reduce_edge_spans(args.target_rows, sum_of_ds);
  if (args.phases.together) grid.sync();  // partial sums of every block are visible
  if (args.phases.has(3)) combine_edge_rows(args.target_rows, sum_of_ds);
}

}  // namespace

using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor> gat_attention_backward_cuda(
    const Tensor& grad, const Tensor& z, const Tensor& a_src, const OptionalTensor& a_dst,
    const OptionalTensor& edge_score, const Tensor& out, const Tensor& lse, const Tensor& positive_out,
    const Tensor& positive_alpha, const Tensor& rowptr, const Tensor& col, const Tensor& spans, const Tensor& splits,
    const OptionalTensor& perm, const Tensor& t_rowptr, const Tensor& t_col, const Tensor& t_slot,
    const Tensor& t_spans, const Tensor& t_splits, const OptionalTensor& seed, double negative_slope, double dropout,
    bool need_dst, bool need_edge) {
  const char* op = "gat_attention_backward";
  const bridge::CudaCall call(z);
  const bridge::CsrArguments csr(op, rowptr, col, spans, splits), reverse(op, t_rowptr, t_col, t_spans, t_splits);
  const bridge::HeadShape shape(op, "z", z, a_src.size(1));
  const ScalarType type = z.scalar_type(), acc = bridge::accumulate_type(type);
  const int64_t heads = shape.heads, width = shape.width();
  bridge::check_tensor(grad, op, "grad", type, {csr.num_rows, width});
  bridge::check_tensor(out, op, "out", type, {csr.num_rows, width});
  bridge::check_tensor(lse, op, "lse", acc, {csr.num_rows, heads});
  bridge::check_tensor(a_src, op, "a_src", acc, {shape.rows, heads});
  if (a_dst) bridge::check_tensor(*a_dst, op, "a_dst", acc, {csr.num_rows, heads});
  if (edge_score) bridge::check_tensor(*edge_score, op, "edge_score", acc, {csr.num_edges, heads});
  bridge::check_transpose(op, csr, reverse, t_slot, shape.rows);
  const bool positive = positive_out.numel() != 0;
  if (positive) {
    bridge::check_tensor(positive_out, op, "positive_out", type, {csr.num_rows, width});
    bridge::check_tensor(positive_alpha, op, "positive_alpha", acc, {csr.num_rows, heads});
  }
  const bool node_local = positive && !need_edge;
  const bool writes_ds = need_edge || (need_dst && !node_local);
  const auto make = [&](std::initializer_list<int64_t> sizes, ScalarType dtype) {
    return bridge::empty_like_device(z, sizes, dtype);
  };
  Tensor dz = make({shape.rows, width}, type), da_src = make({shape.rows, heads}, acc);
  Tensor da_dst = need_dst ? make({csr.num_rows, heads}, acc) : make({0}, acc);
  Tensor d_edge = need_edge ? bridge::zeros_like_device(z, {csr.num_edges, heads}, acc) : make({0}, acc);
  if (shape.rows == 0 && csr.num_rows == 0) return {dz, da_src, da_dst, d_edge};
  Tensor ds = need_edge ? d_edge : make({writes_ds ? csr.num_edges : 0, heads}, acc);
  Tensor records = make({csr.num_rows, heads, kRecord}, acc);
  Tensor partials = make({2 * reverse.num_spans, width}, acc),
         partial_scores = make({2 * reverse.num_spans, heads}, acc);
  Tensor partial_sums = make({need_dst && writes_ds ? 2 * csr.num_spans : 0, heads}, acc);

  bridge::dispatch_heads<true, bridge::Long::kApart>(
      z, shape, csr.index, {&z, &grad, &out, &dz, &positive_out}, [&](auto types) {
        using Types = decltype(types);
        using T = typename Types::Element;
        using Index = typename Types::Index;
        using Acc = acc_t<T>;
        constexpr int kBytes = Types::kBytes;
        constexpr int kOwners = Types::kOwners;
        constexpr bool kLong = Types::kLong;
        GatBackwardArgs<T, kBytes, Index, kOwners, kLong> args{};
        args.table = reverse.table<Index>();
        args.tiles = shape.tiles(reverse, Packet<T, kBytes>::kSize);
        args.grad = bridge::read_pointer<T>(grad);
        args.z = bridge::read_pointer<T>(z);
        args.a_src = bridge::read_pointer<Acc>(a_src);
        args.a_dst = bridge::read_pointer<Acc>(a_dst);
        args.out = bridge::read_pointer<T>(out);
        args.lse = bridge::read_pointer<Acc>(lse);
        args.positive_out = node_local ? bridge::read_pointer<T>(positive_out) : nullptr;
        args.positive_alpha = node_local ? bridge::read_pointer<Acc>(positive_alpha) : nullptr;
        args.slots = bridge::read_pointer<Index>(t_slot);
        args.options = bridge::edge_options<Acc, Index>(op, csr, perm, edge_score, seed, dropout);
        args.records = bridge::write_pointer<Acc>(records);
        args.dz = bridge::write_pointer<T>(dz);
        args.da_src = bridge::write_pointer<Acc>(da_src);
        args.da_dst = need_dst ? bridge::write_pointer<Acc>(da_dst) : nullptr;
        args.partials = bridge::write_pointer<Acc>(partials);
        args.partial_scores = bridge::write_pointer<Acc>(partial_scores);
        args.ds = writes_ds ? bridge::write_pointer<Acc>(ds) : nullptr;
        args.ds_by_edge = need_edge;
        args.sums_targets = need_dst && writes_ds;
        args.target_rows =
            EdgeRows<Index>::of(csr.table<Index>(), need_edge ? bridge::read_pointer<Index>(perm) : nullptr, heads);
        args.partial_sums = bridge::write_pointer<Acc>(partial_sums);
        args.num_dst = csr.num_rows;
        args.negative_slope = Acc(negative_slope);
        const auto* kernel =
            reinterpret_cast<const void*>(&gat_attention_backward_kernel<T, kBytes, Index, kOwners, kLong>);
        constexpr int kSharedBytes = TargetRows<T, kBytes, Index, kOwners, kLong>::Flight::kSharedBytes;
        launch_phases(bridge::plan_heads(kernel, args.table, args.tiles, kPhases, kSharedBytes), args, kPhases,
                      call.stream);
      });
  return {dz, da_src, da_dst, d_edge};
}

}  // namespace gnnagg
