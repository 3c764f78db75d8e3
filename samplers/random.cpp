#include "samplers/random.h"

#include <cstdint>

#include "lib/error.h"

namespace duet::samplers {
namespace {

std::int64_t checked(std::int64_t n) {
  require<UsageError>(n > 0, "num_samples should be a positive integer value, but got num_samples=", n);
  return n;
}

}  // namespace

RandomSampler::RandomSampler(std::int64_t n, std::uint64_t seed) : n_(checked(n)), seed_(seed) { set_epoch(0); }

RandomSampler::RandomSampler(std::int64_t n, Mt19937& generator) : n_(checked(n)), generator_(&generator) {}

void RandomSampler::set_epoch(std::int64_t epoch) {
  const std::uint64_t seed =
      generator_ ? static_cast<std::uint64_t>(generator_->random_int64()) : seed_ + static_cast<std::uint64_t>(epoch);
  indices_.resize(static_cast<std::size_t>(n_));
  Mt19937(seed).randperm(indices_);
}

}  // namespace duet::samplers
