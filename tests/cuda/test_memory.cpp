// Memory and copies of GPUs, real or simulated: work runs in the order in which it is enqueued.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lib/tensor.h"
#include "tests/cuda/gpu.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

namespace {

constexpr Device kLogical[] = {{DeviceKind::cuda, 0, 0}, {DeviceKind::cuda, 0, 1}};

/// The GPUs of this machine, at most four; logical ones where there is one GPU only.
std::vector<Device> some_devices() {
  const int gpus = std::min(4, backend(DeviceKind::cuda).device_count());
  return gpus > 1 ? first_devices(DeviceKind::cuda, gpus)
                  : std::vector<Device>(std::begin(kLogical), std::end(kLogical));
}

Tensor counted(std::int64_t n, float first) {
  const Tensor tensor = empty({n});
  std::iota(tensor.span<float>().begin(), tensor.span<float>().end(), first);
  return tensor;
}

Tensor filled(std::int64_t n, Device device, float value) {
  const Tensor tensor = empty({n}, DType::f32, device);
  backend(tensor).fill(tensor, value);
  return tensor;
}

bool equal(const Tensor& a, const Tensor& b) {
  const Tensor left = on_cpu(a), right = on_cpu(b);
  return std::equal(left.span<float>().begin(), left.span<float>().end(), right.span<float>().begin(),
                    right.span<float>().end());
}

}  // namespace

DUET_CUDA_TEST("cuda: tensors of every size go to a GPU and come back", "[core]") {
  for (const std::int64_t n : {0, 1, 127, 128, 4096, 100'003, 3'000'001}) {
    CAPTURE(n);
    const Tensor host = counted(n, 1);
    const Tensor there = host.to(kGpu);
    CHECK(there.device() == kGpu);
    CHECK(equal(there, host));
    CHECK(equal(there.clone(), host));
    CHECK(all_are(zeros({n}, DType::f32, kGpu), 0));
  }
  const Tensor bytes = zeros({1000}, DType::u8, kGpu);
  CHECK(bytes_of(bytes) == std::vector<std::uint8_t>(1000, 0));
}

DUET_CUDA_TEST("cuda: the host may use its memory again as soon as a copy from it returns", "[core]") {
  const Tensor host = empty({200'000});
  std::vector<Tensor> copies;
  for (int i = 0; i < 20; ++i) {  // more than there are pieces of pinned memory
    std::fill(host.span<float>().begin(), host.span<float>().end(), static_cast<float>(i));
    copies.push_back(host.to(kGpu));
  }
  for (int i = 0; i < 20; ++i) CHECK(all_are(copies[static_cast<std::size_t>(i)], static_cast<float>(i)));
}

DUET_CUDA_TEST("cuda: a copy between devices stands in the order of both", "[core]") {
  const std::vector<Device> devices = some_devices();
  for (const Device from : devices)
    for (const Device to : devices) {
      if (from == to) continue;
      CAPTURE(from.str(), to.str());
      const Tensor source = filled(5000, from, 1);
      const Tensor there = filled(5000, to, 7);
      backend(source).scale(source, 3);  // before the copy reads it
      backend(there).scale(there, 2);    // before the copy overwrites it
      copy(source, there);
      backend(source).fill(source, -1);         // after the copy has read it
      backend(there).add(there, there, there);  // after the copy has written it
      const Tensor back = there.to(from);
      backend(there).fill(there, -2);
      CHECK(all_are(back, 6));
      CHECK(all_are(source, -1));
    }
}

DUET_CUDA_TEST("cuda: rows and columns are cut and joined", "[core]") {
  const Tensor whole = counted(6 * 5, 0).reshape({6, 5}).to(kGpu);
  const Tensor piece = empty({6, 2}, DType::f32, kGpu);
  backend(whole).copy_2d(piece.raw(), 8, whole.data<float>() + 1, 20, 8, 6, kGpu);
  const Tensor host = on_cpu(piece);
  for (int row = 0; row < 6; ++row) {
    CHECK(host.data<float>()[2 * row] == static_cast<float>(5 * row + 1));
    CHECK(host.data<float>()[2 * row + 1] == static_cast<float>(5 * row + 2));
  }
  CHECK(equal(whole.rows(2, 4).reshape({10}), counted(10, 10)));
}

DUET_CUDA_TEST("cuda: logical devices share a GPU, but are devices of their own", "[core]") {
  Backend& cuda = backend(DeviceKind::cuda);
  CHECK(cuda.stream(kLogical[0]) != cuda.stream(kLogical[1]));
  CHECK(cuda.stream(kLogical[0]) != cuda.stream(kGpu));
  CHECK(cuda.describe(kLogical[1]).rfind("logical device 1 on ", 0) == 0);
  CHECK_FALSE(cuda.shares_memory());
  const Tensor a = filled(100, kLogical[0], 1), b = filled(100, kLogical[1], 2);
  CHECK_THROWS_WITH(cuda.add(a, b, a), "add: a is on cuda:0.0, b on cuda:0.1");
  CHECK_THROWS_AS(a.alias(kLogical[1]), DeviceError);
  CHECK(all_are(b.to(kLogical[0]), 2));
}

DUET_CUDA_TEST("cuda: gathered images are the CPU's bits", "[core]") {
  const Tensor rows = empty({40, 3, 7}, DType::u8);
  for (std::int64_t i = 0; i < rows.count(); ++i) rows.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 37 + 11);
  const Tensor indices = label_tensor({39, 0, 7, 7, 20});
  const Tensor expected = empty({5, 3, 7}), y = empty({5, 3, 7}, DType::f32, kGpu);
  backend(expected).gather_images(rows, {}, indices, 0.1307f, 0.3081f, expected, {});
  backend(y).gather_images(rows.to(kGpu), {}, indices.to(kGpu), 0.1307f, 0.3081f, y, {});
  CHECK(equal(y, expected));
}
