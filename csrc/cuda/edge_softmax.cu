// edge_softmax: alpha[e, h] = exp(score[e, h] - max) / (sum + 1e-16) over the edges into each target (common/softmax.h), and its
// gradient alpha * (grad - sum over the row of alpha * grad).
//
// How. Three phases over edge_rows.cuh: what a row has one of (the greatest score and 1 / sum, or the sum of alpha * grad), its split
// rows, and then every edge on its own. Two numbers and not one logsumexp, which would lose log(sum) beside scores of any size.
//
// Traffic. Per edge: 4 of perm twice, the inputs twice at random (perm), the result once. Per row 8 H bytes, or 4 H, written and read.
//
// Launch contract. One cooperative launch of three phases, or three ordinary ones; any grid size is right. The result must be zero
// where edges are dead.
//
// Determinism. As aggregate_sum.
#include "bridge/attention.h"
#include "cuda/edge_rows.cuh"
#include "cuda/softmax.cuh"

namespace gnnagg {
namespace {

constexpr int kPhases = 3;

// What a row keeps of its scores: the greatest, scaled, and 1 / (sum + 1e-16).
template <typename T>
struct LogSumRule {
  using Acc = acc_t<T>;
  using Value = RunningSoftmax<Acc>;
  const T* __restrict__ score;  // [num_edges, H]
  Acc* __restrict__ out;        // [num_rows, H, 2]
  Acc* __restrict__ partials;   // [2 num_spans, H, 2]

