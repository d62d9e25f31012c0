// Packets of feature rows between the request for a batch of edges and its use: in registers, or on their way into shared memory.
//
// A packet in registers takes four of them, so kernels with much state of their own have one batch there and wait for it. cp.async takes
// none: it copies 16 bytes from memory, past the L1 cache, to a place in shared memory. Every thread has places of its own, one for each
// packet of kAhead + 1 batches, and neither writes nor reads another's; so it waits for its own copies alone, and there is no barrier.
#pragma once

#include "cuda/span_walk.cuh"

namespace gnnagg {

// kItems packets of kBytes of a batch, in its registers.
template <int kBytes, int kItems>
struct RegisterFlight {
  using Raw = typename RawBytes<kBytes>::type;
  static constexpr int kAhead = 0;        // batches that are requested before the one in use
  static constexpr int kSharedBytes = 0;  // of a block
  struct Batch {
    Raw raw[kItems];
  };

  __device__ __forceinline__ void begin(Batch&) {}
  __device__ __forceinline__ void request(Batch& batch, int item, const void* from) const {
    batch.raw[item] = __ldg(static_cast<const Raw*>(from));
  }
  static __device__ __forceinline__ Raw get(const Batch& batch, int item) { return batch.raw[item]; }
  static __device__ __forceinline__ void commit() {}
  static __device__ __forceinline__ void wait() {}
};

// kItems packets of 16 bytes of a batch, in dynamic shared memory: kSharedBytes of it for a block of kAttentionThreads.
template <int kItems>
struct RingFlight {
  using Raw = uint4;
  static constexpr int kItemBytes = kLaneBytes * kAttentionThreads;
  static constexpr int kBatchBytes = kItems * kItemBytes;
  static constexpr int kFit = kRingBytes / kBatchBytes - 1;
  static constexpr int kAhead = kFit < kMostAhead ? kFit : kMostAhead;
  static constexpr int kSharedBytes = (kAhead + 1) * kBatchBytes;
  static_assert(kAhead >= 1, "two batches fit");
  struct Batch {
    uint32_t place;  // of this thread's first item, as shared memory is addressed
  };

  uint32_t next;  // of the batch to be requested

  __device__ __forceinline__ RingFlight() : next(first()) {}
  __device__ __forceinline__ void begin(Batch& batch) {
    batch.place = next;
    next = next + kBatchBytes < first() + kSharedBytes ? next + kBatchBytes : first();
  }
  __device__ __forceinline__ void request(const Batch& batch, int item, const void* from) const {
    const uint32_t to = batch.place + uint32_t(item) * kItemBytes;
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    const uint4 raw = __ldcg(static_cast<const uint4*>(from));
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
                 : "memory");
#endif
  }
  // Read again wherever it is asked for: a compiler that kept it would take the registers back.
  static __device__ __forceinline__ Raw get(const Batch& batch, int item) {
    Raw raw;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "r"(batch.place + uint32_t(item) * kItemBytes));
    return raw;
  }
  // Ends the requests of one batch.
  static __device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  // Until all batches but the last kAhead are there.
  static __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kAhead) : "memory");
#endif
  }

 private:
  static __device__ __forceinline__ uint32_t first() {
    extern __shared__ uint4 ring[];
    return uint32_t(__cvta_generic_to_shared(ring + threadIdx.x));
  }
};

template <int kBytes, int kItems>
struct FlightOf {
  using type = RegisterFlight<kBytes, kItems>;
};
template <int kItems>
struct FlightOf<kLaneBytes, kItems> {
  using type = RingFlight<kItems>;
};
template <int kBytes, int kItems>
using PacketFlight = typename FlightOf<kBytes, kItems>::type;

}  // namespace gnnagg
