// What only simulated devices can show: contexts, the driver's memory, and calls that fail.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/backend/step_graph.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/cuda/gpu.h"
#include "tests/support/catch2.h"
#include "tests/support/fake_cuda/simulator.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr Device kTwo = {DeviceKind::cuda, 2};
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

void train_step(nn::Module& net, optim::SGD& opt, Device device, std::int64_t step) {
  const Tensor images = zeros({4, 1, 28, 28}), labels = zeros({4}, DType::i64);
  Tensor stamped = images.to(device);
  stamped.set_stamp({step, 0, 4});
  opt.zero_grad();
  ops::nll_loss(net(stamped), labels.to(device)).backward();
  opt.step();
}

}  // namespace

TEST_CASE("simulated: only the chosen GPUs get a context, and steps stop allocating from the driver") {
  Backend& cuda = backend(DeviceKind::cuda);
  for (int i = 0; i < cuda.device_count(); ++i) CHECK_FALSE(cuda.describe({DeviceKind::cuda, i}).empty());
  CHECK_FALSE(cuda.libraries().empty());
  nn::SimpleCNN model(7);
  model.to(kOne);
  dp::DataParallel net(model, {.devices = {kOne, kTwo}});
  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  for (int step = 0; step < 2; ++step) train_step(net, opt, kOne, step);
  const std::size_t one = duet_sim::live(1).bytes, two = duet_sim::live(2).bytes;
  for (int step = 2; step < 5; ++step) train_step(net, opt, kOne, step);
  cuda.synchronize(kOne);
  cuda.synchronize(kTwo);
  CHECK(duet_sim::live(1).bytes == one);
  CHECK(duet_sim::live(2).bytes == two);
  CHECK(duet_sim::has_context(1));
  CHECK(duet_sim::has_context(2));
  CHECK_FALSE(duet_sim::has_context(0));
  CHECK_FALSE(duet_sim::has_context(3));
}

TEST_CASE("simulated: cached memory is freed for a larger allocation, on any device of the GPU") {
  // 384 MiB in all, as tests/cuda/meson.build says.
  { const Tensor passing = empty({208 * kMiB}, DType::u8, kOne); }
  { const Tensor passing = empty({224 * kMiB}, DType::u8, kOne); }
  CHECK(duet_sim::live(1).bytes < static_cast<std::size_t>(384 * kMiB));
  const Device logical = {DeviceKind::cuda, 1, 0};
  const Tensor held = empty({224 * kMiB}, DType::u8, logical);
  CHECK_THROWS_WITH(empty({224 * kMiB}, DType::u8, kOne),
                    ContainsSubstring("out of memory on cuda:1: asked for " + std::to_string(224 * kMiB) + " bytes"));
}

TEST_CASE("simulated: an emptied cache gives its blocks to the driver, and keeps those in use") {
  allocator(kOne).empty_cache();
  const std::size_t before = duet_sim::live(1).bytes;
  const Tensor used = empty({5 * kMiB}, DType::u8, kOne);
  { const Tensor passing = empty({7 * kMiB}, DType::u8, kOne); }
  CHECK(allocator(kOne).empty_cache() >= static_cast<std::size_t>(7 * kMiB));
  CHECK(allocator(kOne).empty_cache() == 0);
  CHECK(duet_sim::live(1).bytes - before < static_cast<std::size_t>(7 * kMiB));
}

TEST_CASE("simulated: a failed allocation is tried again, and failures name the request") {
  Backend& cuda = backend(DeviceKind::cuda);
  const Tensor x = zeros({10}, DType::f32, kTwo);
  cuda.synchronize(kTwo);
  duet_sim::reset(1, "cudaMalloc:1");
  CHECK(empty({5 * kMiB}, DType::u8, kTwo).defined());
  duet_sim::reset(1, "cudaMemsetAsync:1");
  CHECK_THROWS_WITH(zeros({10}, DType::f32, kTwo), ContainsSubstring("cuda: clear: "));
  CHECK_NOTHROW(cuda.synchronize(kTwo));
  duet_sim::reset(1, "kernel:1");
  CHECK_THROWS_WITH(
      [&] {
        cuda.relu_forward(x, x);
        cuda.synchronize(kTwo);
      }(),
      ContainsSubstring("cuda: synchronize: ") && ContainsSubstring("caused by relu_forward"));
  duet_sim::reset(1);
}

