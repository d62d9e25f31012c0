// The node-local start of every attention gradient: D[i, h] = <dO[i, h], out[i, h]>, kept with what else an edge needs to know of
// its target.
#pragma once

#include "cuda/reduce_rows.cuh"
#include "cuda/softmax.cuh"

namespace gnnagg {

// Calls finish(item, D, <dO, positive_out>) in one lane for every target and head, item = i * H + h. `positive_out` may be null.
// Called by every thread: one small group for each item.
template <typename T, int kBytes, typename Finish>
__device__ __forceinline__ void for_each_target(const T* grad, const T* out, const T* positive_out, int64_t num_dst,
                                                const HeadTiles& tiles, Finish finish) {
  using Vector = Packet<T, kBytes>;
  using Acc = acc_t<T>;
  int lanes = 1;
  while (lanes < tiles.packets) lanes *= 2;
  const Group group(lanes);
  const int channels = tiles.channels;
  for (int64_t item = group.index(); item < num_dst * tiles.heads; item += group.count()) {
    Acc dot = Acc(0), positive_dot = Acc(0);
    for (int c = group.lane * Vector::kSize; c < channels; c += group.lanes * Vector::kSize) {
      Acc of_grad[Vector::kSize], of_out[Vector::kSize];
      Vector::unpack(Vector::load(grad + item * channels + c), of_grad);
      Vector::unpack(Vector::load(out + item * channels + c), of_out);
#pragma unroll
      for (int i = 0; i < Vector::kSize; ++i) dot += of_grad[i] * of_out[i];
      if (positive_out) {
        Vector::unpack(Vector::load(positive_out + item * channels + c), of_out);
#pragma unroll
        for (int i = 0; i < Vector::kSize; ++i) positive_dot += of_grad[i] * of_out[i];
      }
    }
    for (int step = 1; step < group.lanes; step *= 2) {
      dot += __shfl_xor_sync(group.mask(), dot, step, group.lanes);
      positive_dot += __shfl_xor_sync(group.mask(), positive_dot, step, group.lanes);
    }
    if (group.lane == 0) finish(item, dot, positive_dot);
  }
}

}  // namespace gnnagg
