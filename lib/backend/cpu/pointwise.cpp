// Functions of elements and sums over dimensions, for tensors of any strides; rows of tables.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"
#include "lib/error.h"

namespace duet::cpu {
namespace {

/// Elements that a function is applied to at once: operands that do not lie one after the other are gathered first.
constexpr std::int64_t kChunk = 256;
using Chunk = std::array<float, kChunk>;

/// Calls row(offsets) for each run of the innermost loop, with the place of each of kTensors tensors where it begins.
template <int kTensors, class Row>
void for_each_run(const Walk& walk, Row row) {
  std::array<std::int64_t, kTensors> offsets{};
  std::array<std::int64_t, Walk::kLoops> at{};
  const auto move = [&](int loop, std::int64_t steps) {
    for (int t = 0; t < kTensors; ++t) offsets[static_cast<std::size_t>(t)] += steps * walk.strides[t][loop];
  };
  for (int loop = 0; loop >= 0;) {
    row(offsets);
    for (loop = walk.loops - 2; loop >= 0; --loop) {
      move(loop, 1);
      if (++at[static_cast<std::size_t>(loop)] < walk.sizes[loop]) break;
      move(loop, -walk.sizes[loop]);
      at[static_cast<std::size_t>(loop)] = 0;
    }
  }
}

/// An operand of a function: null if a number takes its place, which the chunk holds.
struct Source {
  const float* memory;
  Chunk chunk;