TEST_CASE("simulated: errors of CUDA and cuDNN carry their reason, and what to do") {
  Backend& cuda = backend(DeviceKind::cuda);
  const Tensor x = zeros({1, 2, 5, 5}, DType::f32, kTwo), w = zeros({3, 2, 3, 3}, DType::f32, kTwo);
  const Tensor y = empty({1, 3, 3, 3}, DType::f32, kTwo);
  const auto convolve = [&] { cuda.conv2d_forward(x, w, {}, y, {3, 3, 1, 1, 0, 0}); };
  CHECK_NOTHROW(convolve());  // by the algorithm after the one that is refused when it runs
  duet_sim::reset(1, "cudnnConvolutionForward:1");
  CHECK_THROWS_WITH(convolve(), ContainsSubstring("conv2d_forward: ") && ContainsSubstring(": simulated reason"));
  duet_sim::reset(1, "cudaLaunchKernelEx:1:222");  // cudaErrorUnsupportedPtxVersion
  CHECK_THROWS_WITH(cuda.relu_forward(x, x), ContainsSubstring("update the driver, or build with this GPU's sm_N"));
  for (const char* sticky : {"220", "226", "721"}) {
    duet_sim::reset(1, std::string("cudaStreamSynchronize:1:") + sticky);
    cuda.relu_forward(x, x);
    CHECK_THROWS_WITH(cuda.synchronize(kTwo), ContainsSubstring("caused by relu_forward"));
  }
  duet_sim::reset(1);
}

TEST_CASE("simulated: work on CUDA's default stream needs an order with the device's, in both directions") {
  Backend& cuda = backend(DeviceKind::cuda);
  void* const stream = cuda.stream(kOne);
  const Tensor x = zeros({1000}, DType::f32, kOne);
  const auto wrong_seeds = [&](bool before, bool after) {
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      duet_sim::reset(seed);
      cuda.fill(x, 1);
      if (before) cuda.order(kOne, stream, nullptr);
      REQUIRE(cudaMemsetAsync(x.raw(), 0, x.bytes(), nullptr) == cudaSuccess);
      if (after) cuda.order(kOne, nullptr, stream);
      cuda.add(x, x, x);
      cuda.fill(x.rows(0, 500), 3);
      REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
      const std::vector<double> values = as_array(x).values;
      wrong += values[0] != 3 || values[999] != 0;
    }
    return wrong;
  };
  cuda.bind_thread(kOne);
  CHECK(wrong_seeds(true, true) == 0);
  CHECK(wrong_seeds(false, true) >= 5);
  CHECK(wrong_seeds(true, false) >= 5);
  duet_sim::reset(1, "cudaStreamWaitEvent:1");
  CHECK_THROWS_WITH(cuda.order(kOne, nullptr, stream), ContainsSubstring("cudaStreamWaitEvent"));
  duet_sim::reset(1);
}

TEST_CASE("simulated: a GPU that has no room for another peer copies through host memory") {
  const Device three = {DeviceKind::cuda, 3};
  duet_sim::reset(1, "cudaDeviceEnablePeerAccess:1+:711");  // cudaErrorTooManyPeers
  const Tensor x = from_values<float>({3}, {1, 2, 3}).to(kTwo).to(three);
  CHECK(as_array(x).values == std::vector<double>{1, 2, 3});
  const Tensor parts[] = {x.to(kTwo), x};
  Backend& cuda = backend(DeviceKind::cuda);
  cuda.all_reduce_devices(parts, parts);
  for (const Tensor& sum : parts) CHECK(as_array(sum).values == std::vector<double>{2, 4, 6});
  CHECK_THROWS_WITH(cuda.recorder(kTwo)->begin(0, 1, std::span(&three, 1)),
                    ContainsSubstring("of which not all can access each other's memory"));
  duet_sim::reset(1, "cudaDeviceEnablePeerAccess:1+:1");
  CHECK_THROWS_WITH(x.to(kOne), ContainsSubstring("cudaDeviceEnablePeerAccess"));
  duet_sim::reset(1);
}

TEST_CASE("simulated: a cached block does not keep its last user's data") {
  const void* block = nullptr;
  {
    const Tensor x = zeros({1000}, DType::f32, kTwo);
    block = x.raw();
  }
  const Tensor y = empty({1000}, DType::f32, kTwo);
  REQUIRE(y.raw() == block);
  const Tensor left = on_cpu(y);
  for (const float value : left.span<float>()) REQUIRE(value != 0);
}
