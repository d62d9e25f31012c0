// The gradients of the families of score_family.cuh.
//
// What. With D[i] = <dO[i], out[i]>, alpha = exp(score - logsumexp[i]), w = alpha * mask, ds = alpha (mask <dO[i], value[j]> - D[i]):
// the value's gradient is the sum of w dO[i]; source, target and constant receive ds times the family's derivatives.
//
// How. Walks that each gather one table, because two at once share the L2 cache: over the rows of the CSR the values where those are
// separate, for <dO, value>, and then the keys, with the target's packet in registers: that gives w and ds of every edge and head, and
// the sums of the target's and the constant's gradient (scored_targets.cuh). Over the rows of the transpose dO, weighed by w, and then
// the targets, by ds (scored_sources.cuh); values that are the keys take the sum of both. No product is computed twice.
//
// Traffic. Per edge: three gathers of F * s bytes, or four with separate values; 4 H bytes each of w and ds (and <dO, value>) written and
// read in order, and read at random on the transpose; 4 of col in every walk and 4 of t_slot in two. They are E * H * 8 bytes of
// workspace. Per node of values that are keys F * 4 bytes written and read. Per span F * 4 bytes of the constant's gradient, added up
// afterwards by torch.
//
// Launch contract. One cooperative launch of five phases, or five ordinary ones; any grid size is right.
//
// Determinism. As aggregate_sum; no atomics. The constant's gradient is summed per span, then over spans.
#pragma once

#include <algorithm>

#include "bridge/attention.h"
#include "cuda/scored_sources.cuh"
#include "cuda/scored_targets.cuh"
#include "cuda/target_record.cuh"

