// Functions of elements, a thread for each, and sums over dimensions, a warp for each; for tensors of any strides. Rows
// of tables.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

/// Where tensors of a walk have an element.
struct Place {
  std::int64_t at[Walk::kTensors];
};

/// The places of element `inner` of step `outer` of the outermost loop. The inner loops have few enough steps for 32
/// bits, by which GPUs divide faster.
template <int kTensors>
__device__ inline Place place_of(const Walk& walk, std::int64_t outer, unsigned inner) {
  Place place;
  for (int t = 0; t < kTensors; ++t) place.at[t] = outer * walk.strides[t][0];
  for (int loop = walk.loops - 1; loop > 0; --loop) {
    const auto size = static_cast<unsigned>(walk.sizes[loop]);
    const unsigned step = inner % size;
    inner /= size;
    for (int t = 0; t < kTensors; ++t) place.at[t] += step * walk.strides[t][loop];
  }
  return place;
}

std::int64_t inner_steps(const Walk& walk) {
  std::int64_t steps = 1;
  for (int loop = 1; loop < walk.loops; ++loop) steps *= walk.sizes[loop];
  return steps;
}

__global__ void __launch_bounds__(kThreads)
    pointwise_kernel(LaunchRows rows, Pointwise f, Walk walk, unsigned inner, WalkInputs inputs, float* y) {
  const unsigned i = thread_in_launch(), step = i / inner;
  if (i >= rows.threads) return;
  const Place place = place_of<4>(walk, rows.first + step, i - step * inner);
  const auto value = [&](const float* from, int t) { return from == nullptr ? inputs.number : from[place.at[t]]; };
  y[place.at[3]] = arithmetic::pointwise(f, value(inputs.a, 0), value(inputs.b, 1), value(inputs.c, 2));
}

__global__ void __launch_bounds__(kThreads)
    sum_dimensions_kernel(LaunchRows rows, Walk kept, unsigned kept_inner, Walk summed, unsigned summed_inner,
                          unsigned terms, const float* __restrict__ x, float* __restrict__ y) {
  const unsigned i = thread_in_launch(), lane = i % kWarp;
  if (i >= rows.threads) return;  // whole warps
  const std::int64_t sum = rows.first + i / kWarp, outer = sum / kept_inner;
  const float* const from = x + place_of<1>(kept, outer, static_cast<unsigned>(sum - outer * kept_inner)).at[0];
  float total = 0;
  for (unsigned term = lane; term < terms; term += kWarp) {
    const unsigned step = term / summed_inner;
    total += from[place_of<1>(summed, step, term - step * summed_inner).at[0]];
  }
  total = warp_sum(total);
  if (lane == 0) y[sum] = total;
}

__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(LaunchRows part, const float* __restrict__ table, std::int64_t rows,
                       const std::int64_t* __restrict__ indices, int columns, float* __restrict__ y) {
  if (thread_in_launch() >= part.threads) return;
  const Entry entry = entry_of_thread(part, columns);
  const std::int64_t index = indices[entry.row];
  y[entry.at] = index >= 0 && index < rows ? table[index * columns + entry.column] : NAN;
}

__global__ void __launch_bounds__(kThreads)
    sum_gathered_rows_kernel(LaunchRows part, const float* __restrict__ dy, const std::int64_t* __restrict__ indices,
                             std::int64_t count, int columns, float* __restrict__ dtable) {
  if (thread_in_launch() >= part.threads) return;
  const Entry entry = entry_of_thread(part, columns);
  float total = 0;
  for (std::int64_t i = 0; i < count; ++i)
    if (indices[i] == entry.row) total += dy[i * columns + entry.column];
  dtable[entry.at] = total;
}

}  // namespace

void pointwise(Pointwise f, const Walk& walk, const WalkInputs& inputs, float* y, cudaStream_t stream) {
  const std::int64_t inner = inner_steps(walk);
  launch_rows(pointwise_kernel, walk.sizes[0], inner, kThreads, stream, f, walk, static_cast<unsigned>(inner), inputs,
              y);
}

void sum(const Walk& kept, const Walk& summed, const float* x, float* y, cudaStream_t stream) {
  const std::int64_t kept_inner = inner_steps(kept), summed_inner = inner_steps(summed);
  launch_rows(sum_dimensions_kernel, kept.sizes[0] * kept_inner, kWarp, kThreads, stream, kept,
              static_cast<unsigned>(kept_inner), summed, static_cast<unsigned>(summed_inner),
              static_cast<unsigned>(summed.sizes[0] * summed_inner), x, y);
}

void gather_rows(const float* table, std::int64_t rows, const std::int64_t* indices, std::int64_t count, int columns,
                 float* y, cudaStream_t stream) {
  launch_rows(gather_rows_kernel, count, columns, kThreads, stream, table, rows, indices, columns, y);
}

void sum_gathered_rows(const float* dy, const std::int64_t* indices, std::int64_t count, float* dtable,
                       std::int64_t rows, int columns, cudaStream_t stream) {
  launch_rows(sum_gathered_rows_kernel, rows, columns, kThreads, stream, dy, indices, count, columns, dtable);
}

}  // namespace duet::cuda::kernels
