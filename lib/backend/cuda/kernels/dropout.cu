// Dropout's masks.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
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

}  // namespace duet::cuda::kernels
