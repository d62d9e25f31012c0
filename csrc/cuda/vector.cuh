// Loads and stores of kBytes at once, and their conversion to the accumulate type. Device code only; no torch header.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace gnnagg {

// Accumulate type: float for the half types and float, double for double.
template <typename T>
struct AccumulateType {
  using type = float;
};
template <>
struct AccumulateType<double> {
  using type = double;
};
template <typename T>
using acc_t = typename AccumulateType<T>::type;

template <int kBytes>
struct RawBytes;
template <>
struct RawBytes<2> {
  using type = uint16_t;
};
template <>
struct RawBytes<4> {
  using type = uint32_t;
};
template <>
struct RawBytes<8> {
  using type = uint2;
};
template <>
struct RawBytes<16> {
  using type = uint4;
};

__device__ __forceinline__ float to_acc(float value) { return value; }
__device__ __forceinline__ double to_acc(double value) { return value; }
__device__ __forceinline__ float to_acc(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_acc(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T from_acc(acc_t<T> value) {
  return value;
}
template <>
__device__ __forceinline__ __half from_acc<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_acc<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// kSize consecutive elements of T that travel in one load.
template <typename T, int kBytes>
struct Packet {
  static constexpr int kSize = kBytes / sizeof(T);
  static_assert(kSize >= 1 && kSize * sizeof(T) == kBytes, "a packet holds whole elements");
  using Raw = typename RawBytes<kBytes>::type;
  using Acc = acc_t<T>;

  union Bits {
    Raw raw;
    T element[kSize];
    __device__ __forceinline__ Bits() {}
  };

  static __device__ __forceinline__ Raw load(const T* address) { return __ldg(reinterpret_cast<const Raw*>(address)); }
  // For data that is read once: leaves the caches to the feature rows.
  static __device__ __forceinline__ Raw load_once(const T* address) {
    return __ldcs(reinterpret_cast<const Raw*>(address));
  }
  // For data that an earlier phase of the same launch wrote.
  static __device__ __forceinline__ Raw load_fresh(const T* address) {
    return __ldcg(reinterpret_cast<const Raw*>(address));
  }
  static __device__ __forceinline__ void unpack(Raw raw, Acc (&values)[kSize]) {
    Bits bits;
    bits.raw = raw;
#pragma unroll
    for (int i = 0; i < kSize; ++i) values[i] = to_acc(bits.element[i]);
  }
  static __device__ __forceinline__ void store(T* address, const Acc (&values)[kSize]) {
    Bits bits;
#pragma unroll
    for (int i = 0; i < kSize; ++i) bits.element[i] = from_acc<T>(values[i]);
    __stcs(reinterpret_cast<Raw*>(address), bits.raw);
  }
};

// kSize elements of a workspace or of an output in the accumulate type, 16 bytes at a time where they fit.
template <typename U, int kSize>
struct Span {
  static constexpr int kBytes = kSize * int(sizeof(U));
  static constexpr int kChunk = kBytes % 16 == 0 ? 16 : (kBytes % 8 == 0 ? 8 : (kBytes % 4 == 0 ? 4 : 2));
  using Raw = typename RawBytes<kChunk>::type;
  static constexpr int kChunks = kBytes / kChunk;

  static __device__ __forceinline__ void load(const U* address, U (&values)[kSize]) {
    Raw* to = reinterpret_cast<Raw*>(values);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) to[i] = __ldcg(reinterpret_cast<const Raw*>(address) + i);
  }
  static __device__ __forceinline__ void store(U* address, const U (&values)[kSize]) {
    const Raw* from = reinterpret_cast<const Raw*>(values);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) __stcg(reinterpret_cast<Raw*>(address) + i, from[i]);
  }
};

}  // namespace gnnagg
