// What the features of edges add to dot_attention, of which each has D: e of an edge (j -> i), p[i, h] its query, both in R^D.
//
// What. terms: scale * <p[i, h], e>, which the walk adds to the scores, and <dEO[i, h], e>, which its gradient adds to <dO, value>.
// sums: EO[i, h] = sum of w e over the edges of i, with w = alpha * mask; and dp[i, h], the same with ds. gradient: de = sum over h of
// ds p[i, h] + w dEO[i, h].
//
// How. Numbers [num_edges, H] by slot go between these kernels and the walks of scored_attention.cuh and scored_gradient.cuh. terms and gradient are made edge by edge: the lanes of a group take the heads, or the features, of several
// edges abreast, and go through the features, or the heads. sums is an aggregation of rows of H * D whose edges are weighed by
// such numbers (reduce_rows.cuh); a lane has one feature of one head. The forward pass weighs first: w from the whole score that the walk left.
//
// Traffic. Per edge D * s bytes of e at random (perm), once in each kernel, 4 of perm, and 4 H for each such number in order; p and dEO of a row, H * D
// * 4 bytes each, come from the caches after its first edge. The gradient of e is written at random, D * s bytes.
//
// Launch contract. terms and gradient: one ordinary launch; spans need no combining, because every edge has its own output. sums: one
// cooperative launch of three phases, or three ordinary ones. Any grid size is right. The gradient must be zero where edges are dead.
//
// Determinism. As aggregate_sum; no atomics.
#include "cuda/edge_terms.h"

#include "bridge/attention.h"
#include "cuda/edge_features.cuh"
#include "cuda/edge_rows.cuh"
#include "cuda/packet_sum.cuh"
#include "cuda/scored_attention.cuh"

namespace gnnagg {
namespace {

constexpr int kSumPhases = 3;

// Calls visit(row, slot, edge id, column) for every edge and column of the spans of this group, where `rows` has as many columns as
// EdgeRows calls heads. Called by every thread.
template <typename Index, typename Visit>
__device__ __forceinline__ void visit_edges(const EdgeRows<Index>& rows, const Index* perm, Visit visit) {
  const Group group(rows.lanes);
  for_each_span(rows.table, rows.layers(), group, [&](int64_t k, int64_t layer) {
    const int column = int(layer) * rows.head_lanes + (group.lane & (rows.head_lanes - 1));
    RowCursor<Index, HeadOnly> cursor(rows.table, k, {column, rows.heads});
    visit_span(rows, k, group, cursor, [&](int64_t slot) {
      visit(int64_t(cursor.row), slot, perm ? int64_t(__ldg(perm + slot)) : slot, column);
    });
  });
}

template <typename T>
struct EdgeFeatures {
  using Acc = acc_t<T>;
  const T* __restrict__ attr;  // [num_edges, D]
  int dims;                    // D
  bool aligned;                // kEdgeDims features travel in whole loads, here and in the other tensors of D columns

