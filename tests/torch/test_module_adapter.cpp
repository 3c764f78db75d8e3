// Modules of LibTorch as networks of duet's.
#include <sched.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dp/data_parallel.h"
#include "lib/base/threads.h"
#include "lib/device.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"
#include "torch/device_threads.h"
#include "torch/module_adapter.h"

// Not all of duet: its namespace torch would be as good as LibTorch's.
using duet::DeviceKind;
using duet::DType;
using duet::Shape;
using duet::Tensor;
using duet::Variable;
using duet::zeros;
using duet_test::ContainsSubstring;
namespace nn = duet::nn;
namespace ops = duet::ops;

namespace {

constexpr std::int64_t kRows = 16, kIn = 6, kClasses = 5;

struct NetImpl : ::torch::nn::Module {
  ::torch::nn::Linear first{register_module("first", ::torch::nn::Linear(kIn, 7))};
  ::torch::nn::LayerNorm norm{register_module("norm", ::torch::nn::LayerNorm(std::vector<std::int64_t>{7}))};
  ::torch::nn::Linear unused{register_module("unused", ::torch::nn::Linear(2, 2))};
  ::torch::nn::Linear last{register_module("last", ::torch::nn::Linear(7, kClasses))};
  at::Tensor frozen{register_parameter("frozen", ::torch::full({7}, 0.5), false)};
  at::Tensor calls{register_buffer("calls", ::torch::zeros({}, at::kLong))};
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) calls += 1;
    return last(::torch::tanh(norm(first(x))) * frozen);
  }
};
TORCH_MODULE(Net);

std::unique_ptr<duet::torch::ModuleAdapter> net(bool equal_bits = false) {
  return duet::torch::adapt([] { return Net(); }, 3, {.equal_bits = equal_bits});
}

/// Samples and labels of one step, the same as LibTorch's.
struct Batch {
  explicit Batch(int step) {
    for (std::int64_t i = 0; i < samples.numel(); ++i)
      samples.data_ptr<float>()[i] = static_cast<float>((i * 37 + step * 11) % 19) / 9 - 1;
    for (std::int64_t i = 0; i < kRows; ++i) labels[i] = (i + step) % kClasses;
  }
  /// Stamped, as a loader does it: its rows are those of a whole batch.
  Tensor x() const {
    Tensor rows = duet::borrow(samples.data_ptr(), {kRows, kIn}, DType::f32);
    rows.set_stamp({.step = 1, .first = 0, .global = kRows});
    return rows;
  }
  Tensor y() const { return duet::borrow(labels.data_ptr(), {kRows}, DType::i64); }
  at::Tensor samples = ::torch::empty({kRows, kIn}), labels = ::torch::empty({kRows}, at::kLong);
};

template <class Forward>
void train(nn::Module& model, Forward&& forward) {
  duet::optim::SGD sgd(model, {.lr = 0.1F, .momentum = 0.9F});
  for (int step = 0; step < 5; ++step) {
    const Batch batch(step);
    sgd.zero_grad();
    ops::cross_entropy(forward(batch.x()), batch.y()).backward();
    sgd.step();
  }
}

std::vector<float> values(nn::Module& model) {
  const auto all = model.parameters().values().span<float>();
  return {all.begin(), all.end()};
}

}  // namespace

TEST_CASE("a module of LibTorch trains as LibTorch trains it") {
  const auto model = net();
  train(*model, [&](const Tensor& x) { return (*model)(x); });

  ::torch::manual_seed(3);
  Net expected;
  ::torch::optim::SGD sgd(expected->parameters(), ::torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    const Batch batch(step);
    sgd.zero_grad();
    ::torch::nn::functional::cross_entropy(expected(batch.samples), batch.labels).backward();
    sgd.step();
  }
  const auto state = model->state_dict();
  std::vector<std::string> names;
  for (const duet::NamedTensor& entry : state) {
    names.push_back(entry.name);
    const at::Tensor* found = expected->named_parameters().find(entry.name);
    if (found == nullptr) found = expected->named_buffers().find(entry.name);
    REQUIRE(found != nullptr);
    if (entry.tensor.dtype() == DType::i64) {
      CHECK(entry.tensor.data<std::int64_t>()[0] == 5);
      continue;
    }
    const at::Tensor ours = at::from_blob(entry.tensor.raw(), found->sizes());
    CHECK(::torch::allclose(ours, *found, 1e-6, 1e-6));
  }
  CHECK(names.size() == 10);
  CHECK(model->str().starts_with("Net(\n  (first): Linear()"));
  CHECK_FALSE(model->sums_by_blocks());
}

TEST_CASE("what duet writes between the forward and the backward of a module of LibTorch is an error") {
  const auto model = net();
  duet::optim::SGD sgd(*model, {.lr = 0.1F});
  const Batch batch(1);
  const auto loss = [&] { return ops::cross_entropy((*model)(batch.x()), batch.y()); };
  loss().backward();
  const Variable late = loss();
  sgd.step();
  CHECK_THROWS_WITH(late.backward(), ContainsSubstring("backward of LibTorch: its parameter f32[7, 6] (first.weight)"));
  const Variable late_input = loss();
  batch.samples.fill_(0.25F);
  CHECK_THROWS_WITH(late_input.backward(), ContainsSubstring("its input f32[16, 6] was modified"));
}

