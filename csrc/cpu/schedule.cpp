// build_spans on the CPU: boundaries by the rule of common/schedule.h, then the list of split rows.
#include "common/schedule.h"

#include "cpu/ops.h"

namespace gnnagg::cpu {
namespace {

// A binary search over the row pointer reads about this much.
constexpr int64_t kBoundaryBytes = 1024;
constexpr int64_t kBoundariesPerTurn = 64;

template <typename Index>
void build(const Tensor& rowptr, int64_t num_spans, Tensor& spans_tensor, Tensor& splits_tensor) {
  const SpanRule<Index> rule{bridge::read_pointer<Index>(rowptr), rowptr.numel() - 1, num_spans};
  Index* spans = bridge::write_pointer<Index>(spans_tensor);
  Index* splits = bridge::write_pointer<Index>(splits_tensor);
  bridge::parallel_items(num_spans + 1, kBoundariesPerTurn, num_spans * kBoundaryBytes,
                         [&](int64_t begin, int64_t end) {
                           for (int64_t k = begin; k < end; ++k) {
                             const Boundary boundary = rule.boundary(k);
                             spans[2 * k] = Index(boundary.row);
                             spans[2 * k + 1] = Index(boundary.edge);
                           }
                         });
  const auto is_inside = [&](int64_t k) { return rule.is_inside({int64_t(spans[2 * k]), int64_t(spans[2 * k + 1])}); };
  int64_t num_short = 0, num_long = 0;
  for (int64_t k = 1; k < num_spans;) {
    if (!is_inside(k)) {
      ++k;
      continue;
    }
    // What SpanRule::split_row_from(k) says, read off the boundaries that are there already.
    int64_t last = k;
    while (last + 1 < num_spans && spans[2 * (last + 1)] == spans[2 * k]) ++last;
    const bool is_short = last - k + 2 <= kShortRowPartials;
    const int64_t entry = is_short ? ++num_short : num_spans - num_long++;
    splits[2 * entry] = Index(k);
    splits[2 * entry + 1] = Index(last);
    k = last + 1;
  }
  splits[0] = Index(num_short);
  splits[1] = Index(num_long);
}

}  // namespace

int64_t count_split_rows(const Tensor& splits) {
  const IndexArray counts = index_array(splits);
  return counts[0] + counts[1];
}

std::tuple<Tensor, Tensor> build_spans(Tensor rowptr, int64_t num_edges, int64_t num_spans) {
  const ScalarType index = bridge::check_csr(rowptr, rowptr, "build_spans");
  STD_TORCH_CHECK(num_edges >= 0, "build_spans: num_edges must not be negative, got ", num_edges);
  STD_TORCH_CHECK(num_spans >= 1, "build_spans: num_spans must be at least 1, got ", num_spans);
  Tensor spans = bridge::empty_like_device(rowptr, {num_spans + 1, 2}, index);
  Tensor splits = bridge::zeros_like_device(rowptr, {num_spans + 1, 2}, index);
  if (index == ScalarType::Long) {
    build<int64_t>(rowptr, num_spans, spans, splits);
  } else {
    build<int32_t>(rowptr, num_spans, spans, splits);
  }
  return {spans, splits};
}

}  // namespace gnnagg::cpu
