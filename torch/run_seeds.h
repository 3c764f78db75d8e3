// Seeds of LibTorch's random numbers.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <mutex>

#include "lib/nn/module.h"
#include "lib/random.h"
#include "lib/rows.h"

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

/// Sets LibTorch's default generator of the device to what the model's seed, the layer, the step and the first row of
/// the global batch give, so that draws depend on nothing else where no other thread draws from it.
class RunSeeds {
 public:
  RunSeeds(const nn::Context& context, std::uint32_t layer, const Rows& stamp, const at::Device& device)
      : on_(context.training), first_(stamp.first), device_(device) {
    Philox step(context.seed, static_cast<std::uint64_t>(stamp.stamped() ? stamp.step : context.step));
    key_ = std::uint64_t{step.word()} << 32;
    key_ |= step.word() ^ layer;
  }
  /// Of the rows of the batch from `begin` on; nothing outside of training.
  void begin_rows(std::int64_t begin) const {
    if (!on_) return;
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(Philox(key_, static_cast<std::uint64_t>(first_ + begin)).word());
  }

 private:
  bool on_;
  std::int64_t first_;
  at::Device device_;
  std::uint64_t key_ = 0;
};

}  // namespace duet::torch
