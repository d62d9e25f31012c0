// Walks the rows of a span: which pieces of rows it holds, and where each piece's result goes.
#pragma once

#include <cstdint>

#include "common/schedule.h"
#include "cpu/kernels.h"

namespace gnnagg::cpu {

// One CSR and its schedule (see common/schedule.h). Index is int32_t or int64_t, the same for all four arrays.
template <typename Index>
struct SpanView {
  const Index* rowptr;  // [num_rows + 1]
  const Index* col;     // [E]
  const Index* spans;   // [num_spans + 1, 2]
  const Index* splits;  // [num_spans + 1, 2]
  int64_t num_rows;
  int64_t num_spans;

  explicit SpanView(const CsrArgs& csr)
      : rowptr(static_cast<const Index*>(csr.rowptr)),
        col(static_cast<const Index*>(csr.col)),
        spans(static_cast<const Index*>(csr.spans)),
        splits(static_cast<const Index*>(csr.splits)),
        num_rows(csr.num_rows),
        num_spans(csr.num_spans) {}

  int64_t live_edges() const { return rowptr[num_rows]; }
  int64_t num_split_rows() const { return int64_t(splits[0]) + int64_t(splits[1]); }

  // The i-th split row: short ones lie at the front of `splits`, long ones at the back.
  SplitRow split_row(int64_t i) const {
    const int64_t entry = i < int64_t(splits[0]) ? 1 + i : num_spans - (i - int64_t(splits[0]));
    return {splits[2 * entry], splits[2 * entry + 1]};
  }
  int64_t row_of(const SplitRow& split) const { return spans[2 * split.first]; }

  // Slots of partial p of a split row, p = 0 for the piece before its first inside boundary.
  int64_t num_partials(const SplitRow& split) const { return split.last - split.first + 2; }
  int64_t partial(const SplitRow& split, int64_t p) const {
    return p == 0 ? 2 * (split.first - 1) + 1 : 2 * (split.first + p - 1);
  }
  int64_t partial_edges(const SplitRow& split, int64_t p) const {
    const int64_t row = row_of(split);
    const int64_t begin = p == 0 ? int64_t(rowptr[row]) : int64_t(spans[2 * (split.first + p - 1) + 1]);
    const int64_t end =
        split.first + p > split.last ? int64_t(rowptr[row + 1]) : int64_t(spans[2 * (split.first + p) + 1]);
    return end - begin;
  }
};

// The rows of one span, in order: `while (walk.next()) ... walk.row, walk.begin, walk.end, walk.partial`.
template <typename Index>
class SpanWalk {
 public:
  int64_t row, begin, end;  // slots [begin, end) of `row`; none for an empty row
  int64_t partial;          // where the piece of a split row goes; kWholeRow when the row lies in this span
  static constexpr int64_t kWholeRow = -1;

  SpanWalk(const SpanView<Index>& view, int64_t k)
      : rowptr_(view.rowptr),
        span_(k),
        next_row_(view.spans[2 * k]),
        next_slot_(view.spans[2 * k + 1]),
        last_row_(view.spans[2 * k + 2]),
        last_slot_(view.spans[2 * k + 3]),
        begins_inside_(next_row_ < view.num_rows && next_slot_ > int64_t(view.rowptr[next_row_])) {}

  GNNAGG_HOST_DEVICE bool next() {
    if (next_row_ > last_row_ || (next_row_ == last_row_ && !begins_inside_ && next_slot_ >= last_slot_)) return false;
    row = next_row_;
    begin = next_slot_;
    const bool ends_inside = row == last_row_;
    end = ends_inside ? last_slot_ : int64_t(rowptr_[row + 1]);
    partial = begins_inside_ ? 2 * span_ : (ends_inside ? 2 * span_ + 1 : kWholeRow);
    begins_inside_ = false;
    next_row_ = row + 1;
    next_slot_ = end;
    return true;
  }

 private:
  const Index* rowptr_;
  int64_t span_, next_row_, next_slot_, last_row_, last_slot_;
  bool begins_inside_;
};

}  // namespace gnnagg::cpu
