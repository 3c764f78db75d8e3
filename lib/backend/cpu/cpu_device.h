// The resources with which a thread computes on a CPU device: helper threads, prepared convolutions, scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/backend/cpu/conv_plan.h"
#include "lib/base/threads.h"
#include "lib/tensor.h"

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

/// Used by one thread at a time, which is worker 0.
class CpuDevice {
 public:
  /// `pin`: the other workers are pinned to cores index * threads + 1 and up, where there are enough.
  CpuDevice(int index, int threads, bool pin);

  ThreadPool& pool() { return pool_; }
  Worker& worker(int i) { return workers_[static_cast<std::size_t>(i)]; }
  /// Partial sums of the leaves of a batch.
  Scratch& leaves() { return leaves_; }

 private:
  std::vector<Worker> workers_;
  Scratch leaves_;
  ThreadPool pool_;
};

inline constexpr int kCpuDevices = 1024;

/// The calling thread's own instance of cpu:`index`, below kCpuDevices: threads that compute on one device at the same
/// time share no instance. When a thread ends, its instances are left to later threads.
CpuDevice& thread_device(int index);

/// Workers of the instances made from now on. Throws UsageError once there are any.
void set_device_threads(int threads);

}  // namespace duet::cpu