  // Columns [d, d + kEdgeDims) of a row of any [rows, D]; 0 beyond the last.
  template <typename U>
  __device__ __forceinline__ void load_from(const U* rows, int64_t row, int d, Acc (&values)[kEdgeDims]) const {
    const U* from = rows + row * dims + d;
    if (aligned) {
      load_cached(from, values);
      return;
    }
#pragma unroll
    for (int j = 0; j < kEdgeDims; ++j) values[j] = d + j < dims ? to_acc(__ldg(from + j)) : Acc(0);
  }
  __device__ __forceinline__ void load(int64_t edge, int d, Acc (&values)[kEdgeDims]) const {
    load_from(attr, edge, d, values);
  }
};

// Edge ids of kEdgeBatch slots from `slot` on; of no meaning outside [begin, end).
template <typename Index>
__device__ __forceinline__ void load_edges(const Index* perm, Index slot, Index begin, Index end,
                                           Index (&edges)[kEdgeBatch]) {
  if (perm) {
    load_batch(perm, slot, begin, end, edges);
    return;
  }
#pragma unroll
  for (int u = 0; u < kEdgeBatch; ++u) edges[u] = slot + u;
}

template <typename T, typename Index>
struct EdgeTermsArgs {
  using Acc = acc_t<T>;
  EdgeRows<Index> rows;  // of H columns, by slot
  EdgeFeatures<T> features;
  const Index* __restrict__ perm;  // [num_edges] or null
  const Acc* __restrict__ query;   // [num_dst, H, D]
  const Acc* __restrict__ grad;    // [num_dst, H, D] or null
  Acc scale;
  Acc* __restrict__ terms;  // [num_edges, H]
  Acc* __restrict__ dots;   // [num_edges, H], with grad
  Phases phases;
};

template <typename T, typename Index>
__global__ __launch_bounds__(kAttentionThreads, kEdgeBlocksPerSm) void edge_terms_kernel(
    const EdgeTermsArgs<T, Index> args) {
  using Acc = acc_t<T>;
  visit_edges(args.rows, args.perm, [&](int64_t row, int64_t slot, int64_t edge, int head) {
    const int64_t item = row * args.rows.heads + head;
    Acc term = Acc(0), dot = Acc(0);
    for (int d = 0; d < args.features.dims; d += kEdgeDims) {
      Acc of_edge[kEdgeDims], of_row[kEdgeDims];
      args.features.load(edge, d, of_edge);
      args.features.load_from(args.query, item, d, of_row);
#pragma unroll
      for (int j = 0; j < kEdgeDims; ++j) term += of_row[j] * of_edge[j];
      if (!args.grad) continue;
      args.features.load_from(args.grad, item, d, of_row);
#pragma unroll
      for (int j = 0; j < kEdgeDims; ++j) dot += of_row[j] * of_edge[j];
    }
    __stcg(args.terms + slot * args.rows.heads + head, term * args.scale * Exponent<Acc>::kScale);
    if (args.grad) __stcg(args.dots + slot * args.rows.heads + head, dot);
  });
}

template <typename T, typename Index>
struct EdgeSumArgs {
  using Acc = acc_t<T>;
  EdgeRows<Index> rows;  // of H columns, by slot
  HeadTiles tiles;       // of rows [H, D], one element a lane
  EdgeFeatures<T> features;
  EdgeOptions<Acc, Index> options;
  const Acc* __restrict__ lse;  // [num_dst, H]; null where the numbers are weights
  Acc* numbers;                 // [num_edges, H]: scores, which become weights, or weights
  Acc* __restrict__ out;        // [num_dst, H, D]
  Acc* __restrict__ partials;   // [2 num_spans, H, D]
  Phases phases;
};

// Scores become weights. Called by every thread.
template <typename T, typename Index>
__device__ __forceinline__ void weigh_edges(const EdgeSumArgs<T, Index>& args) {
  using Acc = acc_t<T>;
  visit_edges(args.rows, args.options.perm, [&](int64_t row, int64_t slot, int64_t edge, int head) {
    Acc* score = args.numbers + slot * args.rows.heads + head;
    const Acc lse = __ldg(args.lse + row * args.rows.heads + head) * Exponent<Acc>::kScale;
    Acc weight = Exponent<Acc>::exp(__ldcg(score) - lse);
    if (args.options.seed) {
      const DropoutRule rule{uint64_t(__ldg(args.options.seed)), args.options.threshold};
      weight *= rule.keeps(edge, head) ? args.options.keep_scale : Acc(0);
    }
    __stcg(score, weight);
  });
}

// A Source: one feature of every edge, and its weight for one head.
template <typename T, typename Index>
struct WeightedFeature {
  using Acc = acc_t<T>;
  struct Batch {
    Acc feature[kEdgeBatch], weight[kEdgeBatch];
  };
  const EdgeSumArgs<T, Index>& args;
  const HeadPlace& place;
  int feature;
  Index edges_ahead[kEdgeBatch];

