// Packets of feature rows between the request for a batch of edges and its use: in registers, or on their way into shared memory.
//
// A packet in registers takes four of them, so kernels with much state of their own have one batch there and wait for it. cp.async takes
// none: it copies 16 bytes, or 8, from memory to a place in shared memory. Every thread has places of its own, one for each packet of
// kAhead + 1 batches, and neither writes nor reads another's; so it waits for its own copies alone, and there is no barrier.
#pragma once

#include <type_traits>

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

// kItems packets of kBytes, 16 or 8, of a batch, in dynamic shared memory: kSharedBytes of it for a block of kAttentionThreads.
template <int kBytes, int kItems>
struct RingFlight {
  using Raw = typename RawBytes<kBytes>::type;
  static constexpr int kItemBytes = kBytes * kAttentionThreads;
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
    // Past the L1 cache, where 16 bytes allow it. H200, gradient of GAT, reddit-like 1x64 fp32: 6.1 ms, and 6.9 through it.
    if constexpr (kBytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
    }
#else
    const Raw raw = __ldcg(static_cast<const Raw*>(from));
    *static_cast<Raw*>(__cvta_shared_to_generic(to)) = raw;
#endif
  }
  // Read again wherever it is asked for: a compiler that kept it would take the registers back.
  static __device__ __forceinline__ Raw get(const Batch& batch, int item) {
    const uint32_t from = batch.place + uint32_t(item) * kItemBytes;
    Raw raw;
    if constexpr (kBytes == 16) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                   : "r"(from));
    } else {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(raw.x), "=r"(raw.y) : "r"(from));
    }
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
    return uint32_t(__cvta_generic_to_shared(ring)) + threadIdx.x * kBytes;
  }
};

// Requests the packets of a batch's edges as its items 0, 1, ... `rows` is a PlainRows.
template <bool kWhole, typename Flight, typename Rows, typename Index>
__device__ __forceinline__ void request_rows(Flight& flight, typename Flight::Batch& packets, const Rows& rows,
                                             Index slot, Index begin, Index end, const Index (&ids)[kEdgeBatch]) {
  flight.begin(packets);
#pragma unroll
  for (int u = 0; u < kEdgeBatch; ++u) {
    if (inside<kWhole>(Index(slot + u), begin, end)) flight.request(packets, u, rows.row(ids[u]));
  }
}

template <int kBytes, int kItems>
using PacketFlight =
    std::conditional_t<kBytes == 16 || kBytes == 8, RingFlight<kBytes, kItems>, RegisterFlight<kBytes, kItems>>;

}  // namespace gnnagg
