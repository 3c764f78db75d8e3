// Seeds of LibTorch's random numbers.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <mutex>

#include "lib/random.h"

namespace duet::torch {

/// LibTorch's default generator of a device; when this goes, it is as it was before.
class SeededGenerator {
 public:
  explicit SeededGenerator(const at::Device& device) : generator_(at::globalContext().defaultGenerator(device)) {
    const std::lock_guard lock(generator_.mutex());
    before_ = generator_.get_state();
  }
  ~SeededGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(before_);
  }
  SeededGenerator(const SeededGenerator&) = delete;
  SeededGenerator& operator=(const SeededGenerator&) = delete;

  void seed(std::uint64_t value) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_current_seed(value);
  }

 private:
  at::Generator generator_;
  at::Tensor before_;
};

/// Sets LibTorch's default generator of the device to what the seed of a draw (Context::next_seed), the layer, the step
/// and the first row of the global batch give, so that draws depend on nothing else where no other thread draws from
/// it.
class RunSeeds {
 public:
  /// Outside of training: it sets nothing.
  explicit RunSeeds(const at::Device& device) : on_(false), device_(device) {}
  /// `first`: number of the batch's row 0 in the global batch.
  RunSeeds(std::uint64_t seed, std::uint64_t step, std::uint32_t layer, std::int64_t first, const at::Device& device)
      : on_(true), first_(first), device_(device) {
    key_ = Philox(seed, step).word64() ^ layer;
  }
  /// Seeds the generator for the rows of the batch from `begin` on.
  void begin_rows(std::int64_t begin) const {
    if (!on_) return;
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(Philox(key_, static_cast<std::uint64_t>(first_ + begin)).word());
  }

 private:
  bool on_;
  std::int64_t first_ = 0;
  at::Device device_;
  std::uint64_t key_ = 0;
};

}  // namespace duet::torch
