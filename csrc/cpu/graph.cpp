// csr_from_coo and csr_transpose on the CPU: both are one stable sort by an integer key.
//
// What: items 0..n-1, each with a key in [0, num_keys) or none (dead), ordered by key and, within a key, by item.
// How: two passes of counting. Keys are cut into at most kMostBuckets ranges of 2^shift keys (buckets); pass one moves
// records (key, first, second) into buckets, a part of the items per task, each task with its own counts; pass two
// counts the keys of one bucket, which fit in cache, and writes pointers and payload. Dead items form a last bucket.
// Traffic: the input twice, 12 or 24 bytes per item written and read twice, 8 or 16 bytes per item of result.
// Determinism: parts are contiguous and in order, so the result is the stable order whatever their number.
#include <algorithm>
#include <limits>
#include <memory>

#include "cpu/ops.h"

namespace gnnagg::cpu {
namespace {

// Buckets are meant to hold about this many records, and keys, so that a bucket stays in a core's second cache.
constexpr int64_t kRecordsPerBucket = 32 * 1024;
constexpr int64_t kKeysPerBucket = 64 * 1024;
constexpr int64_t kMostBuckets = 1024;
// Items per task of pass one, at least.
constexpr int64_t kItemsPerPart = 64 * 1024;
constexpr int64_t kMostParts = 64;
constexpr int64_t kNoFault = std::numeric_limits<int64_t>::max();

template <typename Index>
struct Record {
  Index key, first, second;
};

// Where a bucket's records begin, per part: [parts, buckets] counts turned into offsets.
template <typename Index>
std::unique_ptr<int64_t[]> begin_of_each(std::unique_ptr<Index[]>& counts, int64_t parts, int64_t buckets) {
  std::unique_ptr<int64_t[]> bucket_begin(new int64_t[buckets + 1]);
  int64_t next = 0;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    bucket_begin[bucket] = next;
    for (int64_t part = 0; part < parts; ++part) {
      const Index count = counts[part * buckets + bucket];
      counts[part * buckets + bucket] = Index(next);
      next += int64_t(count);
    }
  }
  bucket_begin[buckets] = next;
  return bucket_begin;
}

// Sorts `count` items. `open(begin)` gives a reader whose next(record) fills in one item after another from `begin` and
// returns whether it is alive; its `fault` is the first item that it refused. pointers [num_keys + 1]; first, second
// [count]. Returns the first fault of all.
template <typename Index, typename Open>
int64_t sort_by_key(int64_t count, int64_t num_keys, const Open& open, Index* pointers, Index* first, Index* second) {
  const int64_t wanted = std::clamp(std::max(ceil_div(count, kRecordsPerBucket), ceil_div(num_keys, kKeysPerBucket)),
                                    int64_t(1), kMostBuckets);
  int shift = 0;
  while (((std::max<int64_t>(num_keys, 1) - 1) >> shift) >= wanted) ++shift;
  const int64_t live_buckets = num_keys ? ((num_keys - 1) >> shift) + 1 : 0, buckets = live_buckets + 1;
  const int64_t parts = std::clamp<int64_t>(ceil_div(count, kItemsPerPart), 1, kMostParts);
  const int64_t bytes = count * int64_t(sizeof(Record<Index>)) + num_keys * int64_t(sizeof(Index));
  const auto part_begin = [&](int64_t part) { return count / parts * part + std::min(part, count % parts); };

  std::unique_ptr<Index[]> counts(new Index[parts * buckets]());
  std::unique_ptr<int64_t[]> faults(new int64_t[parts]);
  bridge::parallel_items(parts, 1, bytes, [&](int64_t from, int64_t to) {
    for (int64_t part = from; part < to; ++part) {
      Index* mine = counts.get() + part * buckets;
      auto reader = open(part_begin(part));
      Record<Index> record;
      for (int64_t item = part_begin(part); item < part_begin(part + 1); ++item) {
        ++mine[reader.next(record) ? int64_t(record.key) >> shift : live_buckets];
      }
      faults[part] = reader.fault;
    }
  });
  const std::unique_ptr<int64_t[]> bucket_begin = begin_of_each(counts, parts, buckets);
  std::unique_ptr<Record<Index>[]> records(new Record<Index>[count]);
  bridge::parallel_items(parts, 1, bytes, [&](int64_t from, int64_t to) {
    for (int64_t part = from; part < to; ++part) {
      Index* next = counts.get() + part * buckets;
      auto reader = open(part_begin(part));
      Record<Index> record;
      for (int64_t item = part_begin(part); item < part_begin(part + 1); ++item) {
        const bool alive = reader.next(record);
        records[next[alive ? int64_t(record.key) >> shift : live_buckets]++] = record;
      }
    }
  });
  bridge::parallel_items(buckets, 1, bytes, [&](int64_t from, int64_t to) {
    for (int64_t bucket = from; bucket < to; ++bucket) {
      const int64_t begin = bucket_begin[bucket], end = bucket_begin[bucket + 1];
      if (bucket == live_buckets) {
        for (int64_t i = begin; i < end; ++i) {
          first[i] = records[i].first;
          second[i] = records[i].second;
        }
        continue;
      }
      const int64_t first_key = bucket << shift, last_key = std::min((bucket + 1) << shift, num_keys);
      Index* start = pointers + first_key;  // becomes the row pointer; used as counters first
      std::unique_ptr<Index[]> next(new Index[last_key - first_key]());
      for (int64_t i = begin; i < end; ++i) ++next[int64_t(records[i].key) - first_key];
      Index position = Index(begin);
      for (int64_t key = 0; key < last_key - first_key; ++key) {
        start[key] = position;
        position += next[key];
        next[key] = start[key];
      }
      for (int64_t i = begin; i < end; ++i) {
        const Index at = next[int64_t(records[i].key) - first_key]++;
        first[at] = records[i].first;
        second[at] = records[i].second;
      }
    }
  });
  pointers[num_keys] = Index(bucket_begin[live_buckets]);
  return *std::min_element(faults.get(), faults.get() + parts);
}

// The edge list with its loops: key = target row, first = source, second = edge id.
template <typename Input, typename Index>
struct EdgeReader {
  const Input* row;
  const Input* col;
  int64_t num_edges, num_rows, num_cols;
  bool drops_loops;
  int64_t edge;
  int64_t fault = kNoFault;

