// The reducer of attention's forward pass: a softmax-weighted sum of feature rows, kept in one pass over the edges.
#pragma once

#include "cuda/heads.cuh"
#include "cuda/softmax.cuh"
#include "cuda/span_walk.cuh"

namespace gnnagg {

// What a partial keeps of a row and head: greatest score, sum of weights, sum of the positive scores' weights.
constexpr int kPartialScores = 3;

// out[row] = sum of weight * factor * values / (sum of weight + 1e-16). With kPositive also what the node-local gradient of
// GAT needs: the same sum and the sum of weights over the edges whose score lies on the upper side of the LeakyReLU.
//
// The greatest score and the weighted sum are alike, or a packet's, in every lane of a head; the sums of weights are those of
// the edges that the lane owns (heads.cuh), and are added when the row ends.
template <typename T, int kBytes, int kOwners, bool kPositive>
struct SoftmaxReducer {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  static constexpr int kSize = Vector::kSize;
  static constexpr int kPositives = kPositive ? kSize : 1;

  struct Target {
    T* __restrict__ out;                  // [num_rows, H * C]
    Acc* __restrict__ lse;                // [num_rows, H]
    T* __restrict__ positive_out;         // [num_rows, H * C] when kPositive
    Acc* __restrict__ positive_alpha;     // [num_rows, H] when kPositive
    Acc* __restrict__ partials;           // [2 num_spans, H * C]
    Acc* __restrict__ partial_scores;     // [2 num_spans, H, 3]: greatest, sum, positive sum
    Acc* __restrict__ partial_positives;  // [2 num_spans, H * C] when kPositive
  };
  struct State {
    Acc value[kSize];
    RunningSoftmax<Acc> softmax;
    Acc positive[kPositives];
    Acc positive_sum;
  };

  using Owner = EdgeOwner<kOwners>;

  Target target;
  HeadPlace place;
  Owner owner;
  State state;

  __device__ __forceinline__ SoftmaxReducer(const Target& to, const HeadPlace& at, const Owner& own)
      : target(to), place(at), owner(own) {}

  __device__ __forceinline__ void reset() {
    state.softmax.reset();
    state.positive_sum = Acc(0);
#pragma unroll
    for (int i = 0; i < kSize; ++i) state.value[i] = Acc(0);
#pragma unroll
    for (int i = 0; i < kPositives; ++i) state.positive[i] = Acc(0);
  }
  // Edges [from, to) of a batch, all of this row: the scaled scores of those that this lane owns, the factors that dropout puts
  // on their weights, and `packet(u)`, everyone's feature rows.
  template <typename PacketOf>
  __device__ __forceinline__ void add(int from, int to, const Acc (&score)[Owner::kOwned],
                                      const bool (&positive)[Owner::kOwned], const Acc (&factor)[Owner::kOwned],
                                      PacketOf packet) {
    Acc most = SoftmaxLimits<Acc>::kLowestScore;
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) {
      if (owner.has(o, from, to)) most = greater(score[o], most);
    }
    state.softmax.raise(owner.greatest_of_owners(most), [&](Acc shrink) {
      state.positive_sum *= shrink;
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[i] *= shrink;
#pragma unroll
      for (int i = 0; i < kPositives; ++i) state.positive[i] *= shrink;
    });
    Acc share[Owner::kOwned];  // with kPositive negated where the score is not positive
#pragma unroll
    for (int o = 0; o < Owner::kOwned; ++o) {
      const Acc weight = owner.has(o, from, to) ? Exponent<Acc>::exp(score[o] - state.softmax.greatest) : Acc(0);
      state.softmax.sum += weight;
      share[o] = weight * factor[o];
      if constexpr (kPositive) {
        if (positive[o]) {
          state.positive_sum += weight;
        } else {
          share[o] = -share[o];
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kEdgeBatch; ++u) {
      if (u < from || u >= to) continue;
      const Acc signed_share = owner.of_edge(share, u);
      const Acc of_edge = kPositive ? abs(signed_share) : signed_share;
      Acc values[kSize];
      Vector::unpack(packet(u), values);
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[i] += of_edge * values[i];
      if constexpr (kPositive) {
        if (signed_share > Acc(0)) {
#pragma unroll
          for (int i = 0; i < kSize; ++i) state.positive[i] += of_edge * values[i];
        }
      }
    }
  }
  __device__ __forceinline__ void merge(const State& other) {
    state.softmax.merge(other.softmax, [&](Acc mine, Acc theirs) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) state.value[i] = state.value[i] * mine + other.value[i] * theirs;
      if constexpr (kPositive) {
        state.positive_sum = state.positive_sum * mine + other.positive_sum * theirs;
#pragma unroll
        for (int i = 0; i < kSize; ++i) state.positive[i] = state.positive[i] * mine + other.positive[i] * theirs;
      }
    });
  }
  __device__ __forceinline__ void store_partial(int64_t slot) const {
    const Acc sum = owner.sum_of_owners(state.softmax.sum), positive_sum = sum_of_positive();
    if (!place.active) return;
    Span<Acc, kSize>::store(target.partials + place.row(slot), state.value);
    if constexpr (kPositive) Span<Acc, kSize>::store(target.partial_positives + place.row(slot), state.positive);
    if (!place.leads) return;
    Acc* scores = target.partial_scores + place.score(slot) * kPartialScores;
    __stcg(scores, state.softmax.greatest);
    __stcg(scores + 1, sum);
    if constexpr (kPositive) __stcg(scores + 2, positive_sum);
  }
  template <typename Index>
  __device__ __forceinline__ void merge_partial(int64_t slot, Index) {
    State other;
    Span<Acc, kSize>::load(target.partials + place.row(slot), other.value);
    if constexpr (kPositive) Span<Acc, kSize>::load(target.partial_positives + place.row(slot), other.positive);
    const Acc* scores = target.partial_scores + place.score(slot) * kPartialScores;
    const bool counts = owner.own == 0;  // of the owners one takes the whole sum
    other.softmax = {__ldcg(scores), counts ? __ldcg(scores + 1) : Acc(0)};
    if constexpr (kPositive) other.positive_sum = counts ? __ldcg(scores + 2) : Acc(0);
    merge(other);
  }
  template <typename Index>
  __device__ __forceinline__ void store_row(Index row, Index edges) const {
    const RunningSoftmax<Acc> whole = {state.softmax.greatest, owner.sum_of_owners(state.softmax.sum)};
    const Acc positive_sum = sum_of_positive();
    if (!place.active) return;
    const Acc inverse = edges > 0 ? whole.inverse() : Acc(0);
    Acc values[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = state.value[i] * inverse;
    Vector::store(target.out + place.row(row), values);
    if constexpr (kPositive) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[i] = state.positive[i] * inverse;
      Vector::store(target.positive_out + place.row(row), values);
    }
    if (!place.leads) return;
    target.lse[place.score(row)] = edges > 0 ? whole.logsumexp() : Acc(0);
    if constexpr (kPositive) target.positive_alpha[place.score(row)] = positive_sum * inverse;
  }

 private:
  __device__ __forceinline__ Acc sum_of_positive() const {
    return kPositive ? owner.sum_of_owners(state.positive_sum) : Acc(0);
  }
};

}  // namespace gnnagg
