// What one CPU device owns: its threads, their prepared convolutions, and scratch memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/backend/cpu/conv_plan.h"
#include "lib/tensor.h"
#include "lib/thread_pool.h"

namespace duet::cpu {

/// Memory that grows to the largest size asked for and is then reused.
class Scratch {
 public:
  float* floats(std::int64_t count);
  std::uint8_t* bytes(std::int64_t count) { return reinterpret_cast<std::uint8_t*>(floats((count + 3) / 4)); }

 private:
  Tensor memory_;
};

/// Belongs to one thread of a device.
struct Worker {
  ConvPlans plans;
  Scratch weights, formatted, image, gradient, row, index, mask;
};

class CpuDevice {
 public:
  /// The workers other than the caller are pinned to cores index * threads + 1 and up, where there are enough.
  CpuDevice(int index, int threads);

  ThreadPool& pool() { return pool_; }
  Worker& worker(int i) { return workers_[static_cast<std::size_t>(i)]; }
  /// Partial sums of the leaves of a batch.
  Scratch& leaves() { return leaves_; }

 private:
  std::vector<Worker> workers_;
  Scratch leaves_;
  ThreadPool pool_;
};

}  // namespace duet::cpu