TEST_CASE("with equal_bits a module of LibTorch ends with the same bits on 1, 2, 4 and 8 devices") {
  ::torch::jit::Module script("Net");
  ::torch::manual_seed(3);
  script.register_parameter("first", ::torch::randn({kIn, 16}).requires_grad_(), false);
  script.register_parameter("shift", ::torch::randn({16}).requires_grad_(), false);
  script.register_parameter("last", ::torch::randn({16, kClasses}).requires_grad_(), false);
  script.define(
      "def forward(self, x):\n"
      "    hidden = torch.layer_norm(torch.tanh(x @ self.first + self.shift), [16])\n"
      "    return torch.sigmoid(hidden) * hidden @ self.last\n");
  const auto normed = [] {
    return ::torch::nn::Sequential(::torch::nn::Linear(kIn, 7), ::torch::nn::BatchNorm1d(7), ::torch::nn::Tanh(),
                                   ::torch::nn::Linear(7, kClasses));
  };
  const std::string kind = GENERATE("class", "batch norm", "script");
  const auto make = [&] {
    if (kind == "batch norm") return duet::torch::adapt(normed, 3, {.equal_bits = true});
    return kind == "script" ? duet::torch::adapt(script, {.equal_bits = true}) : net(true);
  };
  const auto single = make();
  CHECK(single->sums_by_blocks());
  train(*single, [&](const Tensor& x) { return (*single)(x); });
  for (const int devices : {2, 4, 8}) {
    const auto model = make();
    duet::dp::DataParallel parallel(*model, {.devices = duet::first_devices(DeviceKind::cpu, devices)});
    train(*model, [&](const Tensor& x) { return parallel(x); });
    CHECK(values(*model) == values(*single));
  }
}

TEST_CASE("with equal_bits a batch of fewer rows than blocks has the same bits on 1, 2, 4 and 8 devices") {
  const auto step = [](int devices) {
    const auto model = net(true);
    duet::dp::DataParallel parallel(*model, {.devices = duet::first_devices(DeviceKind::cpu, devices)});
    const Batch batch(0);
    Tensor x = batch.x().rows(0, 3);
    x.set_stamp({.step = 1, .first = 0, .global = 3});
    ops::cross_entropy(parallel(x), batch.y().rows(0, 3)).backward();
    const auto all = model->parameters().gradients().span<float>();
    return std::vector<float>(all.begin(), all.end());
  };
  const auto single = step(1);
  for (const int devices : {2, 4, 8}) CHECK(step(devices) == single);
}

TEST_CASE("a parameter that a LibTorch module did not use has no gradient, whatever an earlier step left") {
  struct Branches : ::torch::nn::Module {
    ::torch::nn::Linear always{register_module("always", ::torch::nn::Linear(kIn, kClasses))};
    ::torch::nn::Linear branch{register_module("branch", ::torch::nn::Linear(kIn, kClasses))};
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = always(x);
      return x.size(0) > 2 ? y + branch(x) : y;
    }
  };
  const bool equal_bits = GENERATE(false, true);
  const auto model = duet::torch::adapt([] { return std::make_shared<Branches>(); }, 3, {.equal_bits = equal_bits});
  const Batch batch(0);
  const auto gradients = [&](std::int64_t rows) {
    model->zero_grad();
    Tensor x = batch.x().rows(0, rows);
    ops::cross_entropy((*model)(x), batch.y().rows(0, rows)).backward();
    std::vector<bool> there;
    for (int slot = 0; slot < 4; ++slot) there.push_back(model->parameters().has_gradient(slot));
    return there;
  };
  if (!equal_bits) CHECK(gradients(kRows) == std::vector<bool>{true, true, true, true});  // blocks have few rows
  CHECK(gradients(2) == std::vector<bool>{true, true, false, false});
}

TEST_CASE("dropout of a LibTorch module depends on seed, step and rows alone") {
  const auto dropped = [] { return ::torch::nn::Sequential(::torch::nn::Linear(kIn, 7), ::torch::nn::Dropout(0.5)); };
  const Batch batch(0);
  const auto outputs = [&](std::uint64_t seed, std::int64_t step, std::int64_t begin, std::int64_t end) {
    const auto model = duet::torch::adapt(dropped, 3, {.equal_bits = true});
    model->context().seed = seed;
    Tensor x = batch.x();
    x.set_stamp({.step = step, .first = 0, .global = kRows});
    const Variable y = (*model)(x.rows(begin, end));
    return std::vector<float>(y.value().span<float>().begin(), y.value().span<float>().end());
  };
  const auto whole = outputs(5, 1, 0, kRows);
  CHECK(outputs(5, 1, 0, kRows) == whole);
  CHECK(outputs(6, 1, 0, kRows) != whole);
  CHECK(outputs(5, 2, 0, kRows) != whole);
  std::vector<float> halves = outputs(5, 1, 0, kRows / 2);
  const std::vector<float> second = outputs(5, 1, kRows / 2, kRows);
  halves.insert(halves.end(), second.begin(), second.end());
  CHECK(halves == whole);
  // A batch that runs twice, as for R-Drop.
  const auto model = duet::torch::adapt(dropped, 3);
  Tensor x = batch.x();
  const auto next = [&](std::int64_t step) {
    x.set_stamp({.step = step, .first = 0, .global = kRows});
    const Variable y = (*model)(x);
    return std::vector<float>(y.value().span<float>().begin(), y.value().span<float>().end());
  };
  const auto first = next(1);
  CHECK(next(1) != first);
  CHECK(next(2) != first);
  CHECK(next(1) == first);
}

