// The span rule: how the rows of one CSR are cut into pieces of equal cost. The CPU and the CUDA builder both call it,
// and nothing else decides where a span begins.
//
// Terms. A row is a target node, a slot a position in col. A row costs its edges + kRowCost (the store of its result).
// A span is a contiguous run of slots, [boundary k, boundary k + 1), of about total / K cost; it may begin and end inside
// a row. A row with a boundary strictly inside it is split: every span that touches it leaves one partial, and the
// partials are combined in span order.
//
// Partial slots. Span k owns two: 2k for the row it begins inside of (or that it lies within), 2k + 1 for a row that
// begins in it and ends later. So the split row whose inside boundaries are first..last has the partials
// 2(first-1) + 1, 2 first, 2(first+1), ..., 2 last.
//
// A boundary that would cut fewer than `fragment` edges off either end of a row moves to that end. Rows shorter than
// twice the fragment are therefore never split, and a span is off balance by at most 1/8 of its cost.
#pragma once

#include <cstdint>

#include "common/numeric.h"

namespace gnnagg {

// Cost of a row beside its edges, in edges. One 16-byte store and one row pointer per lane weigh about two edge loads.
constexpr int64_t kRowCost = 2;
// Longest fragment that is folded into the neighbouring span, and the share of a span's cost that bounds it.
constexpr int64_t kMaxFragment = 64;
constexpr int64_t kFragmentShare = 8;
// A split row with more partials than this is combined by a whole thread block, others by one sub-warp group.
constexpr int64_t kShortRowPartials = 32;

struct Boundary {
  int64_t row;   // row that the boundary lies in, or begins: in [0, num_rows]
  int64_t edge;  // slot, in [rowptr[row], rowptr[row + 1]); rowptr[row] means that no row is cut here
};

// A split row: the boundaries strictly inside it. `last < first` says that there is none.
struct SplitRow {
  int64_t first;
  int64_t last;
};

template <typename Index>
struct SpanRule {
  const Index* rowptr;  // [num_rows + 1]
  int64_t num_rows;
  int64_t num_spans;

  GNNAGG_HOST_DEVICE int64_t row_cost_begin(int64_t row) const { return int64_t(rowptr[row]) + kRowCost * row; }
  GNNAGG_HOST_DEVICE int64_t total_cost() const { return row_cost_begin(num_rows); }

  // Cost position of boundary k: k * total / K without the product overflowing 64 bits.
  GNNAGG_HOST_DEVICE int64_t cost_at(int64_t k) const {
    const int64_t total = total_cost();
    return total / num_spans * k + total % num_spans * k / num_spans;
  }

  GNNAGG_HOST_DEVICE int64_t fragment() const {
    const int64_t share = total_cost() / num_spans / kFragmentShare;
    return share < 1 ? 1 : (share < kMaxFragment ? share : kMaxFragment);
  }

  GNNAGG_HOST_DEVICE Boundary boundary(int64_t k) const {
    if (k <= 0) return {0, 0};
    if (k >= num_spans) return {num_rows, int64_t(rowptr[num_rows])};
    const int64_t cost = cost_at(k);
    int64_t low = 0, high = num_rows;  // largest row with row_cost_begin(row) <= cost
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (row_cost_begin(middle) <= cost) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low == num_rows) return {num_rows, int64_t(rowptr[num_rows])};
    const int64_t begin = rowptr[low], degree = int64_t(rowptr[low + 1]) - begin;
    const int64_t offset = cost - row_cost_begin(low) - kRowCost;
    const int64_t before = offset < 0 ? 0 : offset, after = degree - before;
    if (before < fragment() && before <= after) return {low, begin};
    if (after < fragment()) return {low + 1, begin + degree};
    return {low, begin + before};
  }

  GNNAGG_HOST_DEVICE bool is_inside(const Boundary& b) const {
    return b.row < num_rows && b.edge > int64_t(rowptr[b.row]);
  }

  // The split row whose first inside boundary is k (1 <= k < num_spans), if there is one.
  GNNAGG_HOST_DEVICE SplitRow split_row_from(int64_t k) const {
    const Boundary here = boundary(k);
    if (!is_inside(here)) return {1, 0};
    const Boundary before = boundary(k - 1);
    if (before.row == here.row && is_inside(before)) return {1, 0};
    int64_t low = k, high = num_spans - 1;  // last boundary in the same row
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (boundary(middle).row == here.row) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return {k, low};
  }
};

}  // namespace gnnagg
