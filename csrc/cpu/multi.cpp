// aggregate_multi on the CPU: walks the spans, lets multi_kernel.h reduce each piece of a row, and finishes rows by the
// rules of common/reduce.h. A row costs F of everything here, its slots cost F each in the kernel.
#include <limits>
#include <memory>

#include "common/reduce.h"
#include "cpu/half.h"
#include "cpu/ops.h"
#include "cpu/span_walk.h"

namespace gnnagg::cpu {
namespace {

constexpr const char* kOp = "aggregate_multi";

// Bits of `which`.
enum Wanted { kSum = 1, kMean = 2, kVar = 4, kMax = 8, kMin = 16 };

// The results [B, R, F] (null where not wanted) and the partials [B, 2 K, F] of split rows.
struct MultiTask {
  CsrArgs csr;
  const void* x;
  int64_t num_src, width;
  void *sum, *mean, *var, *max, *min;
  IndexOutput arg_max, arg_min;
  MultiFields partials;
  bool moments, extremes, with_arg;
};

// Accumulators and winners of `rows` pieces of rows; allocated only where wanted.
template <typename Acc>
class FieldBuffer {
 public:
  FieldBuffer(const MultiTask& task, int64_t rows) : size_(rows * task.width) {
    const int64_t num_acc = 1 + (task.moments ? 3 : 0) + (task.extremes ? 2 : 0);
    acc_.reset(new Acc[num_acc * size_]);
    Acc* next = acc_.get();
    const auto take = [&](bool wanted) {
      Acc* field = wanted ? next : nullptr;
      if (wanted) next += size_;
      return field;
    };
    fields_.sum = take(true);
    fields_.shift = take(task.moments);
    fields_.moment1 = take(task.moments);
    fields_.moment2 = take(task.moments);
    fields_.max = take(task.extremes);
    fields_.min = take(task.extremes);
    if (task.extremes && task.with_arg) {
      index_.reset(new int64_t[2 * size_]);  // for either width
      fields_.arg_max = {index_.get(), task.csr.col.is_wide};
      fields_.arg_min = {index_.get() + size_, task.csr.col.is_wide};
    }
  }

  const MultiFields& fields() const { return fields_; }

