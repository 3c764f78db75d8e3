// The threads that LibTorch computes with on a CPU device of duet's.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <pthread.h>
#include <sched.h>

#include <cstdint>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/base/threads.h"
#include "lib/device.h"

namespace duet::torch {

/// Starts LibTorch's threads of the calling one on the device's cores: they would inherit its one core.
inline void start_team(Device device, int threads) {
  cpu_set_t before;
  if (::pthread_getaffinity_np(::pthread_self(), sizeof before, &before) != 0 || CPU_COUNT(&before) >= threads) return;
  if (!pin_current_thread(device.index * threads, threads)) return;
  struct Restore {
    ~Restore() { ::pthread_setaffinity_np(::pthread_self(), sizeof own, &own); }
    cpu_set_t own;
  } const restore{before};
  constexpr std::int64_t kShare = 1 << 16;  // twice the elements for which LibTorch takes another thread
  at::zeros({threads * kShare}).add_(1);
}

/// The calling thread computes with as many threads as duet's devices do. One thread stays with one device.
inline void set_threads(Device device) {
  if (device.kind != DeviceKind::cpu) return;
  thread_local int threads = 0;
  const int wanted = backend(device.kind).threads_per_device();
  if (std::exchange(threads, wanted) == wanted) return;
  at::set_num_threads(wanted);
  start_team(device, wanted);
}

}  // namespace duet::torch