  __device__ __forceinline__ void start(Index slot, Index begin, Index end) {
    load_edges(args.options.perm, slot, begin, end, edges_ahead);
  }
  template <bool kWhole>
  __device__ __forceinline__ void request(Batch& batch, Index slot, Index begin, Index end,
                                          const Index (&)[kEdgeBatch]) {
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (!inside<kWhole>(Index(slot + u), begin, end)) continue;
      batch.feature[u] = to_acc(__ldg(args.features.attr + int64_t(edges_ahead[u]) * args.features.dims + feature));
      batch.weight[u] = __ldcg(args.numbers + place.score(slot + u));
    }
    load_edges(args.options.perm, Index(slot + kEdgeBatch), begin, end, edges_ahead);
  }
  template <typename Cursor>
  __device__ __forceinline__ void feed(const Batch& batch, int u, Index, Cursor& cursor) const {
    cursor.reducer.state.value[0] += batch.weight[u] * batch.feature[u];
  }
};

template <typename Acc>
using FeatureSum = PacketSum<Acc, int(sizeof(Acc))>;

// Called by every thread, once the weights are visible.
template <typename T, typename Index>
__device__ __forceinline__ void sum_rows(const EdgeSumArgs<T, Index>& args, const Group& group) {
  for_each_span(args.rows.table, args.tiles.tiles, group, [&](int64_t k, int64_t tile) {
    const HeadPlace place(args.tiles, group, int(tile), 1);
    const WeightedFeature<T, Index> source{args, place, place.offset - place.head * args.tiles.channels, {}};
    reduce_span(args.rows.table, k, source, FeatureSum<acc_t<T>>({args.out, args.partials}, place));
  });
}

template <typename T, typename Index>
__global__ __launch_bounds__(kAttentionThreads, kEdgeBlocksPerSm) void edge_sums_kernel(
    const EdgeSumArgs<T, Index> args) {
  const auto grid = cooperative_groups::this_grid();
  const Group group(args.tiles.lanes);
  if (args.phases.has(0) && args.lse) weigh_edges(args);
  if (args.phases.together && args.lse) grid.sync();  // the weights of all edges are visible
  if (args.phases.has(1)) sum_rows(args, group);
  if (!args.phases.has(2) || !has_split_rows(args.rows.table)) return;  // the same in every block
  if (args.phases.together) grid.sync();                                // every block's partials are visible to all
  combine_rows(args.rows.table, args.tiles.tiles, group, [&](int64_t tile) {
    return FeatureSum<acc_t<T>>({args.out, args.partials}, HeadPlace(args.tiles, group, int(tile), 1));
  });
}

template <typename T, typename Index>
struct EdgeGradientArgs {
  using Acc = acc_t<T>;
  EdgeRows<Index> rows;             // of D columns, by slot
  const Index* __restrict__ perm;   // [num_edges] or null
  const Acc* __restrict__ query;    // [num_dst, H, D]
  const Acc* __restrict__ grad;     // [num_dst, H, D]
  const Acc* __restrict__ weights;  // [num_edges, H]
  const Acc* __restrict__ ds;       // [num_edges, H]
  T* __restrict__ d_attr;           // [num_edges, D], zeroed
  int heads;
  Phases phases;
};

template <typename T, typename Index>
__global__ __launch_bounds__(kAttentionThreads, kEdgeBlocksPerSm) void edge_gradient_kernel(
    const EdgeGradientArgs<T, Index> args) {
  using Acc = acc_t<T>;
  const int64_t dims = args.rows.heads;
  visit_edges(args.rows, args.perm, [&](int64_t row, int64_t slot, int64_t edge, int column) {
    Acc sum = Acc(0);
    for (int head = 0; head < args.heads; ++head) {
      const int64_t number = slot * args.heads + head;
      const int64_t at = (row * args.heads + head) * dims + column;
      sum += __ldg(args.ds + number) * __ldg(args.query + at) + __ldg(args.weights + number) * __ldg(args.grad + at);
    }
    args.d_attr[edge * dims + column] = from_acc<T>(sum);
  });
}

// `alike`: all other tensors of D columns that the kernel reads.
template <typename T>
EdgeFeatures<T> edge_features(const bridge::Tensor& attr, std::initializer_list<const bridge::Tensor*> alike) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(attr.const_data_ptr());
  for (const bridge::Tensor* tensor : alike) bits |= reinterpret_cast<uintptr_t>(tensor->const_data_ptr());
  const int64_t dims = attr.size(1);
  return {bridge::read_pointer<T>(attr), int(dims), dims % kEdgeDims == 0 && bits % kLaneBytes == 0};
}

// Calls body(T{}, Index{}) for the types of the edges.
template <typename Body>
void dispatch_edges(const bridge::EdgeAttributes& edges, Body&& body) {
  using bridge::ScalarType;
  const auto with_index = [&](auto element) {
    edges.csr.index == ScalarType::Int ? body(element, int32_t{}) : body(element, int64_t{});
  };
  switch (edges.attr.scalar_type()) {
    case ScalarType::Float: with_index(float{}); break;
    case ScalarType::Double: with_index(double{}); break;
    case ScalarType::Half: with_index(__half{}); break;
    default: with_index(__nv_bfloat16{}); break;
  }
}

// A launch with one group for every span and layer, or the whole device where that is less.
LaunchPlan plan_edges(const void* kernel, int64_t items, int lanes, int num_phases) {
  return LaunchPlan::of(kernel, kAttentionThreads, ceil_div<int64_t>(items * lanes, kAttentionThreads), num_phases);
}

template <typename Index>
LaunchPlan plan_columns(const void* kernel, const EdgeRows<Index>& rows) {
  return plan_edges(kernel, rows.table.num_spans * ceil_div<int64_t>(rows.heads, rows.head_lanes), rows.lanes, 1);
}

}  // namespace