  __device__ __forceinline__ Value empty() const {
    Value value;
    value.reset();
    return value;
  }
  __device__ __forceinline__ void take(Value& value, int64_t at) const {
    const Acc scaled = to_acc(__ldg(score + at)) * Exponent<Acc>::kScale;
    value.raise(scaled, [](Acc) {});
    value.sum += Exponent<Acc>::exp(scaled - value.greatest);
  }
  __device__ __forceinline__ void merge(Value& value, const Value& other) const {
    value.merge(other, [](Acc, Acc) {});
  }
  __device__ __forceinline__ Value from_lane(const Value& value, const Group& group, int step) const {
    return {__shfl_xor_sync(group.mask(), value.greatest, step, group.lanes),
            __shfl_xor_sync(group.mask(), value.sum, step, group.lanes)};
  }
  __device__ __forceinline__ Value load_partial(int64_t at) const {
    return {__ldcg(partials + 2 * at), __ldcg(partials + 2 * at + 1)};
  }
  __device__ __forceinline__ void store_partial(int64_t at, const Value& value) const {
    __stcg(partials + 2 * at, value.greatest);
    __stcg(partials + 2 * at + 1, value.sum);
  }
  __device__ __forceinline__ void store(int64_t at, const Value& value, bool) const {
    __stcg(out + 2 * at, value.greatest);
    __stcg(out + 2 * at + 1, value.inverse());
  }
};

template <typename T>
struct AlphaTimesGrad {
  const T* __restrict__ alpha;
  const T* __restrict__ grad;
  __device__ __forceinline__ acc_t<T> operator()(int64_t at) const {
    return to_acc(__ldg(alpha + at)) * to_acc(__ldg(grad + at));
  }
};

template <typename T, typename Index>
struct EdgeSoftmaxArgs {
  using Acc = acc_t<T>;
  EdgeRows<Index> rows;
  const T* __restrict__ input;  // [num_edges, H]: score, or alpha
  const T* __restrict__ grad;   // [num_edges, H], or null: forward
  T* __restrict__ out;          // [num_edges, H]
  Acc* of_rows;                 // [num_rows, H], or with 2 numbers each
  Acc* partials;                // [2 num_spans, H, 2]
  Phases phases;
};

template <typename T, typename Index, typename Rule, typename Map>
__device__ __forceinline__ void run_phases(const EdgeSoftmaxArgs<T, Index>& args, const Rule& rule, Map map) {
  const auto grid = cooperative_groups::this_grid();
  if (args.phases.has(0)) reduce_edge_spans(args.rows, rule);
  if (args.phases.together) grid.sync();  // partials of every block are visible
  if (args.phases.has(1)) combine_edge_rows(args.rows, rule);
  if (args.phases.together) grid.sync();  // the results of all rows are visible
  if (args.phases.has(2)) map_edges(args.rows, map);
}

template <typename T, typename Index, bool kBackward>
__global__ __launch_bounds__(kAttentionThreads, kEdgeBlocksPerSm) void edge_softmax_kernel(
    const EdgeSoftmaxArgs<T, Index> args) {
  using Acc = acc_t<T>;
  if constexpr (kBackward) {
    const SumRule<Acc, AlphaTimesGrad<T>> rule{{args.input, args.grad}, args.of_rows, args.partials};
    run_phases(args, rule, [&](int64_t row, int64_t edge) {
      const Acc of_edge = to_acc(__ldg(args.grad + edge)) - __ldcg(args.of_rows + row);
      args.out[edge] = from_acc<T>(to_acc(__ldg(args.input + edge)) * of_edge);
    });
  } else {
    const LogSumRule<T> rule{args.input, args.of_rows, args.partials};
    run_phases(args, rule, [&](int64_t row, int64_t edge) {
      const Acc scaled = to_acc(__ldg(args.input + edge)) * Exponent<Acc>::kScale;
      const Acc greatest = __ldcg(args.of_rows + 2 * row), inverse = __ldcg(args.of_rows + 2 * row + 1);
      args.out[edge] = from_acc<T>(Exponent<Acc>::exp(scaled - greatest) * inverse);
    });
  }
}

using bridge::OptionalTensor;
using bridge::ScalarType;
using bridge::Tensor;

template <bool kBackward>
Tensor run(const char* op, const Tensor& input, const Tensor* grad, const Tensor& rowptr, const Tensor& spans,
           const Tensor& splits, const OptionalTensor& perm) {
  const bridge::CudaCall call(input);
  const ScalarType type = input.scalar_type();
  STD_TORCH_CHECK(bridge::is_feature_type(type), op, ": score must be float32, float64, float16 or bfloat16");
  bridge::check_tensor(input, op, "score", type, {-1, -1});
  const int64_t num_edges = input.size(0), heads = input.size(1);
  if (grad) bridge::check_tensor(*grad, op, "grad", type, {num_edges, heads});
  const bridge::CsrArguments csr(op, rowptr, rowptr, spans, splits);  // no columns are read
  if (perm) bridge::check_tensor(*perm, op, "perm", csr.index, {num_edges});
  Tensor out = bridge::zeros_like_device(input, {num_edges, heads}, type);
  if (out.numel() == 0 || csr.num_rows == 0) return out;
  const ScalarType acc = bridge::accumulate_type(type);
  Tensor of_rows = bridge::empty_like_device(input, {csr.num_rows, heads, kBackward ? 1 : 2}, acc);
  Tensor partials = bridge::empty_like_device(input, {2 * csr.num_spans, heads, 2}, acc);
  const auto launch = [&](auto element, auto index) {
    using T = decltype(element);
    using Index = decltype(index);
    EdgeSoftmaxArgs<T, Index> args{};
    args.rows = EdgeRows<Index>::of(csr.table<Index>(), bridge::read_pointer<Index>(perm), heads);
    args.input = bridge::read_pointer<T>(input);
    args.grad = grad ? bridge::read_pointer<T>(*grad) : nullptr;
    args.out = bridge::write_pointer<T>(out);
    args.of_rows = bridge::write_pointer<acc_t<T>>(of_rows);
    args.partials = bridge::write_pointer<acc_t<T>>(partials);
    const auto* kernel = reinterpret_cast<const void*>(&edge_softmax_kernel<T, Index, kBackward>);
    const int64_t items = csr.num_spans * ceil_div<int64_t>(heads, args.rows.head_lanes);
    const LaunchPlan plan = LaunchPlan::of(kernel, kAttentionThreads,
                                           ceil_div<int64_t>(items * args.rows.lanes, kAttentionThreads), kPhases);
    launch_phases(plan, args, kPhases, call.stream);
  };
  const auto with_index = [&](auto element) {
    csr.index == ScalarType::Int ? launch(element, int32_t{}) : launch(element, int64_t{});
  };
  switch (type) {
    case ScalarType::Float: with_index(float{}); break;
    case ScalarType::Double: with_index(double{}); break;
    case ScalarType::Half: with_index(__half{}); break;
    default: with_index(__nv_bfloat16{}); break;
  }
  return out;
}

}  // namespace

Tensor edge_softmax_cuda(const Tensor& score, const Tensor& rowptr, const Tensor& spans, const Tensor& splits,
                         const OptionalTensor& perm) {
  return run<false>("edge_softmax", score, nullptr, rowptr, spans, splits, perm);
}

Tensor edge_softmax_backward_cuda(const Tensor& grad, const Tensor& alpha, const Tensor& rowptr, const Tensor& spans,
                                  const Tensor& splits, const OptionalTensor& perm) {
  return run<true>("edge_softmax_backward", alpha, &grad, rowptr, spans, splits, perm);
}

}  // namespace gnnagg
