// Elementwise operators: a thread for each element; dropout's masks, batches of images, counters.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

__global__ void __launch_bounds__(kThreads) relu_kernel(const float* x, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) y[i] = arithmetic::relu_stops(x[i]) ? 0.0f : x[i];
}

__global__ void __launch_bounds__(kThreads)
    relu_backward_kernel(const float* y, const float* dy, float* dx, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) dx[i] = arithmetic::relu_stops(y[i]) ? 0.0f : dy[i];
}

__global__ void __launch_bounds__(kThreads) add_kernel(const float* a, const float* b, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) y[i] = a[i] + b[i];
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* x, float factor, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) x[i] *= factor;
}

__global__ void __launch_bounds__(kThreads) fill_kernel(float* x, float value, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) x[i] = value;
}

__global__ void __launch_bounds__(kThreads)
    mask_scale_kernel(const float* x, const std::uint8_t* mask, float factor, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i < n) y[i] = x[i] * (mask[i] ? factor : 0.0f);
}

}  // namespace

void relu(const float* x, float* y, std::int64_t n, cudaStream_t stream) {
  launch(relu_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, y, n);
}

void relu_backward(const float* y, const float* dy, float* dx, std::int64_t n, cudaStream_t stream) {
  launch(relu_backward_kernel, blocks_for(n), dim3(kThreads), 0, stream, y, dy, dx, n);
}

void add(const float* a, const float* b, float* y, std::int64_t n, cudaStream_t stream) {
  launch(add_kernel, blocks_for(n), dim3(kThreads), 0, stream, a, b, y, n);
}

void scale(float* x, float factor, std::int64_t n, cudaStream_t stream) {
  launch(scale_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, factor, n);
}

void fill(float* x, float value, std::int64_t n, cudaStream_t stream) {
  launch(fill_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, value, n);
}

void mask_scale(const float* x, const std::uint8_t* mask, float factor, float* y, std::int64_t n, cudaStream_t stream) {
  launch(mask_scale_kernel, blocks_for(n), dim3(kThreads), 0, stream, x, mask, factor, y, n);
}

// Dropout's masks.

namespace {

using namespace arithmetic;

constexpr int kChunk = kDropoutLanes * kDropoutNumbers;

/// A thread for each lane of each chunk of each row: eight decisions.
__global__ void __launch_bounds__(kThreads)
    dropout_mask_kernel(LaunchRows rows, std::uint8_t* __restrict__ mask, std::int64_t columns, unsigned lanes,
                        StepDraw counted) {
  const unsigned i = thread_in_launch(), at_row = i / lanes, in_row = i - at_row * lanes;
  if (i >= rows.threads) return;
  const std::int64_t row = rows.first + at_row;
  const DropoutDraw draw = draw_now(counted);
  const PhiloxWords words = dropout_words(draw, row, in_row);
  std::int64_t e = static_cast<std::int64_t>(in_row / kDropoutLanes) * kChunk + in_row % kDropoutLanes;
  DUET_UNROLL
  for (int j = 0; j < kDropoutNumbers; ++j, e += kDropoutLanes)
    if (e < columns) mask[row * columns + e] = dropout_keeps(draw, words, j) ? 1 : 0;
}

}  // namespace

void dropout_mask(std::uint8_t* mask, std::int64_t rows, std::int64_t columns, const StepDraw& draw,
                  cudaStream_t stream) {
  const std::int64_t lanes = (columns + kChunk - 1) / kChunk * kDropoutLanes;
  launch_rows(dropout_mask_kernel, rows, lanes, kThreads, stream, mask, columns, static_cast<unsigned>(lanes), draw);
}

// Batches of images from bytes that lie on the device.

namespace {

/// A thread for each pixel of the batch. Division and subtraction round as on the CPU: nothing here can be fused.
__global__ void __launch_bounds__(kThreads)
    gather_images_kernel(LaunchRows batch, LabelledRows rows, const std::int64_t* indices, unsigned row_bytes,
                         float mean, float deviation, float* y, std::int64_t* picked) {
  const unsigned i = thread_in_launch(), at_row = i / row_bytes, pixel = i - at_row * row_bytes;
  if (i >= batch.threads) return;
  const std::int64_t row = batch.first + at_row, index = indices[row];
  const std::uint8_t byte = rows.bytes[index * rows.row_bytes + pixel];
  y[row * row_bytes + pixel] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
  if (pixel == 0 && picked != nullptr) picked[row] = rows.labels[index];
}

}  // namespace

void gather_images(const LabelledRows& rows, const std::int64_t* indices, std::int64_t n, float mean, float deviation,
                   float* y, std::int64_t* picked, cudaStream_t stream) {
  launch_rows(gather_images_kernel, n, rows.row_bytes, kThreads, stream, rows, indices,
              static_cast<unsigned>(rows.row_bytes), mean, deviation, y, picked);
}

// The counter on the device that holds the step number of a replayed graph.

namespace {

__global__ void set_counter_kernel(std::uint64_t* counter, std::uint64_t value) { *counter = value; }

__global__ void advance_kernel(std::uint64_t* counter, std::uint64_t steps) { *counter += steps; }

}  // namespace

void set_counter(std::uint64_t* counter, std::uint64_t value, cudaStream_t stream) {
  launch(set_counter_kernel, dim3(1), dim3(1), 0, stream, counter, value);
}

void advance(std::uint64_t* counter, std::uint64_t steps, cudaStream_t stream) {
  launch(advance_kernel, dim3(1), dim3(1), 0, stream, counter, steps);
}

}  // namespace duet::cuda::kernels
