#include "lib/backend/cpu/cpu_device.h"

#include <cstdint>

namespace duet::cpu {

float* Scratch::floats(std::int64_t count) {
  if (!memory_.defined() || memory_.count() < count) memory_ = empty({count});
  return memory_.data<float>();
}

CpuDevice::CpuDevice(int index, int threads)
    : workers_(static_cast<std::size_t>(threads)), pool_(threads, [index, threads](int worker) {
        if ((index + 1) * threads <= own_cores()) pin_current_thread(index * threads + worker);
      }) {}

}  // namespace duet::cpu
