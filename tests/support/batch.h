// The batches on which tests train, the same in every process.
#pragma once

#include <cstdint>

#include "lib/random.h"
#include "lib/tensor.h"

namespace duet_test {

struct Batch {
  duet::Tensor images, labels;

  /// Rows [begin, end).
  Batch rows(std::int64_t begin, std::int64_t end) const { return {images.rows(begin, end), labels.rows(begin, end)}; }
  Batch to(duet::Device device) const { return {images.to(device), labels.to(device)}; }
};

/// The global batch of `rows` rows of step `step`, stamped as the loader does it.
inline Batch make_batch(std::int64_t rows, std::int64_t step) {
  duet::Mt19937 generator(static_cast<std::uint64_t>(step) + 99);
  Batch batch = {duet::empty({rows, 1, 28, 28}), duet::empty({rows}, duet::DType::i64)};
  generator.uniform(batch.images.span<float>(), -1.0, 1.0);
  for (std::int64_t& label : batch.labels.span<std::int64_t>()) label = generator.randint(0, 10);
  batch.images.set_stamp({step, 0, rows});
  batch.labels.set_stamp({step, 0, rows});
  return batch;
}

}  // namespace duet_test