 private:
  int64_t size_;
  std::unique_ptr<Acc[]> acc_;
  std::unique_ptr<int64_t[]> index_;
  MultiFields fields_ = {};
};

template <typename Acc>
MultiFields fields_at(const MultiFields& fields, int64_t offset) {
  const auto acc = [&](void* field) { return field ? static_cast<void*>(static_cast<Acc*>(field) + offset) : nullptr; };
  const auto index = [&](const IndexOutput& field) { return field ? field.from(offset) : field; };
  return {acc(fields.sum), acc(fields.shift), acc(fields.moment1),   acc(fields.moment2),
          acc(fields.max), acc(fields.min),   index(fields.arg_max), index(fields.arg_min)};
}

// What no slots leave.
template <typename Acc>
void reset(const MultiFields& fields, int64_t width) {
  const auto fill = [&](void* field, Acc value) {
    for (int64_t f = 0; field && f < width; ++f) static_cast<Acc*>(field)[f] = value;
  };
  const auto fill_index = [&](const IndexOutput& field) {
    for (int64_t f = 0; field && f < width; ++f) field.set(f, kNoWinner);
  };
  fill(fields.sum, Acc(0));
  fill(fields.shift, Acc(0));
  fill(fields.moment1, Acc(0));
  fill(fields.moment2, Acc(0));
  fill(fields.max, -std::numeric_limits<Acc>::infinity());
  fill(fields.min, std::numeric_limits<Acc>::infinity());
  fill_index(fields.arg_max);
  fill_index(fields.arg_min);
}

// Adds the piece `from`, of from_count slots, to `into`, of into_count slots.
template <typename Acc>
void merge(const MultiFields& into, int64_t into_count, const MultiFields& from, int64_t from_count, int64_t width) {
  const auto acc = [](void* field) { return static_cast<Acc*>(field); };
  for (int64_t f = 0; f < width; ++f) acc(into.sum)[f] += acc(from.sum)[f];
  for (int64_t f = 0; into.shift && f < width; ++f) {
    Moments<Acc> mine{acc(into.shift)[f], acc(into.moment1)[f], acc(into.moment2)[f]};
    mine.merge(Acc(into_count), {acc(from.shift)[f], acc(from.moment1)[f], acc(from.moment2)[f]}, Acc(from_count));
    acc(into.shift)[f] = mine.shift;
    acc(into.moment1)[f] = mine.sum;
    acc(into.moment2)[f] = mine.square;
  }
  for (int64_t f = 0; into.max && f < width; ++f) {
    const auto winner = [f](const IndexOutput& field) { return field ? field[f] : int64_t(kNoWinner); };
    int64_t arg_max = winner(into.arg_max), arg_min = winner(into.arg_min);
    merge_winner(acc(into.max)[f], arg_max, acc(from.max)[f], winner(from.arg_max));
    Acc negated = -acc(into.min)[f];
    merge_winner(negated, arg_min, Acc(-acc(from.min)[f]), winner(from.arg_min));
    if (into.arg_max) {
      into.arg_max.set(f, arg_max);
      into.arg_min.set(f, arg_min);
    }
    acc(into.min)[f] = -negated;
  }
}

// Accumulators of one row to the results. Offset = first feature of the row in them.
template <typename T>
void finish(const MultiTask& task, const MultiFields& fields, int64_t count, int64_t offset) {
  using Acc = Accumulate<T>;
  const int64_t width = task.width;
  const auto acc = [](void* field) { return static_cast<const Acc*>(field); };
  const auto out = [&](void* result) { return static_cast<T*>(result) + offset; };
  const Acc degree = Acc(count), divisor = count ? degree : Acc(1);
  const bool empty = count == 0;
  if (task.sum) {
    for (int64_t f = 0; f < width; ++f) out(task.sum)[f] = narrow<T>(acc(fields.sum)[f]);
  }
  if (task.mean) {
    for (int64_t f = 0; f < width; ++f) out(task.mean)[f] = narrow<T>(acc(fields.sum)[f] / divisor);
  }
  if (task.var) {
    for (int64_t f = 0; f < width; ++f) {
      const Moments<Acc> moments{acc(fields.shift)[f], acc(fields.moment1)[f], acc(fields.moment2)[f]};
      out(task.var)[f] = narrow<T>(moments.variance(degree));
    }
  }
  if (task.max) {
    for (int64_t f = 0; f < width; ++f) out(task.max)[f] = narrow<T>(empty ? Acc(0) : acc(fields.max)[f]);
  }
  if (task.min) {
    for (int64_t f = 0; f < width; ++f) out(task.min)[f] = narrow<T>(empty ? Acc(0) : acc(fields.min)[f]);
  }
  for (const auto& [result, field] :
       {std::pair(task.arg_max, fields.arg_max), std::pair(task.arg_min, fields.arg_min)}) {
    if (!result) continue;
    for (int64_t f = 0; f < width; ++f) result.set(offset + f, field[f]);
  }
}

template <typename T>
void reduce_spans(const MultiTask& task, Kernels::MultiPiece kernel, int64_t begin_item, int64_t end_item) {
  using Acc = Accumulate<T>;
  const SpanView view(task.csr);
  const int64_t width = task.width, live = view.live_edges();
  const FieldBuffer<Acc> scratch(task, 1);
  for (int64_t item = begin_item; item < end_item; ++item) {
    const int64_t batch = item / view.num_spans;
    const T* x = static_cast<const T*>(task.x) + batch * task.num_src * width;
    SpanWalk walk(view, item % view.num_spans);
    while (walk.next()) {
      const bool whole = walk.partial == walk.kWholeRow;
      const MultiFields fields =
          whole ? scratch.fields() : fields_at<Acc>(task.partials, (batch * 2 * view.num_spans + walk.partial) * width);
      if (walk.begin == walk.end) {
        reset<Acc>(fields, width);
      } else {
        kernel(x, task.num_src, width, view.col, live, walk.begin, walk.end, fields);
      }
      if (whole) {
        finish<T>(task, fields, walk.end - walk.begin, (batch * view.num_rows + walk.row) * width);
      }
    }
  }
}

template <typename T>
void combine(const MultiTask& task, int64_t begin_item, int64_t end_item) {
  using Acc = Accumulate<T>;
  const SpanView view(task.csr);
  const int64_t width = task.width, num_splits = view.num_split_rows();
  const FieldBuffer<Acc> total(task, 1);
  for (int64_t item = begin_item; item < end_item; ++item) {
    const int64_t batch = item / num_splits;
    const SplitRow split = view.split_row(item % num_splits);
    reset<Acc>(total.fields(), width);
    int64_t count = 0;
    for (int64_t p = 0; p < view.num_partials(split); ++p) {
      const int64_t slots = view.partial_edges(split, p);
      const int64_t at = (batch * 2 * view.num_spans + view.partial(split, p)) * width;
      merge<Acc>(total.fields(), count, fields_at<Acc>(task.partials, at), slots, width);
      count += slots;
    }
    finish<T>(task, total.fields(), count, (batch * view.num_rows + view.row_of(split)) * width);
  }
}

template <typename T>
void run(MultiTask& task, const bridge::FeatureShape& shape, int64_t num_splits, int64_t bytes,
         Kernels::MultiPiece kernel) {
  const FieldBuffer<Accumulate<T>> partials(task, num_splits ? shape.batch * 2 * task.csr.num_spans : 0);
  task.partials = partials.fields();
  bridge::parallel_items(shape.batch * task.csr.num_spans, 1, bytes,
                         [&](int64_t begin, int64_t end) { reduce_spans<T>(task, kernel, begin, end); });
  bridge::parallel_items(shape.batch * num_splits, 1, bytes,
                         [&](int64_t begin, int64_t end) { combine<T>(task, begin, end); });
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> aggregate_multi(
    Tensor x, Tensor rowptr, Tensor col, Tensor spans, Tensor splits, int64_t which, bool with_arg, OptionalTensor,
    OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor) {
  const bridge::FeatureShape shape(x, kOp, "x");
  const ScalarType type = x.scalar_type(), index = rowptr.scalar_type();
  MultiTask task = {};
  task.csr = csr_args(kOp, rowptr, col, spans, &splits);
  const int64_t num_rows = task.csr.num_rows;
  const auto result = [&](int64_t wanted, ScalarType result_type) {
    return wanted ? bridge::empty_rows(x, num_rows, shape.width, result_type)
                  : bridge::empty_like_device(x, {0}, result_type);
  };
  Tensor sum = result(which & kSum, type), mean = result(which & kMean, type), var = result(which & kVar, type);
  Tensor max = result(which & kMax, type), min = result(which & kMin, type);
  Tensor arg_max = result(with_arg ? which & kMax : 0, index), arg_min = result(with_arg ? which & kMin : 0, index);
  const auto pointer = [](const Tensor& tensor) { return tensor.numel() ? tensor.mutable_data_ptr() : nullptr; };
  task.x = x.const_data_ptr();
  task.num_src = shape.rows;
  task.width = shape.width;
  task.sum = pointer(sum);
  task.mean = pointer(mean);
  task.var = pointer(var);
  task.max = pointer(max);
  task.min = pointer(min);
  if (arg_max.numel()) task.arg_max = index_output(arg_max);
  if (arg_min.numel()) task.arg_min = index_output(arg_min);
  task.moments = which & kVar;
  task.extremes = which & (kMax | kMin);
  task.with_arg = with_arg;
  if (shape.batch * num_rows * shape.width > 0) {
    const int64_t bytes = bytes_moved(shape, col.numel() + num_rows, type);
    const int64_t num_splits = count_split_rows(splits);
    const FeatureType t = feature_type(type);
    const Kernels::MultiPiece kernel = kernels().multi_piece[t];
    switch (t) {
      case kDouble: run<double>(task, shape, num_splits, bytes, kernel); break;
      case kHalf: run<Half>(task, shape, num_splits, bytes, kernel); break;
      case kBFloat16: run<BFloat16>(task, shape, num_splits, bytes, kernel); break;
      default: run<float>(task, shape, num_splits, bytes, kernel); break;
    }
  }
  return {sum, mean, var, max, min, arg_max, arg_min};
}

}  // namespace gnnagg::cpu
