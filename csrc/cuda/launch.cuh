// LaunchPlan: how a kernel with several phases is launched. Either once, cooperatively, with the whole grid co-resident and
// grid.sync() between phases; or once per phase. Both run the same code over the same schedule and give the same bits.
//
// A kernel that is launched here takes one argument struct with a member `Phases phases`, runs the phases it is told to,
// and passes grid.sync() only if `phases.together`.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace gnnagg {

// What GNNAGG_LAUNCH and gnnagg.launch_mode choose.
enum class LaunchMode : int { kAuto = 0, kCooperative = 1, kStaged = 2 };

LaunchMode launch_mode();
LaunchMode set_launch_mode(LaunchMode mode);

// Which phases a launch runs.
struct Phases {
  uint32_t bits;  // bit p: phase p runs in this launch
  bool together;  // all in one launch: grid.sync() stands between them

  __host__ __device__ bool has(int phase) const { return bits >> phase & 1u; }
};

struct LaunchPlan {
  const void* kernel;
  int grid;           // blocks
  int block;          // threads
  int shared_bytes;   // of dynamic shared memory, a block
  int blocks_per_sm;  // that can be co-resident, in the current context
  int sms;
  bool cooperative;

  // Plans a launch of `useful_blocks` blocks at most, on the current device. Takes the occupancy of this very kernel, which
  // MPS and MIG shrink, so a cooperative grid is co-resident by construction.
  static LaunchPlan of(const void* kernel, int block, int64_t useful_blocks, int num_phases, int shared_bytes = 0);
};

// The plan of this thread's last launch; all zero before the first.
LaunchPlan last_launch_plan();

// Throws std::runtime_error that names the call and CUDA's reason.
void check_cuda(cudaError_t status, const char* what);

namespace detail {
// Launches; for a cooperative grid that the driver refuses as too large returns false and clears the error.
bool launch(const LaunchPlan& plan, void* args, bool cooperative, cudaStream_t stream);
}  // namespace detail

// The one launch site: `num_rounds` times phases 0 .. num_phases - 1 of the plan's kernel, in order. `set_rounds(first, last)` tells
// the kernel's arguments which rounds it is to run.
template <typename Args, typename SetRounds>
void launch_rounds(const LaunchPlan& plan, Args& args, int64_t num_rounds, int num_phases, SetRounds set_rounds,
                   cudaStream_t stream) {
  if (plan.cooperative) {
    set_rounds(0, num_rounds);
    args.phases = {(1u << num_phases) - 1u, true};
    if (detail::launch(plan, &args, true, stream)) return;
  }
  for (int64_t round = 0; round < num_rounds; ++round) {
    set_rounds(round, round + 1);
    for (int phase = 0; phase < num_phases; ++phase) {
      args.phases = {1u << phase, false};
      detail::launch(plan, &args, false, stream);
    }
  }
}

// A kernel of one round.
template <typename Args>
void launch_phases(const LaunchPlan& plan, Args args, int num_phases, cudaStream_t stream) {
  launch_rounds(plan, args, 1, num_phases, [](int64_t, int64_t) {}, stream);
}

}  // namespace gnnagg
