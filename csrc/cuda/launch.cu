// The host side of LaunchPlan: occupancy, mode, the launch itself.
#include "cuda/launch.cuh"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace gnnagg {
namespace {

std::atomic<int> mode{int(LaunchMode::kAuto)};
std::atomic<bool> cooperative_refused{false};
thread_local LaunchPlan last_plan{};

struct Residency {
  int blocks_per_sm;
  int sms;
  bool cooperative;
};

Residency residency(const void* kernel, int block, int shared_bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, Residency> known;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find({kernel, device});
  if (found != known.end()) return found->second;
  Residency result{};
  int supported = 0;
  check_cuda(cudaDeviceGetAttribute(&result.sms, cudaDevAttrMultiProcessorCount, device), "multiprocessor count");
  check_cuda(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, device), "cooperative launch attribute");
  if (shared_bytes > 0) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "shared memory");
  }
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&result.blocks_per_sm, kernel, block, size_t(shared_bytes)),
             "occupancy");
  result.cooperative = supported != 0 && result.blocks_per_sm > 0;
  known.insert({{kernel, device}, result});
  return result;
}

}  // namespace

LaunchPlan last_launch_plan() { return last_plan; }

LaunchMode launch_mode() { return LaunchMode(mode.load(std::memory_order_relaxed)); }
LaunchMode set_launch_mode(LaunchMode next) { return LaunchMode(mode.exchange(int(next))); }

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("gnnagg: ") + what + " failed: " + cudaGetErrorString(status));
}

LaunchPlan LaunchPlan::of(const void* kernel, int block, int64_t useful_blocks, int num_phases, int shared_bytes) {
  const Residency here = residency(kernel, block, shared_bytes);
  const int64_t resident = int64_t(std::max(here.blocks_per_sm, 1)) * here.sms;
  const int grid = int(std::max<int64_t>(1, std::min(resident, useful_blocks)));
  // auto is cooperative wherever there is more than one phase. H200, sums in a replayed CUDA graph, cooperative against two
  // launches, us: 50 k edges 8.3 / 8.7 (F = 64 fp32), 200 k 13.4 / 13.6, 1 M 36.8 / 38.4; in eager mode the second launch
  // costs the host 3 to 5 us more; from 2 M edges on they are equal, and without split rows the barrier is skipped.
  const bool wanted = launch_mode() != LaunchMode::kStaged && num_phases > 1;
  const bool cooperative = wanted && here.cooperative && !cooperative_refused.load(std::memory_order_relaxed);
  return {kernel, grid, block, shared_bytes, here.blocks_per_sm, here.sms, cooperative};
}

bool detail::launch(const LaunchPlan& plan, void* args, bool cooperative, cudaStream_t stream) {
  last_plan = plan;
  last_plan.cooperative = cooperative;
  void* arguments[] = {args};
  if (!cooperative) {
    check_cuda(cudaLaunchKernel(plan.kernel, plan.grid, plan.block, arguments, size_t(plan.shared_bytes), stream),
               "kernel launch");
    return true;
  }
  const cudaError_t status = cudaLaunchCooperativeKernel(plan.kernel, dim3(plan.grid), dim3(plan.block), arguments,
                                                         size_t(plan.shared_bytes), stream);
  if (status == cudaErrorCooperativeLaunchTooLarge) {
    cudaGetLastError();
    if (!cooperative_refused.exchange(true)) {
      std::fprintf(stderr,
                   "gnnagg: the driver refused a cooperative launch of %d blocks (%d per SM on %d SMs); "
                   "phases are launched one by one from here on\n",
                   plan.grid, plan.blocks_per_sm, plan.sms);
    }
    return false;
  }
  check_cuda(status, "cooperative kernel launch");
  return true;
}

}  // namespace gnnagg
