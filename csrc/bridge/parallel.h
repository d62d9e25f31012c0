// Work shared among torch's intra-op threads (torch.set_num_threads counts).
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/numeric.h"

namespace gnnagg::bridge {

// Work below this many bytes moved is not worth waking a second thread (about 5 us).
constexpr int64_t kSerialBytes = 64 * 1024;

// Calls work(begin, end) until [0, count) is covered once, `grain` items at a time. Threads take the next items when
// they are free, so a thread that was held up takes fewer. `bytes` = what all items move. work must not throw.
template <typename Work>
void parallel_items(int64_t count, int64_t grain, int64_t bytes, const Work& work) {
  const int64_t steps = ceil_div(count, grain);
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), steps);
  if (threads <= 1 || bytes < kSerialBytes) {
    if (count > 0) work(int64_t(0), count);
    return;
  }
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      work(begin, std::min(begin + grain, count));
    }
  });
}

}  // namespace gnnagg::bridge
