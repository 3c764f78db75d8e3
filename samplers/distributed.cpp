#include "samplers/distributed.h"

#include <cstdint>
#include <numeric>

#include "lib/error.h"
#include "lib/random.h"

namespace duet::samplers {
namespace {

/// ceil(n / ranks), or with drop_last the number of whole rounds.
std::int64_t share(std::int64_t n, const DistributedOptions& options) {
  return options.drop_last ? n / options.world_size : (n + options.world_size - 1) / options.world_size;
}

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t n, const DistributedOptions& options) : options_(options) {
  require<UsageError>(options.world_size > 0, "the world size must be positive, got ", options.world_size);
  require<UsageError>(0 <= options.rank && options.rank < options.world_size, "Invalid rank ", options.rank,
                      ", rank should be in the interval [0, ", options.world_size - 1, "]");
  require<UsageError>(n >= 0, "cannot sample from ", n, " items");
  all_.resize(static_cast<std::size_t>(n));
  indices_.resize(static_cast<std::size_t>(share(n, options)));
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (options_.shuffle) {
    Mt19937(options_.seed + static_cast<std::uint64_t>(epoch)).randperm(all_);
  } else {
    std::iota(all_.begin(), all_.end(), std::int64_t{0});
  }
  const auto ranks = static_cast<std::size_t>(options_.world_size), rank = static_cast<std::size_t>(options_.rank);
  for (std::size_t i = 0; i < indices_.size(); ++i) indices_[i] = all_[(rank + i * ranks) % all_.size()];
}

}  // namespace duet::samplers
