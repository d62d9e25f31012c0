// build_spans: the boundaries of num_spans spans of equal cost, and the list of rows that they cut (common/schedule.h).
//
// How. One thread a boundary: a binary search over the row costs. A second launch lists the split rows, short ones from the
// front and long ones from the back, by two counters.
//
// Traffic. O(num_spans * log num_rows) reads of rowptr.
//
// Launch contract. Two ordinary launches; splits is zeroed here. No host synchronisation: the cost of all rows is read from
// rowptr on the device.
//
// Determinism. The boundaries are. The order of the lists is not, and no result depends on it.
#include "bridge/check.h"
#include "bridge/cuda_dispatch.h"
#include "cuda/launch.cuh"

namespace gnnagg {
namespace {

constexpr int kThreads = 256;

template <typename Index>
struct Counter;
template <>
struct Counter<int32_t> {
  using type = int;
};
template <>
struct Counter<int64_t> {
  using type = unsigned long long;
};

template <typename Index>
__global__ __launch_bounds__(kThreads) void find_boundaries(const SpanRule<Index> rule, Index* __restrict__ spans) {
  const int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (k > rule.num_spans) return;
  const Boundary at = rule.boundary(k);
  spans[2 * k] = Index(at.row);
  spans[2 * k + 1] = Index(at.edge);
}

template <typename Index>
__global__ __launch_bounds__(kThreads) void list_split_rows(const SpanRule<Index> rule, const Index* __restrict__ spans,
                                                            Index* __restrict__ splits) {
  const int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x + 1;
  if (k >= rule.num_spans) return;
  const Boundary here{spans[2 * k], spans[2 * k + 1]}, before{spans[2 * k - 2], spans[2 * k - 1]};
  if (!rule.is_inside(here) || (before.row == here.row && rule.is_inside(before))) return;
  int64_t low = k, high = rule.num_spans - 1;  // last boundary in the same row
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (spans[2 * middle] == here.row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  using Count = typename Counter<Index>::type;
  const bool is_short = low - k + 2 <= kShortRowPartials;
  const int64_t place = int64_t(atomicAdd(reinterpret_cast<Count*>(splits) + (is_short ? 0 : 1), Count(1)));
  const int64_t entry = is_short ? 1 + place : rule.num_spans - place;
  splits[2 * entry] = Index(k);
  splits[2 * entry + 1] = Index(low);
}

}  // namespace

using bridge::ScalarType;
using bridge::Tensor;

std::tuple<Tensor, Tensor> build_spans_cuda(const Tensor& rowptr, int64_t num_edges, int64_t num_spans) {
  const char* op = "build_spans";
  const bridge::CudaCall call(rowptr);
  const ScalarType index = rowptr.scalar_type();
  STD_TORCH_CHECK(bridge::is_index_type(index), op, ": rowptr must be int32 or int64");
  bridge::check_tensor(rowptr, op, "rowptr", index, {-1});
  STD_TORCH_CHECK(rowptr.numel() >= 1 && num_spans >= 1 && num_edges >= 0, op,
                  ": rowptr must be [num_rows + 1] and num_spans >= 1");
  Tensor spans = bridge::empty_like_device(rowptr, {num_spans + 1, 2}, index);
  Tensor splits = bridge::empty_like_device(rowptr, {num_spans + 1, 2}, index);
  const auto build = [&](auto zero) {
    using Index = decltype(zero);
    const SpanRule<Index> rule{bridge::read_pointer<Index>(rowptr), rowptr.numel() - 1, num_spans};
    const int blocks = int(ceil_div<int64_t>(num_spans + 1, kThreads));
    check_cuda(cudaMemsetAsync(splits.data_ptr(), 0, size_t(num_spans + 1) * 2 * sizeof(Index), call.stream), "memset");
    find_boundaries<Index><<<blocks, kThreads, 0, call.stream>>>(rule, bridge::write_pointer<Index>(spans));
    list_split_rows<Index><<<blocks, kThreads, 0, call.stream>>>(rule, bridge::read_pointer<Index>(spans),
                                                                 bridge::write_pointer<Index>(splits));
    check_cuda(cudaGetLastError(), "build_spans launch");
  };
  if (index == ScalarType::Int) {
    build(int32_t{});
  } else {
    build(int64_t{});
  }
  return {spans, splits};
}

}  // namespace gnnagg
