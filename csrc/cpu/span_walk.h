// Walks the rows of a span: which pieces of rows it holds, and where each piece's result goes.
#pragma once

#include <cstdint>

#include "common/schedule.h"
#include "cpu/kernels.h"

namespace gnnagg::cpu {

// One CSR and its schedule (see common/schedule.h), and what its arrays say.
struct SpanView : CsrArgs {
  explicit GNNAGG_HOST_DEVICE SpanView(const CsrArgs& csr) : CsrArgs(csr) {}

  GNNAGG_HOST_DEVICE int64_t live_edges() const { return rowptr[num_rows]; }
  GNNAGG_HOST_DEVICE int64_t num_split_rows() const { return splits[0] + splits[1]; }

  // The i-th split row: short ones lie at the front of `splits`, long ones at the back.
  GNNAGG_HOST_DEVICE SplitRow split_row(int64_t i) const {
    const int64_t entry = i < splits[0] ? 1 + i : num_spans - (i - splits[0]);
    return {splits[2 * entry], splits[2 * entry + 1]};
  }
  GNNAGG_HOST_DEVICE int64_t row_of(const SplitRow& split) const { return spans[2 * split.first]; }

  // Slots of partial p of a split row, p = 0 for the piece before its first inside boundary.
  GNNAGG_HOST_DEVICE int64_t num_partials(const SplitRow& split) const { return split.last - split.first + 2; }
  GNNAGG_HOST_DEVICE int64_t partial(const SplitRow& split, int64_t p) const {
    return p == 0 ? 2 * (split.first - 1) + 1 : 2 * (split.first + p - 1);
  }
  GNNAGG_HOST_DEVICE int64_t partial_edges(const SplitRow& split, int64_t p) const {
    const int64_t row = row_of(split);
    const int64_t begin = p == 0 ? rowptr[row] : spans[2 * (split.first + p - 1) + 1];
    const int64_t end = split.first + p > split.last ? rowptr[row + 1] : spans[2 * (split.first + p) + 1];
    return end - begin;
  }
};

// The rows of one span, in order: `while (walk.next()) ... walk.row, walk.begin, walk.end, walk.partial`.
class SpanWalk {
 public:
  int64_t row, begin, end;  // slots [begin, end) of `row`; none for an empty row
  int64_t partial;          // where the piece of a split row goes; kWholeRow when the row lies in this span
  static constexpr int64_t kWholeRow = -1;

  GNNAGG_HOST_DEVICE SpanWalk(const SpanView& view, int64_t k)
      : rowptr_(view.rowptr),
        span_(k),
        next_row_(view.spans[2 * k]),
        next_slot_(view.spans[2 * k + 1]),
        last_row_(view.spans[2 * k + 2]),
        last_slot_(view.spans[2 * k + 3]),
        begins_inside_(next_row_ < view.num_rows && next_slot_ > view.rowptr[next_row_]) {}

  GNNAGG_HOST_DEVICE bool next() {
    if (next_row_ > last_row_ || (next_row_ == last_row_ && !begins_inside_ && next_slot_ >= last_slot_)) return false;
    row = next_row_;
    begin = next_slot_;
    const bool ends_inside = row == last_row_;
    end = ends_inside ? last_slot_ : rowptr_[row + 1];
    partial = begins_inside_ ? 2 * span_ : (ends_inside ? 2 * span_ + 1 : kWholeRow);
    begins_inside_ = false;
    next_row_ = row + 1;
    next_slot_ = end;
    return true;
  }

 private:
  IndexArray rowptr_;
  int64_t span_, next_row_, next_slot_, last_row_, last_slot_;
  bool begins_inside_;
};

}  // namespace gnnagg::cpu