  /// Elements [i, i + n) of a run from `memory` on; gathered unless they lie one after the other or are all the same.
  Operand operand(std::int64_t begin, std::int64_t i, std::int64_t n, std::int64_t stride) {
    if (memory == nullptr) return {chunk.data(), true};
    const float* const from = memory + begin + i * stride;
    if (stride == 1) return {from, false};
    if (stride == 0) std::fill_n(chunk.begin(), Operand::kRepeated, *from);
    for (std::int64_t j = 0; stride != 0 && j < n; ++j) chunk[static_cast<std::size_t>(j)] = from[j * stride];
    return {chunk.data(), stride == 0};
  }
};

void apply_to(const Kernels& kernels, Pointwise f, const Walk& walk, std::array<Source, 3>& inputs, float* y) {
  const int inner = walk.loops - 1;
  const std::int64_t size = walk.sizes[inner], y_stride = walk.strides[3][inner];
  bool gathers = y_stride != 1;
  for (std::size_t k = 0; k < 3; ++k)
    gathers |= inputs[k].memory != nullptr && walk.strides[k][inner] != 0 && walk.strides[k][inner] != 1;
  const std::int64_t step = gathers ? kChunk : size;
  Chunk result;
  for_each_run<4>(walk, [&](const std::array<std::int64_t, 4>& at) {
    for (std::int64_t i = 0; i < size; i += step) {
      const std::int64_t n = std::min(step, size - i);
      const auto operand = [&](std::size_t k) { return inputs[k].operand(at[k], i, n, walk.strides[k][inner]); };
      float* const to = y + at[3] + i * y_stride;
      kernels.pointwise(f, {operand(0), operand(1), operand(2)}, y_stride == 1 ? to : result.data(), n);
      for (std::int64_t j = 0; y_stride != 1 && j < n; ++j) to[j * y_stride] = result[static_cast<std::size_t>(j)];
    }
  });
}

/// Adds up one row of x in double: walks over x and y.
void sum_row(const Walk& walk, const float* x, double* total, float* y, std::int64_t count) {
  const int inner = walk.loops - 1;
  const std::int64_t size = walk.sizes[inner];
  std::fill_n(total, count, 0.0);
  for_each_run<2>(walk, [&](const std::array<std::int64_t, 2>& at) {
    const float* const from = x + at[0];
    if (walk.strides[1][inner] != 0) {
      for (std::int64_t i = 0; i < size; ++i) total[at[1] + i] += static_cast<double>(from[i]);
      return;
    }
    std::array<double, 8> lanes{};  // a sum of its own each: additions that wait for none before them
    std::int64_t i = 0;
    for (; i + 8 <= size; i += 8)
      for (std::size_t k = 0; k < 8; ++k) lanes[k] += static_cast<double>(from[i + static_cast<std::int64_t>(k)]);
    for (; i < size; ++i) lanes[0] += static_cast<double>(from[i]);
    for (const double lane : lanes) total[at[1]] += lane;
  });
  for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(total[i]);
}

}  // namespace

void CpuBackend::pointwise(Pointwise f, const Shape& shape, const PointwiseInputs& inputs, const Strided& y) {
  if (shape.count() == 0) return;
  const std::array<const Strided*, 3> operands = {&inputs.a, &inputs.b, &inputs.c};
  const Walk walk = walk_of(shape, {&inputs.a, &inputs.b, &inputs.c, &y});
  std::array<Source, 3> sources;
  for (std::size_t k = 0; k < 3; ++k) {
    const Strided& operand = *operands[k];
    sources[k].memory = operand.tensor.defined() ? operand.tensor.data<float>() + operand.begin : nullptr;
    if (sources[k].memory == nullptr) std::fill_n(sources[k].chunk.begin(), Operand::kRepeated, inputs.number);
  }
  ThreadPool& pool = device(y.tensor).pool();
  pool.run(pool.workers(), [&](int part, int) {
    const std::int64_t begin = block_begin(part, walk.sizes[0], pool.workers());
    Walk own = walk;
    own.sizes[0] = block_begin(part + 1, walk.sizes[0], pool.workers()) - begin;
    if (own.sizes[0] == 0) return;
    std::array<Source, 3> from = sources;
    for (std::size_t k = 0; k < 3; ++k)
      if (from[k].memory != nullptr) from[k].memory += begin * walk.strides[k][0];
    apply_to(kernels_, f, own, from, y.tensor.data<float>() + y.begin + begin * walk.strides[3][0]);
  });
}

void CpuBackend::sum(const Tensor& x, bool over_rows, const Tensor& y) {
  const std::int64_t columns = y.shape().count_from(1), row_count = x.shape().count_from(1);
  Tensor rows = x;  // with the sum of each row
  if (columns != row_count) {
    rows = over_rows ? empty(y.shape().with(0, x.size(0)), DType::f32, x.device()) : y;
    rows.set_stamp(x.stamp());
    CpuDevice& device = this->device(x);
    for_each_block(rows, [&](std::int64_t begin, std::int64_t end, int id) {
      if (row_count == 0) return std::fill(rows_of(rows, begin), rows_of(rows, end), 0.0f);
      const Shape row = x.shape().with(0, 1);
      const Strided from = broadcast(x.rows(0, 1), row), to = broadcast(rows.rows(0, 1), row);
      const Walk walk = walk_of(row, {&from, &to});
      auto* const totals = reinterpret_cast<double*>(device.worker(id).row.floats(2 * columns));
      for (std::int64_t i = begin; i < end; ++i) sum_row(walk, rows_of(x, i), totals, rows_of(rows, i), columns);
    });
  }
  if (over_rows) {
    kernels_.sum_rows(rows.data<float>(), y.data<float>(), columns, leaves_of(blocks_of(x)));
  } else if (columns == row_count) {
    std::copy_n(x.data<float>(), x.count(), y.data<float>());
  }
}

void CpuBackend::gather_rows(const Tensor& table, const Tensor& indices, const Tensor& y) {
  const std::int64_t rows = table.size(0), columns = table.size(1);
  const std::int64_t* const index = indices.data<std::int64_t>();
  for (std::int64_t i = 0; i < indices.count(); ++i) {
    require<ShapeError>(index[i] >= 0 && index[i] < rows, "embedding: index ", index[i], " of a table of ", rows,
                        " rows, expected 0 to ", rows - 1);
    std::copy_n(rows_of(table, index[i]), columns, y.data<float>() + i * columns);
  }
}

void CpuBackend::sum_gathered_rows(const Tensor& dy, const Tensor& indices, const Tensor& dtable) {
  const std::int64_t rows = dtable.size(0), columns = dtable.size(1), count = indices.count();
  const std::int64_t* const index = indices.data<std::int64_t>();
  // The places of row r are places[first[r]] to places[first[r + 1] - 1], ascending.
  std::vector<std::int64_t> first(static_cast<std::size_t>(rows) + 2), places(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) ++first[static_cast<std::size_t>(index[i]) + 2];
  for (std::size_t r = 2; r < first.size(); ++r) first[r] += first[r - 1];
  for (std::int64_t i = 0; i < count; ++i)
    places[static_cast<std::size_t>(first[static_cast<std::size_t>(index[i]) + 1]++)] = i;
  const Blocks blocks = blocks_of(dy);
  const std::int64_t of_sample = dy.size(0) == 0 ? 0 : count / dy.size(0);
  CpuDevice& device = this->device(dy);
  device.pool().run(device.pool().workers(), [&](int part, int id) {
    for (std::int64_t r = block_begin(part, rows, device.pool().workers());
         r < block_begin(part + 1, rows, device.pool().workers()); ++r) {
      const auto begin = places.begin() + first[static_cast<std::size_t>(r)],
                 end = places.begin() + first[static_cast<std::size_t>(r) + 1];
      float* const gathered = device.worker(id).row.floats((end - begin) * columns);
      for (auto place = begin; place != end; ++place)
        std::copy_n(dy.data<float>() + *place * columns, columns, gathered + (place - begin) * columns);
      Blocks own = blocks;  // of the gathered rows
      for (std::int64_t& bound : own.ranges) bound = std::lower_bound(begin, end, bound * of_sample) - begin;
      kernels_.sum_rows(gathered, rows_of(dtable, r), columns, leaves_of(own));
    }
  });
}

}  // namespace duet::cpu
