/*
What: the fastest rate at which whole table rows can be picked by random ids, as the ceiling of
every gather kernel. Each id's row is added up (32-bit integers, so that the total can be checked
exactly); nothing but one partial sum per warp is written.

How: a row of R bytes is read by a *team* of kTeam = min(32, R / 16) lanes, 16 bytes a lane and
*piece*; rows above 512 bytes take kPieces pieces. A warp takes 32 consecutive ids with one
coalesced load (the next 32 are requested before the present ones are used) and hands them to its 32
/ kTeam teams by shuffle. kUnroll rows are requested before the first is added: kUnroll * kPieces
loads of 16 bytes are outstanding per thread.

Traffic: R + 4 bytes read per id, R bytes written per warp. The roofline is the L2 for tables that
fit and HBM beyond.

Launch contract: any grid, kThreads threads a block, no shared memory; ids [count] with count a
multiple of 32, table rows aligned to 16 bytes, partial [warps, R] written in full by the kernel.

Determinism: fixed order, no atomics.
*/

#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xffffffffu;

/// 16 bytes of a row, read once: past L1.
__device__ __forceinline__ uint4 load_piece(const uint4* piece) {
  uint4 value;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(piece));
  return value;
}

__device__ __forceinline__ void add(uint4& total, const uint4& value) {
  total.x += value.x;
  total.y += value.y;
  total.z += value.z;
  total.w += value.w;
}

/// Adds what the lane `offset` away holds; all lanes call it.
__device__ __forceinline__ void add_from_lane(uint4& total, int offset) {
  const uint4 other =
      make_uint4(__shfl_xor_sync(kAllLanes, total.x, offset), __shfl_xor_sync(kAllLanes, total.y, offset),
                 __shfl_xor_sync(kAllLanes, total.z, offset), __shfl_xor_sync(kAllLanes, total.w, offset));
  add(total, other);
}

template <int kTeam, int kPieces, int kUnroll>
__global__ void __launch_bounds__(kThreads) sum_rows(const uint4* __restrict__ table,  // [rows, kPieces, kTeam]
                                                     const int32_t* __restrict__ ids,  // [count]
                                                     int64_t count,
                                                     uint4* __restrict__ partial)  // [warps, kPieces, kTeam]
{
  constexpr int kTeams = kWarp / kTeam;
  constexpr int kSteps = kTeam;  // 32 ids over kTeams teams
  constexpr int kRow = kTeam * kPieces;
  static_assert(kTeams * kTeam == kWarp, "a team divides the warp");
  static_assert(kSteps % kUnroll == 0, "whole batches of rows");

  const int lane = threadIdx.x % kWarp;
  const int team = lane / kTeam;
  const int place = lane % kTeam;
  const int64_t warp = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int64_t stride = int64_t(gridDim.x) * (kThreads / kWarp) * kWarp;

  uint4 total[kPieces] = {};
  int64_t begin = warp * kWarp;
  int32_t following = begin < count ? __ldcs(ids + begin + lane) : 0;
  for (; begin < count; begin += stride) {
    const int32_t id = following;
    if (begin + stride < count) following = __ldcs(ids + begin + stride + lane);
#pragma unroll 1
    for (int step = 0; step < kSteps; step += kUnroll) {
      uint4 value[kUnroll][kPieces];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t row = __shfl_sync(kAllLanes, id, (step + u) * kTeams + team);
        const uint4* source = table + int64_t(row) * kRow + place;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) value[u][p] = load_piece(source + p * kTeam);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) add(total[p], value[u][p]);
      }
    }
  }

#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int offset = kTeam; offset < kWarp; offset *= 2) add_from_lane(total[p], offset);
    if (team == 0) partial[warp * kRow + p * kTeam + place] = total[p];
  }
}

struct Request {
  const void* table;
  const int32_t* ids;
  long long count;
  void* partial;
  int blocks_per_sm;  // 0: as many as fit
  cudaStream_t stream;
};

/// Launches, or only reports the number of warps when partial is null. Returns a cudaError_t.
template <int kTeam, int kPieces, int kUnroll>
int run(const Request& request, long long* warps) {
  auto* kernel = sum_rows<kTeam, kPieces, kUnroll>;
  int device = 0, processors = 0, resident = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  if (cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return error;
  if (cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, 0)) return error;
  const int per_sm = request.blocks_per_sm > 0 && request.blocks_per_sm < resident ? request.blocks_per_sm : resident;
  const int blocks = processors * per_sm;
  *warps = static_cast<long long>(blocks) * (kThreads / kWarp);
  if (request.partial == nullptr) return cudaSuccess;
  kernel<<<blocks, kThreads, 0, request.stream>>>(static_cast<const uint4*>(request.table), request.ids, request.count,
                                                  static_cast<uint4*>(request.partial));
  return cudaGetLastError();
}

template <int kTeam, int kPieces>
int run_unrolled(int unroll, const Request& request, long long* warps) {
  switch (unroll) {
    case 1: return run<kTeam, kPieces, 1>(request, warps);
    case 2: return run<kTeam, kPieces, 2>(request, warps);
    case 4: return run<kTeam, kPieces, 4>(request, warps);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

/// Sums the table rows (row_bytes in {64, 128, 256, 512, 1024}) that the ids name, unroll in {1, 2,
/// 4} rows at a time. Writes the number of warps; with partial = null it does only that. partial
/// [warps, row_bytes]. Returns a cudaError_t.
extern "C" int gather_ceiling(const void* table, const void* ids, long long count, int row_bytes, int unroll,
                              int blocks_per_sm, void* partial, void* stream, long long* warps) {
  if (count % kWarp != 0) return cudaErrorInvalidValue;
  const Request request{table,         static_cast<const int32_t*>(ids), count, partial,
                        blocks_per_sm, static_cast<cudaStream_t>(stream)};
  switch (row_bytes) {
    case 64: return run_unrolled<4, 1>(unroll, request, warps);
    case 128: return run_unrolled<8, 1>(unroll, request, warps);
    case 256: return run_unrolled<16, 1>(unroll, request, warps);
    case 512: return run_unrolled<32, 1>(unroll, request, warps);
    case 1024: return run_unrolled<32, 2>(unroll, request, warps);
    default: return cudaErrorInvalidValue;
  }
}

extern "C" const char* gather_ceiling_error(int status) { return cudaGetErrorString(static_cast<cudaError_t>(status)); }
