// The orders of indices, their cutting into steps, and PyTorch's data loader of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/random.h"
#include "samplers/batch.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "samplers/random.h"
#include "samplers/sequential.h"

namespace duet::samplers {
namespace {

void check_rank(int rank, int world_size) {
  require<UsageError>(world_size > 0, "the world size must be positive, got ", world_size);
  require<UsageError>(0 <= rank && rank < world_size, "Invalid rank ", rank, ", rank should be in the interval [0, ",
                      world_size - 1, "]");
}

std::int64_t checked_size(std::int64_t n) {
  require<UsageError>(n > 0, "num_samples should be a positive integer value, but got num_samples=", n);
  return n;
}

std::vector<std::int64_t> room_for(std::int64_t n) {
  require<UsageError>(n >= 0, "cannot sample from ", n, " items");
  return std::vector<std::int64_t>(static_cast<std::size_t>(n));
}

/// ceil(n / ranks), or with drop_last the number of whole rounds.
std::int64_t share(std::int64_t n, const DistributedOptions& options) {
  return options.drop_last ? n / options.world_size : (n + options.world_size - 1) / options.world_size;
}

std::uint64_t hash_of(std::span<const std::int64_t> order) {
  std::uint64_t hash = order.size();
  for (const std::int64_t index : order) hash = mixed(hash, static_cast<std::uint64_t>(index));
  return hash;
}

}  // namespace

SequentialSampler::SequentialSampler(std::int64_t n) : indices_(room_for(n)) {
  std::iota(indices_.begin(), indices_.end(), std::int64_t{0});
}

RandomSampler::RandomSampler(std::int64_t n, std::uint64_t seed) : n_(checked_size(n)), seed_(seed) { set_epoch(0); }

RandomSampler::RandomSampler(std::int64_t n, Mt19937& generator) : n_(checked_size(n)), generator_(&generator) {}

void RandomSampler::set_epoch(std::int64_t epoch) {
  const std::uint64_t seed =
      generator_ ? static_cast<std::uint64_t>(generator_->random_int64()) : seed_ + static_cast<std::uint64_t>(epoch);
  indices_.resize(static_cast<std::size_t>(n_));
  Mt19937(seed).randperm(indices_);
}

DistributedSampler::DistributedSampler(std::int64_t n, const DistributedOptions& options) : options_(options) {
  check_rank(options.rank, options.world_size);
  all_ = room_for(n);
  indices_ = room_for(share(n, options));
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (options_.shuffle) {
    Mt19937(options_.seed + static_cast<std::uint64_t>(epoch)).randperm(all_);
  } else {
    std::iota(all_.begin(), all_.end(), std::int64_t{0});
  }
  hash_ = hash_of(all_);
  const auto ranks = static_cast<std::size_t>(options_.world_size), rank = static_cast<std::size_t>(options_.rank);
  for (std::size_t i = 0; i < indices_.size(); ++i) indices_[i] = all_[(rank + i * ranks) % all_.size()];
}

StepSampler::StepSampler(std::unique_ptr<data::Sampler> order, const BatchOptions& options, bool shares)
    : order_(std::move(order)), size_(order_->size()), options_(options), shares_(shares) {
  require<UsageError>(options.batch_size >= 1,
                      "batch_size should be a positive integer value, but got batch_size=", options.batch_size);
  check_rank(options.rank, options.world_size);
  hash_order();
}

void StepSampler::set_ranks(int rank, int world_size) {
  check_rank(rank, world_size);
  options_.rank = rank;
  options_.world_size = world_size;
  hash_order();
}

void StepSampler::set_epoch(std::int64_t epoch) {
  order_->set_epoch(epoch);
  require<UsageError>(order_->size() == size_, "the sampler's size() is ", order_->size(), " in epoch ", epoch,
                      ", expected ", size_, " as at first: all epochs have as many steps; pad or cut its order");
  hash_order();
}

void StepSampler::hash_order() {
  const data::OrderPart part = order_->part();
  if (options_.world_size > 1)
    order_hash_ = shares_ ? hash_of(order_->indices()) : part.whole;
  else if (part.ranks > 1)
    order_hash_ = mixed(part.whole, static_cast<std::uint64_t>(part.rank));
}

std::int64_t StepSampler::steps() const {
  const std::int64_t batch = options_.batch_size;
  return size_ / batch + (!options_.drop_last && size_ % batch ? 1 : 0);
}

std::span<const std::int64_t> StepSampler::cut(std::int64_t step) const {
  const auto all = order_->indices();
  const std::int64_t batch = options_.batch_size;
  require<UsageError>(std::ssize(all) == order_->size(), "set_epoch has not been called");
  require<UsageError>(0 <= step && step * batch < std::ssize(all), "step ", step, " asked of an order of ", all.size());
  const auto begin = static_cast<std::size_t>(step * batch);
  return all.subspan(begin, std::min(static_cast<std::size_t>(batch), all.size() - begin));
}

Batches::Batches(std::unique_ptr<data::Sampler> order, const BatchOptions& options)
    : StepSampler(std::move(order), options, false) {
  const data::OrderPart part = this->part();
  require<UsageError>(
      options.world_size == 1 || part.ranks == 1 || (part.rank == options.rank && part.ranks == options.world_size),
      "the order is the part of rank ", part.rank, " of ", part.ranks, ", but its batches are those of rank ",
      options.rank, " of ", options.world_size);
}

data::StepIndices Batches::step(std::int64_t step) const {
  const auto indices = cut(step);
  return {indices, rank() * std::ssize(indices), world_size() * std::ssize(indices), world_size(), order_hash()};
}

BlockedBatches::BlockedBatches(std::unique_ptr<data::Sampler> whole_order, const BlockedOptions& o)
    : StepSampler(std::move(whole_order), {o.global_batch, o.drop_last, o.world_size, o.rank}, true),
      whole_blocks_(o.whole_blocks) {
  set_blocks(o.blocks);
}

void BlockedBatches::set_blocks(int blocks) {
  require<UsageError>(is_block_count(blocks), "a batch of ", blocks, " blocks, expected 8, 16 or 32");
  blocks_ = blocks;
}

bool BlockedBatches::set_part(int rank, int ranks) {
  if (whole_blocks_) set_ranks(rank, ranks);
  return whole_blocks_;
}

data::StepIndices BlockedBatches::step(std::int64_t step) const {
  const auto batch = cut(step);
  const std::int64_t rows = std::ssize(batch);
  const auto begin_of = [&](int rank) {
    return owned() ? share_begin(rank, world_size(), rows, blocks_) : block_begin(rank, rows, world_size());
  };
  const std::int64_t begin = begin_of(rank()), end = begin_of(rank() + 1);
  return {batch.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
          begin,
          rows,
          world_size(),
          order_hash(),
          blocks_,
          owned()};
}

data::Loader data_loader(const data::Dataset& dataset, DataLoaderOptions options) {
  require<UsageError>(!options.sampler || !options.shuffle, "sampler option is mutually exclusive with shuffle");
  require<UsageError>(!options.shuffle || options.generator, "shuffle needs a generator");
  if (!options.sampler) {
    if (options.shuffle) {
      options.sampler = std::make_unique<RandomSampler>(dataset.size(), *options.generator);
    } else {
      options.sampler = std::make_unique<SequentialSampler>(dataset.size());
    }
  }
  const BatchOptions batches{.batch_size = options.batch_size, .drop_last = options.drop_last};
  return data::Loader(dataset, std::make_unique<Batches>(std::move(options.sampler), batches),
                      {.workers = options.workers, .prefetch = options.prefetch, .generator = options.generator});
}

}  // namespace duet::samplers
