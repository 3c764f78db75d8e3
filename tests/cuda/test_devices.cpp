// Several devices at work: copies between them, sums over them, errors that name them. On one GPU: logical devices.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "lib/backend/step_graph.h"
#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet_test;

namespace {

Backend& cuda() { return backend(DeviceKind::cuda); }

/// Up to four devices, logical ones and distinct ones, as far as there are.
std::vector<std::vector<Device>> sets_of_devices() {
  std::vector<Device> logical, distinct;
  for (int i = 0; i < 4; ++i) logical.push_back({DeviceKind::cuda, 0, i});
  for (int i = 0; i < std::min(4, cuda().device_count()); ++i) distinct.push_back({DeviceKind::cuda, i});
  std::vector<std::vector<Device>> sets{logical};
  if (distinct.size() > 1) sets.push_back(distinct);
  return sets;
}

Tensor filled(std::int64_t count, float value, Device device) {
  const Tensor x = empty({count}, DType::f32, device);
  cuda().fill(x, value);
  return x;
}

}  // namespace

DUET_CUDA_TEST("cuda: a copy between devices comes after earlier work of both, and before later work") {
  for (const auto& devices : sets_of_devices())
    for (int round = 0; round < 5; ++round) {
      // A number goes around; each device adds one to it and overwrites its own copy at once.
      Tensor x = filled(1000, 1, devices[0]);
      for (int turn = 1; turn <= 8; ++turn) {
        const Device next = devices[static_cast<std::size_t>(turn) % devices.size()];
        const Tensor there = filled(1000, -5, next);
        copy(x, there);
        cuda().fill(x, -7);
        cuda().add(there, filled(1000, 1, next), there);
        x = there;
      }
      CAPTURE(devices[0].str(), devices[1].str());
      CHECK(all_are(x, 9));
    }
}

DUET_CUDA_TEST("cuda: work on a foreign stream runs between the device's own where that is asked for") {
  // The stream of another device on the same GPU is as foreign as another library's.
  const Device own = {DeviceKind::cuda, 0, 0}, other = {DeviceKind::cuda, 0, 1};
  void *const stream = cuda().stream(own), *const foreign = cuda().stream(other);
  const Tensor x = filled(1000, 1, own), one = filled(1000, 1, own);
  const Tensor there = borrow(x.raw(), x.shape(), DType::f32, other);
  for (int turn = 0; turn < 6; ++turn) {
    cuda().order(own, stream, foreign);
    cuda().scale(there, 2);
    cuda().order(own, foreign, stream);
    cuda().add(x, one, x);
  }
  CHECK(all_are(x, 127));
  StepRecorder& recorder = *cuda().recorder(own);
  recorder.begin(0);
  CHECK_THROWS_WITH(cuda().order(own, foreign, stream), ContainsSubstring("a stream of cuda:0.0 records a CUDA graph"));
  CHECK_THROWS_AS(cuda().order(own, stream, foreign), UsageError);
  recorder.cancel();
  CHECK_THROWS_AS(cuda().order({DeviceKind::cuda, cuda().device_count()}, foreign, stream), DeviceError);
}

DUET_CUDA_TEST("cuda: memory given back while a copy of it is under way is not used for something else") {
  for (const auto& devices : sets_of_devices()) {
    std::vector<Tensor> copies;
    for (int i = 0; i < 10; ++i) {
      const float value = static_cast<float>(i);
      copies.push_back(filled(500, value, devices[0]).to(devices[1]));  // the source is given back here
      cuda().fill(filled(500, -1, devices[0]), -2);                     // in the same block
    }
    for (int i = 0; i < 10; ++i) CHECK(all_are(copies[static_cast<std::size_t>(i)], static_cast<float>(i)));
  }
}

DUET_CUDA_TEST("cuda: sums over devices have the CPU's bits, with parts on any device") {
  Mt19937 generator(141);
  for (const auto& devices : sets_of_devices())
    for (std::size_t count = 1; count <= devices.size(); ++count)
      for (const bool accumulate : {false, true}) {
        std::vector<Tensor> parts, cpu_parts;
        for (std::size_t i = 0; i < count; ++i) {
          cpu_parts.push_back(to_tensor(random_array({333}, generator)));
          parts.push_back(cpu_parts[i].to(devices[i]));
        }
        const Tensor expected = to_tensor(random_array({333}, generator));
        const Tensor sum = expected.to(devices[0]);
        backend(DeviceKind::cpu).sum_devices(cpu_parts, expected, accumulate, 0, 1);
        cuda().sum_devices(parts, sum, accumulate, 0, 2);
        cuda().sum_devices(parts, sum, accumulate, 1, 2);  // all of it is share 0's
        CAPTURE(count, accumulate, devices[0].str());
        CHECK(as_array(sum).values == as_array(expected).values);
      }
}

