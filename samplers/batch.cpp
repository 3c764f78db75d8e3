#include "samplers/batch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>

#include "lib/error.h"

namespace duet::samplers {
namespace {

void check(std::int64_t batch, int rank, int world_size) {
  require<UsageError>(batch >= 1, "batch_size should be a positive integer value, but got batch_size=", batch);
  require<UsageError>(world_size > 0, "the world size must be positive, got ", world_size);
  require<UsageError>(0 <= rank && rank < world_size, "Invalid rank ", rank, ", rank should be in the interval [0, ",
                      world_size - 1, "]");
}

std::int64_t count_steps(std::int64_t n, std::int64_t batch, bool drop_last) {
  return n / batch + (!drop_last && n % batch ? 1 : 0);
}

/// The indices of batch number `step`.
std::span<const std::int64_t> cut(const data::Sampler& order, std::int64_t batch, std::int64_t step) {
  const auto all = order.indices();
  require<UsageError>(std::ssize(all) == order.size(), "set_epoch has not been called");
  require<UsageError>(0 <= step && step * batch < std::ssize(all), "step ", step, " asked of an order of ", all.size());
  const auto begin = static_cast<std::size_t>(step * batch);
  return all.subspan(begin, std::min(static_cast<std::size_t>(batch), all.size() - begin));
}

}  // namespace

Batches::Batches(std::unique_ptr<data::Sampler> order, const BatchOptions& options)
    : order_(std::move(order)), options_(options) {
  check(options.batch_size, options.rank, options.world_size);
}

std::int64_t Batches::steps() const { return count_steps(order_->size(), options_.batch_size, options_.drop_last); }

data::StepIndices Batches::step(std::int64_t step) const {
  const auto indices = cut(*order_, options_.batch_size, step);
  return {indices, options_.rank * std::ssize(indices), options_.world_size * std::ssize(indices), options_.world_size};
}

BlockedBatches::BlockedBatches(std::unique_ptr<data::Sampler> whole_order, const BlockedOptions& options)
    : order_(std::move(whole_order)), options_(options) {
  check(options.global_batch, options.rank, options.world_size);
}

std::int64_t BlockedBatches::steps() const {
  return count_steps(order_->size(), options_.global_batch, options_.drop_last);
}

data::StepIndices BlockedBatches::step(std::int64_t step) const {
  const auto batch = cut(*order_, options_.global_batch, step);
  const std::int64_t rows = std::ssize(batch);
  const std::int64_t begin = block_begin(options_.rank, rows, options_.world_size);
  const std::int64_t end = block_begin(options_.rank + 1, rows, options_.world_size);
  return {batch.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), begin, rows,
          options_.world_size};
}

}  // namespace duet::samplers
