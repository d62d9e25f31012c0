// The rules of every reduction, for one feature of one row: identity, update, merge, and what NaN, ties and an empty row
// give. Kernels call these and never branch on a reduction's name.
//
// Empty row: 0 for every reduction. NaN: any NaN in the row gives NaN. Ties of max and min: values that compare equal
// (and NaN with NaN) tie; the gradient is split equally among them, duplicates of an edge included.
#pragma once

#include "common/numeric.h"

namespace gnnagg {

// Encoding of the winner of max/min: a slot >= 0 when one edge wins, kNoWinner for an empty row, and minus the number of
// winning edges (<= -2) when several tie. Where all of them are duplicates of one edge, the slot of any one of them is as
// good as the count, because all of the gradient goes to one source; a kernel may give either.
constexpr int kNoWinner = -1;

template <typename Index>
GNNAGG_HOST_DEVICE Index winner_count(Index winner) {
  return winner >= 0 ? Index(1) : (winner == kNoWinner ? Index(0) : Index(-winner));
}

// candidate replaces current: strictly greater, or the first NaN. (min is max of the negated values.)
template <typename Acc>
GNNAGG_HOST_DEVICE bool beats(Acc candidate, Acc current) {
  return candidate > current || (candidate != candidate && current == current);
}

template <typename Acc>
GNNAGG_HOST_DEVICE bool ties_with(Acc candidate, Acc current) {
  return candidate == current || (candidate != candidate && current != current);
}

// Greatest value of a row and who holds it. Starts as {-infinity, kNoWinner}.
template <typename Acc, typename Index>
GNNAGG_HOST_DEVICE void merge_winner(Acc& value, Index& winner, Acc other_value, Index other_winner) {
  if (beats(other_value, value)) {
    value = other_value;
    winner = other_winner;
  } else if (ties_with(other_value, value)) {
    const Index count = winner_count(winner) + winner_count(other_winner);
    if (count > 1) {
      winner = Index(-count);
    } else if (winner == kNoWinner) {
      winner = other_winner;
    }
  }
}

// Variance of a row by sums shifted by its first value: `shift` = that value, `sum` = sum of (x - shift),
// `square` = sum of (x - shift)^2 over `count` edges. Two pieces merge by the parallel formula of Chan, Golub and LeVeque.
template <typename Acc>
struct Moments {
  Acc shift, sum, square;

  GNNAGG_HOST_DEVICE void reset() { shift = sum = square = Acc(0); }

  GNNAGG_HOST_DEVICE void update(Acc value, bool first) {
    if (first) shift = value;
    const Acc distance = value - shift;
    sum += distance;
    square += distance * distance;
  }

  // Sum of squared distances from the mean.
  GNNAGG_HOST_DEVICE Acc spread(Acc count) const {
    const Acc value = square - sum * (sum / count);
    return value < Acc(0) ? Acc(0) : value;
  }

  GNNAGG_HOST_DEVICE void merge(Acc count, const Moments& other, Acc other_count) {
    if (other_count == Acc(0)) return;
    if (count == Acc(0)) {
      *this = other;
      return;
    }
    const Acc mean = shift + sum / count;
    const Acc gap = (other.shift + other.sum / other_count) - mean;
    const Acc total = count + other_count;
    const Acc spread_total = spread(count) + other.spread(other_count) + gap * gap * (count * (other_count / total));
    shift = mean + gap * (other_count / total);  // from here on the shift is the mean itself
    sum = Acc(0);
    square = spread_total;
  }

  GNNAGG_HOST_DEVICE Acc variance(Acc count) const { return count == Acc(0) ? Acc(0) : spread(count) / count; }
};

}  // namespace gnnagg