TEST_CASE("LibTorch's threads of a pinned device run on the device's cores") {
  if (duet::own_cores() < 2) return;
  const auto threads = [] {
    std::set<int> numbers;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
      numbers.insert(std::stoi(entry.path().filename()));
    return numbers;
  };
  int started = 0, own = 0, least = 1 << 20;
  std::thread([&] {  // LibTorch's threads belong to the one that started them
    duet::pin_current_thread(0);
    at::set_num_threads(2);
    const std::set<int> before = threads();
    duet::torch::start_team({}, 2);
    cpu_set_t cores;
    for (const int thread : threads()) {
      if (before.contains(thread) || ::sched_getaffinity(thread, sizeof cores, &cores) != 0) continue;
      ++started;
      least = std::min(least, CPU_COUNT(&cores));
    }
    own = ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
    at::set_num_threads(1);
  })
      .join();
  CHECK(own == 1);
  CHECK(started >= 1);
  CHECK(least == 2);
}

TEST_CASE("the gradient of a LibTorch module's input goes on along duet's tape") {
  const auto model = net();
  const Batch batch(0);
  const Variable x(batch.x(), true);
  ops::cross_entropy((*model)(x), batch.y()).backward();
  ::torch::manual_seed(3);
  Net expected;
  const at::Tensor input = batch.samples.clone().requires_grad_();
  ::torch::nn::functional::cross_entropy(expected(input), batch.labels).backward();
  CHECK(::torch::allclose(at::from_blob(x.grad().raw(), {kRows, kIn}), input.grad(), 1e-6, 1e-7));
}

TEST_CASE("backward of a LibTorch module reads its input where that was a temporary tensor") {
  // A convolution's blocked result becomes a plain copy for LibTorch, which backward reads again.
  nn::Sequential model;
  model.add<nn::Conv2d>(16, 16, 3);
  model.append(duet::torch::adapt([] { return ::torch::nn::Conv2d(16, 4, 6); }, 3));
  model.add<nn::Flatten>();
  Tensor x = duet::empty({2, 16, 8, 8});
  for (std::int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = static_cast<float>(i * 37 % 19) / 9 - 1;
  const Tensor labels = zeros({2}, DType::i64);
  const auto gradient = [&](bool reused) {
    model.zero_grad();
    const Variable loss = ops::cross_entropy(model(x), labels);
    std::vector<Tensor> others;
    for (int i = 0; reused && i < 8; ++i) {
      others.push_back(duet::empty({2, 16, 6, 6}));
      std::ranges::fill(others.back().span<float>(), 1e9F);
    }
    loss.backward();
    const auto all = model.parameters().gradients().span<float>();
    return std::vector<float>(all.begin(), all.end());
  };
  const bool same = gradient(true) == gradient(false);
  CHECK(same);
}

TEST_CASE("what a LibTorch module cannot take is an error with its text") {
  const auto model = net();
  CHECK_THROWS_WITH((*model)(zeros({2, kIn + 1})), ContainsSubstring("mat1 and mat2 shapes cannot be multiplied"));
  const auto halves = [] {
    return duet::torch::adapt([] {
      Net made;
      made->to(at::kHalf);
      return made;
    });
  };
  CHECK_THROWS_WITH(halves(),
                    ContainsSubstring("weight of Linear is [7, 6] Half: parameters of duet's models are Float"));
}

TEST_CASE("networks of one TorchScript module have values of their own") {
  ::torch::jit::Module script("Net");
  script.register_parameter("weight", ::torch::full({kIn, kClasses}, 0.25).requires_grad_(), false);
  script.register_buffer("shift", ::torch::zeros({kClasses}));
  script.define("def forward(self, x):\n    return x.matmul(self.weight) + self.shift\n");
  const auto model = duet::torch::adapt(script), other = duet::torch::adapt(script);
  train(*model, [&](const Tensor& x) { return (*model)(x); });
  const auto own = other->parameters().value(0).span<float>();
  CHECK(std::all_of(own.begin(), own.end(), [](float value) { return value == 0.25F; }));
  CHECK(script.attr("weight").toTensor().eq(0.25).all().item<bool>());
  CHECK((*other)(Batch(0).x()).value().data<float>()[0] != (*model)(Batch(0).x()).value().data<float>()[0]);
}
