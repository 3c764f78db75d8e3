// DataParallel over GPUs, or over logical devices of one; models and checkpoints on GPUs.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/io/safetensors.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/cuda/gpu.h"
#include "tests/cuda/small_cnn.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"
#include "tests/support/difference.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet_test;

namespace {

struct Trained {
  Array values{Shape{0}};
  float loss = 0;
};

/// Two steps, dropout on.
Trained train(nn::Module& model, nn::Module& net, std::int64_t rows) {
  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  Trained trained;
  for (std::int64_t step = 0; step < 2; ++step) {
    const Batch batch = make_batch(rows, step).to(model.parameters().device());
    opt.zero_grad();
    const Variable loss = ops::nll_loss(net(batch.images), batch.labels);
    loss.backward();
    opt.step();
    trained.loss = loss.item();
  }
  trained.values = as_array(model.parameters().values());
  return trained;
}

Trained train_single(Device device, std::int64_t rows) {
  nn::SimpleCNN model(7, kSmall);
  model.to(device);
  return train(model, model, rows);
}

Trained train_parallel(const std::vector<Device>& devices, std::int64_t rows, dp::Refresh refresh) {
  nn::SimpleCNN model(7, kSmall);
  model.to(devices[0]);
  dp::DataParallel net(model, {.devices = devices, .replicas = refresh});
  return train(model, net, rows);
}

double difference(const Array& a, const Array& b) { return relative_difference(a.values, b.values); }

}  // namespace

DUET_CUDA_TEST("cuda: DataParallel over 2, 3 and 4 devices learns what one device does", "[dp]") {
  const std::int64_t rows = 7;
  const Trained single = train_single(kGpu, rows), cpu = train_single({}, rows);
  CHECK(difference(single.values, cpu.values) < 1e-5);
  for (const int count : {2, 3, 4}) {
    std::vector<std::vector<Device>> choices = {logical_devices(count)};
    if (backend(DeviceKind::cuda).device_count() >= count) choices.push_back(first_devices(DeviceKind::cuda, count));
    for (const std::vector<Device>& devices : choices)
      for (const dp::Refresh refresh : {dp::Refresh::persistent, dp::Refresh::per_forward}) {
        CAPTURE(count, devices[1].str(), refresh == dp::Refresh::persistent);
        const Trained parallel = train_parallel(devices, rows, refresh);
        CHECK(difference(parallel.values, single.values) < 1e-5);
        CHECK(std::abs(parallel.loss - single.loss) < 1e-5 * std::abs(single.loss));
      }
  }
}

DUET_CUDA_TEST("cuda: losses computed in the replicas are the mean of the whole batch", "[dp]") {
  const Batch batch = make_batch(10, 0);  // on the host: scattered from there
  nn::SimpleCNN single(7, kSmall), model(7, kSmall);
  const Variable expected = ops::nll_loss(single(batch.images), batch.labels);
  expected.backward();
  const std::vector<Device> devices = logical_devices(3);
  model.to(devices[0]);
  dp::DataParallel net(model, {.devices = devices, .loss = [](const Variable& output, const Tensor& target) {
                                 return ops::nll_loss(output, target);
                               }});
  const Variable loss =
      net(nn::Value(nn::List{nn::Value(Variable(batch.images)), nn::Value(Variable(batch.labels))})).variable();
  CHECK(loss.device() == devices[0]);
  CHECK(std::abs(loss.item() - expected.item()) < 1e-5f * std::abs(expected.item()));
  loss.backward();
  CHECK(difference(as_array(model.parameters().gradients()), as_array(single.parameters().gradients())) < 1e-5);
}

DUET_CUDA_TEST("cuda: a failure in a replica names its device", "[dp]") {
  nn::SimpleCNN model(7, kSmall);
  model.to({DeviceKind::cuda, 0, 0});
  dp::DataParallel net(model, {.devices = logical_devices(2)});
  CHECK_THROWS_WITH(net(zeros({4, 3, 28, 28}, DType::f32, model.parameters().device())),
                    ContainsSubstring("replica 0 on device cuda:0.0: conv"));
  CHECK_THROWS_AS(net(zeros({4, 3, 28, 28}, DType::f32, model.parameters().device())), ShapeError);
}

DUET_CUDA_TEST("cuda: a model keeps its values when it moves", "[core]") {
  nn::SimpleCNN model(3, kSmall);
  const Array before = as_array(model.parameters().values());
  model.to(kGpu);
  CHECK(model.parameters().device() == kGpu);
  CHECK(as_array(model.parameters().values()).values == before.values);
}

DUET_CUDA_TEST("cuda: checkpoints of models on a GPU", "[core]") {
  const Scratch scratch;
  const std::string path = scratch.path("model.safetensors");
  nn::SimpleCNN model(3, kSmall), other(4, kSmall);
  model.to(kGpu);
  save_tensors(path, model.state_dict());
  other.to({DeviceKind::cuda, 0, 1});
  other.load_state_dict(load_tensors(path).tensors);
  CHECK(as_array(other.parameters().values()).values == as_array(model.parameters().values()).values);
}
