// The CPU's memory, and its other small duties.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/cpu_backend.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"

using namespace duet;

TEST_CASE("host memory is aligned, apart, and used again by size") {
  cpu::HostAllocator host;
  void* const a = host.allocate(100);
  void* const b = host.allocate(100);
  CHECK(reinterpret_cast<std::uintptr_t>(a) % 64 == 0);
  CHECK(a != b);
  std::memset(a, 1, 100);
  host.release(a, 100);
  void* const other = host.allocate(10000);
  CHECK(other != a);
  CHECK(host.allocate(100) == a);
  host.release(a, 100);
  host.release(b, 100);
  host.release(other, 10000);
  void* const nothing = host.allocate(0);
  CHECK(nothing != nullptr);
  host.release(nothing, 0);
}

TEST_CASE("an emptied cache of host memory holds nothing but what is in use") {
  cpu::HostAllocator host;
  constexpr std::size_t kBytes = std::size_t{3} << 20;
  void* const used = host.allocate(kBytes);
  host.release(host.allocate(kBytes), kBytes);
  CHECK(host.empty_cache() >= kBytes);
  CHECK(host.empty_cache() == 0);
  std::memset(used, 1, kBytes);
  host.release(used, kBytes);
  CHECK(host.allocate(kBytes) == used);
  host.release(used, kBytes);
}

TEST_CASE("host memory may be asked for and given back on several threads at once") {
  cpu::HostAllocator host;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const std::size_t bytes = 64 * static_cast<std::size_t>(1 + i % 3);
        auto* const memory = static_cast<unsigned char*>(host.allocate(bytes));
        std::memset(memory, static_cast<int>(t), bytes);
        for (std::size_t k = 0; k < bytes; ++k) wrong[t] += memory[k] != t;
        host.release(memory, bytes);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("too much memory is a DeviceError that says how much was asked for") {
  CHECK_THROWS_AS(allocator({}).allocate(std::size_t{1} << 62), DeviceError);
  CHECK_THROWS_WITH(allocator({}).allocate(std::size_t{1} << 62), duet_test::ContainsSubstring("out of memory on cpu"));
}

TEST_CASE("copies of runs, and devices that do not exist") {
  Backend& cpu = backend(DeviceKind::cpu);
  const std::vector<std::uint8_t> source = {1, 2, 3, 4, 5, 6};
  std::vector<std::uint8_t> destination(8, 0);
  cpu.copy_2d(destination.data(), 4, source.data(), 3, 2, 2, {});
  CHECK(destination == std::vector<std::uint8_t>{1, 2, 0, 0, 4, 5, 0, 0});
  CHECK(cpu.device_count() >= 64);
  CHECK(cpu.shares_memory());
  CHECK(cpu.libraries().rfind("oneDNN ", 0) == 0);
  if (!why_no_cuda().empty())
    CHECK_THROWS_WITH(backend(DeviceKind::cuda), duet_test::ContainsSubstring("no CUDA device"));
  CHECK_THROWS_AS(cpu.set_threads_per_device(0), UsageError);
  CHECK_THROWS_AS(cpu.dropout_mask(zeros({1, 1}, DType::u8, {DeviceKind::cpu, 5000}), {}), DeviceError);
}

TEST_CASE("the number of correct rows, the first of equal entries counts") {
  const Tensor x = from_values<float>({3, 3}, {0, 2, 1, 5, 5, 5, -3, -2, -1});
  CHECK(backend(x).count_correct(x, from_values<std::int64_t>({3}, {1, 0, 2})) == 3);
  CHECK(backend(x).count_correct(x, from_values<std::int64_t>({3}, {0, 1, 2})) == 1);
}