DUET_CUDA_TEST("cuda: a sum given to all devices has the CPU's bits everywhere, also in the parts' own memory") {
  using Skips = std::array<std::int64_t, 2>;
  Mt19937 generator(143);
  const auto check = [&](std::span<const Device> devices, std::int64_t elements, Skips skips) {
    // A part begins as many elements into its memory, which is aligned for vectors.
    const auto place = [&](std::size_t i) {
      const std::int64_t skip = skips[i % 2];
      return filled(elements + skip, -3, devices[i]).slice(skip, {elements});
    };
    std::vector<Tensor> parts, cpu_parts, sums;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      cpu_parts.push_back(to_tensor(random_array({elements}, generator)));
      parts.push_back(place(i));
      copy(cpu_parts[i], parts[i]);
      sums.push_back(i == 0 ? place(i) : parts[i]);
    }
    const Tensor expected = empty({elements});
    backend(DeviceKind::cpu).sum_devices(cpu_parts, expected, false, 0, 1);
    cuda().all_reduce_devices(parts, sums);
    cuda().fill(parts[0], -7);  // it was read by all before
    CAPTURE(devices.size(), elements, devices[0].str(), skips[0], skips[1]);
    for (const Tensor& sum : sums) CHECK(as_array(sum).values == as_array(expected).values);
  };
  for (const auto& devices : sets_of_devices()) {
    for (std::size_t count = 1; count <= devices.size(); ++count)
      for (const std::int64_t elements : {1, 3, 333})
        for (const Skips skips : {Skips{0, 0}, Skips{2, 2}, Skips{3, 1}})
          check(std::span(devices).first(count), elements, skips);
    check(std::span(devices).first(2), 150'001, {1, 1});  // several rounds of all blocks
  }
}

DUET_CUDA_TEST("cuda: the sum of squares is that of the CPU, within the order of its additions") {
  Mt19937 generator(142);
  for (const std::int64_t count : {0, 1, 255, 100'000}) {
    const Tensor x = to_tensor(random_array({count}, generator));
    const double expected = backend(DeviceKind::cpu).sum_of_squares(x);
    CHECK(std::abs(cuda().sum_of_squares(on_gpu(x)) - expected) <= 1e-12 * expected);
  }
}

DUET_CUDA_TEST("cuda: each device has a thread that works for it, all at once") {
  for (const auto& devices : sets_of_devices()) {
    std::vector<Tensor> results(devices.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < devices.size(); ++i)
      threads.emplace_back([&, i] {
        cuda().bind_thread(devices[i]);
        Tensor x = filled(100, 0, devices[i]);
        for (int turn = 0; turn < 30; ++turn) {
          const Tensor y = empty(x.shape(), DType::f32, devices[i]);
          cuda().add(x, filled(100, 1, devices[i]), y);
          x = y;
        }
        cuda().synchronize(devices[i]);
        results[i] = x;
      });
    for (std::thread& thread : threads) thread.join();
    for (const Tensor& result : results) CHECK(all_are(result, 30));
  }
}

DUET_CUDA_TEST("cuda: tensors of two devices in one operator are refused, by name") {
  const Device one{DeviceKind::cuda, 0, 0}, two{DeviceKind::cuda, 0, 1};
  const Tensor x = filled(6, 1, one), y = filled(6, 1, two);
  CHECK_THROWS_WITH(cuda().add(x, y, x), ContainsSubstring("cuda:0.0") && ContainsSubstring("cuda:0.1"));
  CHECK_THROWS_AS(cuda().add(x, y, x), DeviceError);
  CHECK_THROWS_AS(empty({1}, DType::f32, {DeviceKind::cuda, cuda().device_count()}), DeviceError);
}

DUET_CUDA_TEST("cuda: too large a tensor is an error that names the holders of memory; smaller ones still fit") {
  CHECK_THROWS_WITH(empty({std::int64_t{1} << 40}, DType::f32, kGpu),
                    ContainsSubstring("out of memory on cuda:0: asked for 4398046511104 bytes") &&
                        ContainsSubstring("this process holds"));
  CHECK(all_are(filled(10, 3, kGpu), 3));
}
