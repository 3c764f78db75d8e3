// Batches made on the GPU from a data set that lies there.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet::data;
using namespace duet_test;

namespace {

ImageDataset some_images(std::int64_t count, std::int64_t side) {
  const Tensor images = empty({count, 1, side, side}, DType::u8), labels = empty({count}, DType::i64);
  Mt19937 generator(3);
  for (std::uint8_t& byte : images.span<std::uint8_t>()) byte = static_cast<std::uint8_t>(generator.randint(0, 256));
  for (std::int64_t& label : labels.span<std::int64_t>()) label = generator.randint(0, 10);
  return {images, labels, kFashionMnistPixels};
}

std::unique_ptr<BatchSampler> shuffled(std::int64_t count, std::int64_t batch) {
  return std::make_unique<samplers::BlockedBatches>(std::make_unique<samplers::RandomSampler>(count, 5),
                                                    samplers::BlockedOptions{.global_batch = batch});
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  const Tensor x = on_cpu(a), y = on_cpu(b);
  const auto* const p = static_cast<const std::byte*>(x.raw());
  return x.shape() == y.shape() && std::equal(p, p + x.bytes(), static_cast<const std::byte*>(y.raw()));
}

}  // namespace

DUET_CUDA_TEST("cuda: a resident data set gives the host's batches, bit for bit, and moves only their numbers") {
  const ImageDataset host = some_images(23, 5);
  const ResidentImages resident(host, kGpu);
  CHECK(resident.size() == 23);
  CHECK(resident.sample_shape() == host.sample_shape());
  Loader expected(host, shuffled(23, 8)), loader(resident, shuffled(23, 8));
  for (int epoch = 0; epoch < 2; ++epoch) {
    const std::uint64_t before = backend(DeviceKind::cuda).use(kGpu).moved;
    std::vector<Batch> batches;
    for (const Batch& batch : loader) batches.push_back(batch);  // all enqueued before any is read
    CHECK(backend(DeviceKind::cuda).use(kGpu).moved - before == 23 * sizeof(std::int64_t));
    auto batch = batches.begin();
    for (auto& [images, labels] : expected) {
      REQUIRE(batch != batches.end());
      CHECK(batch->images.device() == kGpu);
      CHECK(same_bytes(batch->images, images));
      CHECK(same_bytes(batch->labels, labels));
      CHECK(batch->images.stamp() == images.stamp());
      CHECK(batch->labels.stamp() == labels.stamp());
      ++batch;
    }
    CHECK(batch == batches.end());
  }
}

DUET_CUDA_TEST("cuda: a deferred loader makes the same batches on request, from numbers that stay in place") {
  const ImageDataset host = some_images(11, 5);
  const ResidentImages resident(host, kGpu);
  Loader expected(host, shuffled(11, 4)), loader(resident, shuffled(11, 4), {.deferred = true});
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto at = loader.begin();
    for (auto& [images, labels] : expected) {
      CHECK_FALSE(at->images.defined());
      CHECK(loader.rows() == images.size(0));
      CHECK(loader.stamp() == images.stamp());
      CHECK_THROWS_WITH(loader.batch(), "batch 0 ahead, but 0 steps are staged");
      const std::uint64_t moved = backend(DeviceKind::cuda).use(kGpu).moved;
      loader.stage(1);
      CHECK(backend(DeviceKind::cuda).use(kGpu).moved - moved ==
            sizeof(std::int64_t) * static_cast<std::size_t>(images.size(0)));
      const Batch batch = loader.batch();
      CHECK(batch.images.stamp() == images.stamp());
      CHECK(batch.labels.stamp() == images.stamp());
      CHECK(same_bytes(batch.images, images));
      CHECK(same_bytes(batch.labels, labels));
      ++at;
    }
    CHECK(at == loader.end());
  }
  CHECK_THROWS_WITH(Loader(host, shuffled(11, 4), {.deferred = true}),
                    "a deferred loader reads a data set that lies on a device, as a whole");
}

DUET_CUDA_TEST("cuda: a part of a resident data set, no samples, and wrong numbers") {
  const ImageDataset host = some_images(300, 2);
  const ResidentImages resident(host, kGpu);
  std::vector<std::int64_t> order(290);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(299 - i);
  const Subset part(resident, order), host_part(host, order);
  CHECK(part.device() == kGpu);
  for (const std::int64_t rows : {std::int64_t{290}, std::int64_t{0}}) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i * 7 % 290);
    const Tensor x = empty({rows, 1, 2, 2}), labels = empty({rows}, DType::i64);
    const Tensor y = empty(x.shape(), DType::f32, kGpu), picked = empty(labels.shape(), DType::i64, kGpu);
    host_part.fetch(numbers, x, labels);
    part.fetch(numbers, y, picked);
    CHECK(same_bytes(y, x));
    CHECK(same_bytes(picked, labels));
  }
  const Tensor y = empty({1, 1, 2, 2}, DType::f32, kGpu), label = empty({1}, DType::i64, kGpu);
  CHECK_THROWS_WITH(resident.fetch(std::vector<std::int64_t>{300}, y, label), ContainsSubstring("sample 300 asked of"));
  CHECK_THROWS_WITH(Loader(resident, shuffled(300, 8), {.workers = 1}),
                    ContainsSubstring("the data set lies on cuda:0, so the loader takes no workers, got 1"));
}

DUET_CUDA_TEST("cuda: replicas get their pieces of a resident batch") {
  const ImageDataset host = some_images(6, 28);
  const Device first = {DeviceKind::cuda, 0, 0}, second = {DeviceKind::cuda, 0, 1};
  const ResidentImages resident(host, first);
  nn::SimpleCNN model(7);
  model.to(first);
  dp::DataParallel net(model, {.devices = {first, second}});
  const auto gradients_of = [&](const Dataset& set) {
    Loader loader(set, shuffled(6, 6));
    for (auto& [images, labels] : loader) {
      model.zero_grad();
      ops::nll_loss(net(images), labels.to(first)).backward();
    }
    return model.parameters().gradients().clone();
  };
  CHECK(same_bytes(gradients_of(resident), gradients_of(host)));
}
