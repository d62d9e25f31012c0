// dropout_mask: out[e, h] = 1 / (1 - p) where (seed, e, h) is kept, else 0 (common/philox.h). One thread an edge and block of four
// heads; ordinary launch; nothing need be zeroed.
#include "bridge/attention.h"

namespace gnnagg {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void dropout_mask_kernel(const int64_t* __restrict__ seed, int64_t num_edges,
                                                                int64_t heads, uint32_t threshold, float scale,
                                                                float* __restrict__ out) {
  const DropoutRule rule{uint64_t(__ldg(seed)), threshold};
  const int64_t blocks = ceil_div<int64_t>(heads, kPhiloxWords), stride = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < num_edges * blocks; i += stride) {
    const int64_t edge = i / blocks, first = (i - edge * blocks) * kPhiloxWords;
    const uint32_t kept = rule.kept_of_block(edge, first / kPhiloxWords);
    for (int w = 0; w < kPhiloxWords && first + w < heads; ++w) {
      out[edge * heads + first + w] = kept >> w & 1u ? scale : 0.0f;
    }
  }
}

}  // namespace

using bridge::ScalarType;
using bridge::Tensor;

Tensor dropout_mask_cuda(const Tensor& seed, int64_t num_edges, int64_t heads, double p) {
  const char* op = "dropout_mask";
  const bridge::CudaCall call(seed);
  bridge::check_tensor(seed, op, "seed", ScalarType::Long, {1});
  STD_TORCH_CHECK(num_edges >= 0 && heads >= 0, op, ": num_edges and heads must not be negative");
  STD_TORCH_CHECK(p >= 0.0 && p <= 1.0, op, ": p must be in [0, 1], got ", p);
  Tensor out = bridge::empty_like_device(seed, {num_edges, heads}, ScalarType::Float);
  if (out.numel() == 0) return out;
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t blocks = ceil_div<int64_t>(num_edges * ceil_div<int64_t>(heads, kPhiloxWords), kThreads);
  dropout_mask_kernel<<<int(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0, call.stream>>>(
      bridge::read_pointer<int64_t>(seed), num_edges, heads, DropoutRule::threshold_of(p),
      float(DropoutRule::scale_of(p)), bridge::write_pointer<float>(out));
  check_cuda(cudaGetLastError(), "dropout_mask launch");
  return out;
}

}  // namespace gnnagg