namespace bridge {

EdgeAttributes::EdgeAttributes(const char* op, const CsrArguments& rows, const OptionalTensor& ids,
                               const Tensor& features, int64_t num_heads, ScalarType type)
    : csr(rows), perm(ids), attr(features), heads(num_heads) {
  check_tensor(attr, op, "edge_attr", type, {csr.num_edges, -1});
  if (perm) check_tensor(*perm, op, "perm", csr.index, {csr.num_edges});
  STD_TORCH_CHECK(dims() >= 1 && dims() < (int64_t(1) << 30) / heads, op,
                  ": edge_attr must have from 1 to 2^30 / H features, got ", dims());
}

EdgeTerms edge_terms(const EdgeAttributes& edges, const Tensor& query, const OptionalTensor& grad, double scale) {
  const CudaCall call(query);
  Tensor terms = empty_like_device(query, {edges.csr.num_edges, edges.heads}, edges.acc());
  Tensor dots = empty_like_device(query, {edges.csr.num_edges, edges.heads}, edges.acc());
  if (terms.numel() == 0 || edges.csr.num_rows == 0) return {terms, dots};
  dispatch_edges(edges, [&](auto element, auto index) {
    using T = decltype(element);
    using Index = decltype(index);
    using Acc = acc_t<T>;
    EdgeTermsArgs<T, Index> args{};
    args.rows = EdgeRows<Index>::of(edges.csr.table<Index>(), nullptr, edges.heads);
    args.features = edge_features<T>(edges.attr, {&query, grad ? &*grad : &query});
    args.perm = read_pointer<Index>(edges.perm);
    args.query = read_pointer<Acc>(query);
    args.grad = read_pointer<Acc>(grad);
    args.scale = Acc(scale);
    args.terms = write_pointer<Acc>(terms);
    args.dots = write_pointer<Acc>(dots);
    const auto* kernel = reinterpret_cast<const void*>(&edge_terms_kernel<T, Index>);
    launch_phases(plan_columns(kernel, args.rows), args, 1, call.stream);
  });
  return {terms, dots};
}

Tensor edge_sums(const char* op, const EdgeAttributes& edges, const Tensor& numbers, const OptionalTensor& lse,
                 const OptionalTensor& seed, double dropout) {
  const CudaCall call(numbers);
  const int64_t heads = edges.heads, dims = edges.dims(), num_rows = edges.csr.num_rows;
  Tensor out = empty_like_device(numbers, {num_rows, heads, dims}, edges.acc());
  if (num_rows == 0) return out;
  Tensor partials = empty_like_device(numbers, {2 * edges.csr.num_spans, heads, dims}, edges.acc());
  dispatch_edges(edges, [&](auto element, auto index) {
    using T = decltype(element);
    using Index = decltype(index);
    using Acc = acc_t<T>;
    EdgeSumArgs<T, Index> args{};
    args.rows = EdgeRows<Index>::of(edges.csr.table<Index>(), nullptr, heads);
    args.tiles = HeadTiles::of(int(heads), int(dims), 1, kMaxTileLanes);
    args.features = edge_features<T>(edges.attr, {});
    args.options = edge_options<Acc, Index>(op, edges.csr, edges.perm, std::nullopt, seed, dropout);
    args.lse = read_pointer<Acc>(lse);
    args.numbers = write_pointer<Acc>(numbers);
    args.out = write_pointer<Acc>(out);
    args.partials = write_pointer<Acc>(partials);
    const auto* kernel = reinterpret_cast<const void*>(&edge_sums_kernel<T, Index>);
    const int64_t layers = std::max<int64_t>(args.tiles.tiles, ceil_div<int64_t>(heads, args.rows.head_lanes));
    const int lanes = std::max(args.tiles.lanes, args.rows.lanes);
    launch_phases(plan_edges(kernel, edges.csr.num_spans * layers, lanes, kSumPhases), args, kSumPhases, call.stream);
  });
  return out;
}

Tensor edge_gradient(const EdgeAttributes& edges, const Tensor& query, const Tensor& grad, const Tensor& weights,
                     const Tensor& ds) {
  const CudaCall call(query);
  Tensor d_attr = zeros_like_device(query, {edges.csr.num_edges, edges.dims()}, edges.attr.scalar_type());
  if (d_attr.numel() == 0 || edges.csr.num_rows == 0) return d_attr;
  dispatch_edges(edges, [&](auto element, auto index) {
    using T = decltype(element);
    using Index = decltype(index);
    using Acc = acc_t<T>;
    EdgeGradientArgs<T, Index> args{};
    args.rows = EdgeRows<Index>::of(edges.csr.table<Index>(), nullptr, edges.dims());
    args.perm = read_pointer<Index>(edges.perm);
    args.query = read_pointer<Acc>(query);
    args.grad = read_pointer<Acc>(grad);
    args.weights = read_pointer<Acc>(weights);
    args.ds = read_pointer<Acc>(ds);
    args.d_attr = write_pointer<T>(d_attr);
    args.heads = int(edges.heads);
    const auto* kernel = reinterpret_cast<const void*>(&edge_gradient_kernel<T, Index>);
    launch_phases(plan_columns(kernel, args.rows), args, 1, call.stream);
  });
  return d_attr;
}

}  // namespace bridge
}  // namespace gnnagg
