#include "tests/backend/bits.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "lib/ops/losses.h"

namespace duet_test {

using namespace duet;

Batch random_batch(std::int64_t rows, std::uint64_t seed) {
  Mt19937 generator(seed);
  Batch batch = {empty({rows, 1, 28, 28}), empty({rows}, DType::i64)};
  generator.uniform(batch.images.span<float>(), -1.0, 1.0);
  for (std::int64_t& label : batch.labels.span<std::int64_t>()) label = generator.randint(0, 10);
  batch.images.set_stamp({3, 0, rows});
  batch.labels.set_stamp({3, 0, rows});
  return batch;
}

Tensor gradient_of(nn::SimpleCNN& model, const Batch& batch) {
  model.zero_grad();
  model.context().draws = {};  // dropout draws for the batch as if it had just been delivered
  if (batch.images.size(0) == 0) return zeros(model.parameters().gradients().shape());
  ops::nll_loss(model(batch.images), batch.labels).backward();
  return model.parameters().gradients().clone();
}

Tensor gradient_in_shards(nn::SimpleCNN& model, const Batch& batch, int shards) {
  const std::int64_t rows = batch.images.size(0);
  std::vector<Tensor> parts;
  for (int i = 0; i < shards; ++i) {
    const std::int64_t begin = block_begin(i, rows, shards), end = block_begin(i + 1, rows, shards);
    parts.push_back(gradient_of(model, {batch.images.rows(begin, end), batch.labels.rows(begin, end)}));
  }
  const Tensor sum = empty(parts[0].shape());
  backend(sum).sum_devices(parts, sum, false, 0, 1);
  return sum;
}

bool same_bits(const Tensor& a, const Tensor& b) { return std::memcmp(a.raw(), b.raw(), a.bytes()) == 0; }

std::vector<const cpu::Kernels*> instruction_sets() {
  std::vector<const cpu::Kernels*> sets = {&cpu::generic::table};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(&cpu::avx2::table);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.push_back(&cpu::avx512::table);
#endif
  return sets;
}

}  // namespace duet_test
