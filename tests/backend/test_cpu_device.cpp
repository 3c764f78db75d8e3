#include <thread>

#include "lib/backend/cpu/cpu_device.h"
#include "tests/support/catch2.h"

using namespace duet;

TEST_CASE("threads that live at the same time have instances of a CPU device of their own") {
  constexpr int kIndex = 900;  // no other test computes there
  cpu::CpuDevice* const own = &cpu::thread_device(kIndex);
  CHECK(&cpu::thread_device(kIndex) == own);
  CHECK(&cpu::thread_device(kIndex + 1) != own);
  const auto on_thread = [] {
    cpu::CpuDevice* device = nullptr;
    std::thread([&] { device = &cpu::thread_device(kIndex); }).join();
    return device;
  };
  cpu::CpuDevice* const first = on_thread();
  CHECK(first != own);
  CHECK(on_thread() == first);  // left by the thread before
}
