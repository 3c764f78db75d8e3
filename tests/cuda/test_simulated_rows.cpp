// Tensors of more elements than a launch has threads: on simulated devices from 1,000,000 on, on GPUs from 2^31.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/backend/average_pool.h"
#include "lib/backend/backend.h"
#include "tests/cuda/gpu.h"
#include "tests/support/catch2.h"
#include "tests/support/fake_cuda/simulator.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Values that repeat after a prime number of elements, so that those of two launches differ.
Tensor some(const Shape& shape) {
  const Tensor values = empty(shape);
  std::int64_t i = 0;
  for (float& value : values.span<float>()) value = static_cast<float>(i++ % 1009) / 1009 - 0.5f;
  return values;
}

/// The result has the CPU's values, to rounding, and took the kernel two launches.
void check(const std::string& name, const std::function<Tensor(Backend&, Device)>& work) {
  CAPTURE(name);
  const Tensor expected = work(backend(DeviceKind::cpu), {});
  duet_sim::take_calls();
  const Tensor got = on_cpu(work(backend(DeviceKind::cuda), kGpu));
  CHECK(duet_sim::take_calls()["cudaLaunchKernelEx"] == 2);
  double most = 0;
  const auto a = got.span<float>(), b = expected.span<float>();
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - b[i]));
  CHECK(most < 1e-6);
}

}  // namespace

DUET_CUDA_TEST("simulated: a tensor of more elements than a launch has threads takes two launches") {
  constexpr std::int64_t kRows = 120'000, kClasses = 10;
  const Tensor labels = empty({kRows}, DType::i64), image = some({3, 1, 800, 600}), pooled = some({12, 1, 400, 300});
  std::int64_t row = 0;
  for (std::int64_t& label : labels.span<std::int64_t>()) label = row++ * 7 % kClasses;
  check("nll_loss_backward", [&](Backend& on, Device at) {
    const Tensor dx = empty({kRows, kClasses}, DType::f32, at);
    on.nll_loss_backward(from_values<float>({}, {2}).to(at), labels.to(at), 0.5f, dx);
    return dx;
  });
  const Tensor x = some({kRows, kClasses});
  check("log_softmax_nll_forward", [&](Backend& on, Device at) {
    const Tensor dx = empty({kRows, kClasses}, DType::f32, at);
    on.log_softmax_nll_forward(x.to(at), labels.to(at), 0.5f, empty({}, DType::f32, at), 0.25f, dx);
    return dx;
  });
  const AveragePool halves = {{800, 400, 2, 2, 0, false}, {600, 300, 2, 2, 0, false}};
  check("avg_pool2d_backward", [&](Backend& on, Device at) {
    const Tensor dx = empty(image.shape(), DType::f32, at);
    on.avg_pool2d_backward(pooled.rows(0, 3).to(at), dx, halves);
    return dx;
  });
  check("avg_pool2d_forward", [&](Backend& on, Device at) {
    const Tensor y = empty(pooled.shape(), DType::f32, at);
    on.avg_pool2d_forward(some({12, 1, 800, 600}).to(at), y, halves);
    return y;
  });
  const Tensor bytes = empty({5, 1000}, DType::u8), indices = empty({1100}, DType::i64);
  std::int64_t at_byte = 0;
  for (std::uint8_t& byte : bytes.span<std::uint8_t>()) byte = static_cast<std::uint8_t>(at_byte++ % 251);
  for (std::int64_t& index : indices.span<std::int64_t>()) index = at_byte++ % 5;
  check("gather_images", [&](Backend& on, Device at) {
    const Tensor y = empty({1100, 1000}, DType::f32, at);
    on.gather_images(bytes.to(at), {}, indices.to(at), 0.5f, 0.25f, y, {});
    return y;
  });
}