  bool is_in_range(int64_t at) const {
    return uint64_t(int64_t(row[at])) < uint64_t(num_rows) && uint64_t(int64_t(col[at])) < uint64_t(num_cols);
  }

  bool next(Record<Index>& record) {
    const int64_t id = edge++;
    if (id >= num_edges) {
      record = {Index(id - num_edges), Index(id - num_edges), Index(id)};
      return true;
    }
    const bool in_range = is_in_range(id);
    if (!in_range && fault == kNoFault) fault = id;
    record = {Index(row[id]), in_range ? Index(col[id]) : Index(0), Index(id)};
    return in_range && !(drops_loops && row[id] == col[id]);
  }
};

// The slots of a CSR: key = source, first = target row, second = slot.
template <typename Index>
struct SlotReader {
  const Index* rowptr;
  const Index* col;
  int64_t num_rows, row, slot;
  int64_t fault = kNoFault;

  SlotReader(const Index* rowptr_, const Index* col_, int64_t num_rows_, int64_t begin)
      : rowptr(rowptr_), col(col_), num_rows(num_rows_), slot(begin) {
    row = std::upper_bound(rowptr, rowptr + num_rows + 1, Index(begin)) - rowptr - 1;
  }

  bool next(Record<Index>& record) {
    const int64_t at = slot++;
    while (row < num_rows && at >= int64_t(rowptr[row + 1])) ++row;
    const bool alive = row < num_rows;
    record = {alive ? col[at] : Index(0), Index(alive ? row : 0), Index(at)};
    return alive;
  }
};

template <typename Input, typename Index>
void build(const Tensor& row, const Tensor& col, int64_t num_rows, int64_t num_cols, int64_t num_loops,
           bool drops_loops, Tensor& rowptr, Tensor& out_col, Tensor& perm, Tensor& fault) {
  const Input* rows = bridge::read_pointer<Input>(row);
  const Input* cols = bridge::read_pointer<Input>(col);
  const int64_t num_edges = row.numel();
  const int64_t at = sort_by_key<Index>(
      num_edges + num_loops, num_rows,
      [&](int64_t begin) {
        return EdgeReader<Input, Index>{rows, cols, num_edges, num_rows, num_cols, drops_loops, begin};
      },
      bridge::write_pointer<Index>(rowptr), bridge::write_pointer<Index>(out_col), bridge::write_pointer<Index>(perm));
  int64_t* report = bridge::write_pointer<int64_t>(fault);
  report[0] = at;
  report[1] = at == kNoFault ? 0 : int64_t(rows[at]);
  report[2] = at == kNoFault ? 0 : int64_t(cols[at]);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_from_coo(Tensor row, Tensor col, int64_t num_rows, int64_t num_cols,
                                                        int64_t loops, bool wide) {
  constexpr const char* kOp = "csr_from_coo";
  const ScalarType input = row.scalar_type(), index = wide ? ScalarType::Long : ScalarType::Int;
  STD_TORCH_CHECK(bridge::is_index_type(input), kOp, ": row must be int32 or int64");
  const int64_t num_edges = row.numel();
  bridge::check_tensor(row, kOp, "row", input, {num_edges});
  bridge::check_tensor(col, kOp, "col", input, {num_edges});
  STD_TORCH_CHECK(num_rows >= 0 && num_cols >= 0, kOp, ": sizes must not be negative");
  STD_TORCH_CHECK(loops >= 0 && loops <= 3, kOp, ": loops must be 0, 1, 2 or 3, got ", loops);
  const int64_t num_loops = loops == 1 || loops == 2 ? std::min(num_rows, num_cols) : 0;
  const bool drops_loops = loops >= 2;
  constexpr int64_t kNarrowLimit = std::numeric_limits<int32_t>::max();
  STD_TORCH_CHECK(wide || std::max({num_rows, num_cols, num_edges + num_loops}) < kNarrowLimit, kOp,
                  ": sizes need wide indices");
  Tensor rowptr = bridge::empty_like_device(row, {num_rows + 1}, index);
  Tensor out_col = bridge::empty_like_device(row, {num_edges + num_loops}, index);
  Tensor perm = bridge::empty_like_device(row, {num_edges + num_loops}, index);
  Tensor fault = bridge::empty_like_device(row, {3}, ScalarType::Long);
  const auto run = input == ScalarType::Long ? (wide ? build<int64_t, int64_t> : build<int64_t, int32_t>)
                                             : (wide ? build<int32_t, int64_t> : build<int32_t, int32_t>);
  run(row, col, num_rows, num_cols, num_loops, drops_loops, rowptr, out_col, perm, fault);
  return {rowptr, out_col, perm, fault};
}

template <typename Index>
static void transpose(const Tensor& rowptr, const Tensor& col, int64_t num_cols, Tensor& t_rowptr, Tensor& t_col,
                      Tensor& t_slot) {
  const Index* pointers = bridge::read_pointer<Index>(rowptr);
  const Index* sources = bridge::read_pointer<Index>(col);
  const int64_t num_rows = rowptr.numel() - 1;
  sort_by_key<Index>(
      col.numel(), num_cols, [&](int64_t begin) { return SlotReader<Index>(pointers, sources, num_rows, begin); },
      bridge::write_pointer<Index>(t_rowptr), bridge::write_pointer<Index>(t_col),
      bridge::write_pointer<Index>(t_slot));
}

std::tuple<Tensor, Tensor, Tensor> csr_transpose(Tensor rowptr, Tensor col, int64_t num_cols) {
  constexpr const char* kOp = "csr_transpose";
  const ScalarType index = bridge::check_csr(rowptr, col, kOp);
  STD_TORCH_CHECK(num_cols >= 0, kOp, ": num_cols must not be negative, got ", num_cols);
  Tensor t_rowptr = bridge::empty_like_device(rowptr, {num_cols + 1}, index);
  Tensor t_col = bridge::empty_like_device(rowptr, {col.numel()}, index);
  Tensor t_slot = bridge::empty_like_device(rowptr, {col.numel()}, index);
  if (index == ScalarType::Long) {
    transpose<int64_t>(rowptr, col, num_cols, t_rowptr, t_col, t_slot);
  } else {
    transpose<int32_t>(rowptr, col, num_cols, t_rowptr, t_col, t_slot);
  }
  return {t_rowptr, t_col, t_slot};
}

}  // namespace gnnagg::cpu
