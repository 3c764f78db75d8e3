#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Trains three steps and returns all parameters.
std::vector<float> train(nn::Module& model, nn::Module& net, std::int64_t rows) {
  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  for (std::int64_t step = 0; step < 3; ++step) {
    const Batch batch = make_batch(rows, step);
    opt.zero_grad();
    const Variable loss = ops::nll_loss(net(batch.images), batch.labels);
    loss.backward();
    opt.step();
  }
  const auto values = model.parameters().values().span<float>();
  return {values.begin(), values.end()};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Fails in the replicas that the first element of their rows names.
struct Failing : nn::Module {
  Variable forward(nn::Context&, const Variable& x) const override {
    if (*x.value().data<float>() >= 2) throw DataError(concat("row ", *x.value().data<float>(), " is bad"));
    return x;
  }
  using Module::forward;
  std::string type_name() const override { return "Failing"; }
};

}  // namespace

TEST_CASE("parameters are bit-equal on 1, 2, 4 and 8 devices, dropout on") {
  for (const std::int64_t rows : {32, 20, 5}) {
    nn::SimpleCNN single(7);
    const std::vector<float> expected = train(single, single, rows);
    for (const int devices : {1, 2, 4, 8})
      for (const dp::Refresh refresh : {dp::Refresh::persistent, dp::Refresh::per_forward}) {
        CAPTURE(rows, devices);
        nn::SimpleCNN model(7);
        dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, devices), .replicas = refresh});
        CHECK(same_bits(train(model, net, rows), expected));
      }
  }
}

TEST_CASE("work on the flat buffers is divided among the replicas' threads, while there are any") {
  nn::SimpleCNN model(7);
  std::atomic<int> calls = 0, too_many = 0;
  const auto threads_of = [&] {
    std::vector<std::thread::id> ids(4);
    calls = 0;
    model.parameters().residence().divide([&](int share, int shares) {
      too_many += shares > 4;
      ids[static_cast<std::size_t>(share)] = std::this_thread::get_id();
      ++calls;
    });
    CHECK(too_many == 0);
    return std::set<std::thread::id>(ids.begin(), ids.begin() + calls);
  };
  CHECK(threads_of().size() == 1);
  {
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 4)});
    const Batch batch = make_batch(8, 0);
    ops::nll_loss(net(batch.images), batch.labels).backward();
    CHECK(threads_of().size() == 4);
  }
  CHECK(threads_of().size() == 1);
}

TEST_CASE("the lowest failing replica is reported, with its device and type") {
  Failing model;
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 4)});
  const Tensor x = from_values<float>({4, 1}, {0, 1, 2, 3});
  CHECK_THROWS_AS(net(x), DataError);
  CHECK_THROWS_WITH(net(x), "replica 2 on device cpu:2: row 2 is bad");
  CHECK(net(from_values<float>({4, 1}, {0, 1, 0, 1})).shape() == Shape{4, 1});
}

TEST_CASE("a part of a model can run in parallel") {
  struct Whole : nn::Module {
    Whole(int devices) : parallel(middle, {.devices = first_devices(DeviceKind::cpu, devices)}) {
      register_module("first", first);
      if (devices > 0) register_module("middle", parallel);
      register_module("last", last);
    }
    Variable forward(nn::Context& context, const Variable& x) const override {
      const Variable y = ops::relu(first.forward(context, x));
      return last.forward(context, ops::relu(parallel.forward(context, y)));
    }
    using Module::forward;
    std::string type_name() const override { return "Whole"; }
    nn::Linear first{6, 8}, middle{8, 8}, last{8, 2};
    dp::DataParallel parallel;
  };
  std::vector<std::vector<float>> results;
  for (const int devices : {1, 2, 4}) {
    Whole model(devices);
    model.initialise(std::uint64_t{3});
    CHECK(model.parameters().slots()[2].name == "middle.module.weight");
    optim::SGD opt(model, {.lr = 0.1f});
    for (std::int64_t step = 0; step < 3; ++step) {
      Mt19937 generator(static_cast<std::uint64_t>(step));
      Tensor x = empty({16, 6}), target = empty({16, 2});
      generator.uniform(x.span<float>(), -1.0, 1.0);
      generator.uniform(target.span<float>(), -1.0, 1.0);
      x.set_stamp({step, 0, 16});
      opt.zero_grad();
      ops::mse_loss(model(x), target).backward();
      opt.step();
    }
    const auto values = model.parameters().values().span<float>();
    results.emplace_back(values.begin(), values.end());
  }
  CHECK(same_bits(results[0], results[1]));
  CHECK(same_bits(results[0], results[2]));
}

TEST_CASE("the text, names and values of the wrapped model") {
  nn::TutorialLinear model(5, 2);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
  CHECK(
      net.str() ==
      "DataParallel(\n  (module): TutorialLinear(\n    (fc): Linear(in_features=5, out_features=2, bias=True)\n  )\n)");
  CHECK(net.state_dict()[0].name == "module.fc.weight");
  CHECK(model.state_dict()[0].name == "fc.weight");
  CHECK(net.state_dict()[0].tensor.same_memory(model.state_dict()[0].tensor));
  CHECK(&net.parameters() == &model.parameters());
}

TEST_CASE("batch norm's running statistics follow replica 0") {
  nn::BatchNorm2d model(2);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
  Tensor x = zeros({4, 2, 2, 2});
  const Tensor ones = x.rows(0, 2);
  for (float& value : ones.span<float>()) value = 1;
  x.rows(0, 1).data<float>()[0] = 5;
  net(x);
  const float mean = model.state_dict()[2].tensor.data<float>()[0];
  CHECK(mean == duet_test::Approx(0.1f * (5 + 7) / 8));
}

TEST_CASE("no gradient is recorded under NoGrad") {
  nn::TutorialLinear model(5, 2);
  dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, 2)});
  const NoGrad guard;
  CHECK_FALSE(net(zeros({4, 5})).requires_grad());
}

TEST_CASE("devices are checked") {
  nn::TutorialLinear model(5, 2);
  CHECK_THROWS_AS(dp::DataParallel(model, {.devices = {Device{}, Device{}}}), UsageError);
  CHECK_THROWS_AS(dp::DataParallel(model, {.devices = {Device{DeviceKind::cuda, 0}}}), DeviceError);
}