namespace gnnagg {

constexpr int kGradientPhases = 5;

// The edge features' share of D for one target and head.
template <typename Args>
__device__ __forceinline__ typename Args::Acc edge_dot(const Args& args, int64_t item) {
  typename Args::Acc dot = 0;
  for (int d = 0; d < args.edge_dims; ++d) {
    dot += args.grad_edge_out[item * args.edge_dims + d] * args.edge_out[item * args.edge_dims + d];
  }
  return dot;
}

// Called by every thread.
template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__device__ __forceinline__ void prepare(const GradientArgs<Family, T, kBytes, Index, kOwners, kLong>& args) {
  using Acc = acc_t<T>;
  for_each_target<T, kBytes>(args.grad, args.out, static_cast<const T*>(nullptr), args.num_dst, args.tiles,
                             [&](int64_t item, Acc dot, Acc) {
                               if constexpr (Family::kEdgeTerms) {
                                 if (args.edge_terms) dot += edge_dot(args, item);
                               }
                               const Acc record[kRecordSize] = {args.lse[item] * Exponent<Acc>::kScale, dot};
                               Span<Acc, kRecordSize>::store(args.records + item * kRecordSize, record);
                             });
}

template <typename Family, typename T, int kBytes, typename Index, int kOwners, bool kLong>
__global__ __launch_bounds__(kAttentionThreads, kAttentionBlocksPerSm) void scored_gradient_kernel(
    const GradientArgs<Family, T, kBytes, Index, kOwners, kLong> args) {
  using Args = GradientArgs<Family, T, kBytes, Index, kOwners, kLong>;
  const auto grid = cooperative_groups::this_grid();
  if (args.phases.has(0)) {
    prepare(args);
    if constexpr (Family::kSeparateValues) walk_values(args);
  }
  if (args.phases.together) grid.sync();  // the records of all targets, and the products of all edges, are visible
  if (args.phases.has(1)) walk_keys(args);
  if (args.phases.together) grid.sync();  // the targets' partials, w and ds of every block are visible
  if (args.phases.has(2)) {
    combine_targets(args);
    walk_grads(args);
  }
  if (args.phases.together) grid.sync();  // the sums of w dO of whole rows, and the partials of others, are visible
  const auto of_value = [&](const HeadPlace& place) { return value_gradient<T, kBytes, Args>(args, place); };
  const auto of_key = [&](const HeadPlace& place) { return KeyGradient<T, kBytes, Args>(args, place); };
  if (args.phases.has(3)) {
    combine_sources(args, of_value);
    walk_targets(args);
  }
  if (!args.phases.has(4) || !has_split_rows(args.reverse)) return;  // the same in every block
  if (args.phases.together) grid.sync();                             // the keys' partials of every block are visible
  combine_sources(args, of_key);
}

namespace bridge {

struct ScoredGradients {
  Tensor d_keys, d_values, d_targets, d_constant;
  Tensor weights, ds;  // [num_edges, H] by slot: w, and ds times the family's scale; nothing where no slot is live
};

// What the edge features of a family with kEdgeTerms gave to each row, and its gradient.
struct EdgeOutputs {
  OptionalTensor out, grad;  // [num_dst, H, D]
};

// What both ops of these families do on the host.
template <template <typename> class Family>
ScoredGradients scored_gradient(const char* op, const HeadShape& shape, const Tensor& grad, const Tensor& keys,
                                const Tensor& values, const Tensor& targets, const OptionalTensor& constant,
                                const Tensor& out, const Tensor& lse, const CsrArguments& csr,
                                const CsrArguments& reverse, const Tensor& t_slot, const OptionalTensor& perm,
                                const OptionalTensor& seed, double family_factor, double dropout,
                                const ScoredEdges& edge_features = {}, const EdgeOutputs& edge_outputs = {}) {
  const CudaCall call(keys);
  const ScalarType type = keys.scalar_type(), acc = accumulate_type(type);
  const int64_t width = shape.width(), heads = shape.heads;
  constexpr bool kSeparate = Family<float>::kSeparateValues, kConstant = Family<float>::kConstant;
  check_tensor(grad, op, "grad", type, {csr.num_rows, width});
  check_tensor(out, op, "out", type, {csr.num_rows, width});
  check_tensor(lse, op, "lse", acc, {csr.num_rows, heads});
  check_tensor(targets, op, "the targets' features", type, {csr.num_rows, width});
  check_tensor(values, op, "the values", type, {shape.rows, width});
  check_transpose(op, csr, reverse, t_slot, shape.rows);
  const auto make = [&](std::initializer_list<int64_t> sizes, ScalarType dtype) {
    return empty_like_device(keys, sizes, dtype);
  };
  Tensor d_keys = make({shape.rows, width}, type), d_targets = make({csr.num_rows, width}, type);
  Tensor d_values = kSeparate ? make({shape.rows, width}, type) : d_keys;
  Tensor value_sums = make({kSeparate ? 0 : shape.rows, width}, acc);
  const bool is_empty = shape.rows == 0 && csr.num_rows == 0;  // then nothing is launched
  Tensor d_constant = make({kConstant && !is_empty ? csr.num_spans : 0, width}, acc);
  Tensor records = make({csr.num_rows, heads, kRecordSize}, acc);
  Tensor weights = make({csr.num_edges, heads}, acc), ds = make({csr.num_edges, heads}, acc);
  // Where a head takes several tiles, some of them are still to read the products when the first has written weights.
  Tensor dots = kSeparate && shape.channels > kMaxTileLanes ? make({csr.num_edges, heads}, acc) : weights;
  Tensor target_partials = make({2 * csr.num_spans, width}, acc);
  Tensor key_partials = make({2 * reverse.num_spans, width}, acc);
  Tensor value_partials = make({2 * reverse.num_spans, width}, acc);
  if (!is_empty) {
    dispatch_heads<false, kLongHeads<Family<float>>, Family<float>::kMostValues>(
        keys, shape, csr.index,
        {&keys, &values, &targets, &grad, &out, &d_keys, &d_targets, constant ? &*constant : &keys}, [&](auto types) {
          using Types = decltype(types);
          using T = typename Types::Element;
          using Index = typename Types::Index;
          using Acc = acc_t<T>;
          using Chosen = FamilyOf<Family<Acc>, T, Index>;
          constexpr int kBytes = Types::kBytes, kOwners = Types::kOwners, kSize = Packet<T, kBytes>::kSize;
          constexpr bool kLong = Types::kLong;
          GradientArgs<Chosen, T, kBytes, Index, kOwners, kLong> args{};
          args.table = csr.table<Index>();
          args.reverse = reverse.table<Index>();
          args.tiles = shape.tiles(csr, kSize);
          args.reverse_tiles = shape.tiles(reverse, kSize);
          args.grad = read_pointer<T>(grad);
          args.out = read_pointer<T>(out);
          args.lse = read_pointer<Acc>(lse);
          args.keys = read_pointer<T>(keys);
          args.values = read_pointer<T>(values);
          args.targets = read_pointer<T>(targets);
          args.constant = read_pointer<Acc>(constant);
          args.slots = read_pointer<Index>(t_slot);
          args.family = {Acc(family_factor)};
          args.options = edge_options<Acc, Index>(op, csr, perm, std::nullopt, seed, dropout);
          args.projection = edge_projection<T>(edge_features.attr, edge_features.weight);
          args.edge_terms = read_pointer<Acc>(edge_features.terms);
          args.edge_dots = read_pointer<Acc>(edge_features.second);
          args.edge_out = read_pointer<Acc>(edge_outputs.out);
          args.grad_edge_out = read_pointer<Acc>(edge_outputs.grad);
          args.edge_dims = edge_outputs.out ? int(edge_outputs.out->size(2)) : 0;
          args.records = write_pointer<Acc>(records);
          args.dots = write_pointer<Acc>(dots);
          args.weights = write_pointer<Acc>(weights);
          args.ds = write_pointer<Acc>(ds);
          args.value_sums = write_pointer<Acc>(value_sums);
          args.d_keys = write_pointer<T>(d_keys);
          args.d_values = write_pointer<T>(d_values);
          args.d_targets = write_pointer<T>(d_targets);
          args.d_constant = write_pointer<Acc>(d_constant);
          args.target_partials = write_pointer<Acc>(target_partials);
          args.key_partials = write_pointer<Acc>(key_partials);
          args.value_partials = write_pointer<Acc>(value_partials);
          args.num_dst = csr.num_rows;
          const auto* kernel =
              reinterpret_cast<const void*>(&scored_gradient_kernel<Chosen, T, kBytes, Index, kOwners, kLong>);
          const auto& most = csr.num_spans > reverse.num_spans ? args.table : args.reverse;
          constexpr int kSharedBytes = PacketFlight<kBytes, kEdgeBatch>::kSharedBytes;  // of every walk
          const LaunchPlan plan = plan_heads(kernel, most, args.tiles, kGradientPhases, kSharedBytes);
          launch_phases(plan, args, kGradientPhases, call.stream);
        });
  }
  if constexpr (kConstant) {
    const int64_t dims[] = {0};
    d_constant = torch::stable::sum(d_constant, torch::headeronly::IntHeaderOnlyArrayRef(dims, 1));
  }
  return {d_keys, d_values, d_targets, d_constant, weights, ds};
}

}  // namespace bridge

}  // namespace gnnagg
