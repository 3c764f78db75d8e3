// What is written between a forward and its backward is an error; what is only read there, or written where backward
// reads nothing, is none.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"
#include "lib/nn/layers.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/support/batch.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"
#include "tests/support/sync_net.h"

using namespace duet;
using namespace duet::nn;
using namespace duet_test;

namespace {

struct Training {
  explicit Training(Module& model_, Module& net_) : model(model_), net(net_) {}
  explicit Training(Module& model_) : Training(model_, model_) {}
  Variable loss() { return ops::nll_loss(net(batch.images), batch.labels); }
  /// What a backward throws when `between` runs since its forward; the model has gradients then.
  std::string error_after(const std::function<void()>& between) {
    opt.zero_grad();
    loss().backward();
    opt.zero_grad();
    loss().backward();
    const Variable late = loss();
    between();
    opt.zero_grad();
    std::string text = error_of<UsageError>([&] { late.backward(); });
    opt.zero_grad();
    return text;
  }
  Module& model;
  Module& net;
  optim::SGD opt{model, {.lr = 0.1f}};
  duet_test::Batch batch = make_batch(8, 1);
};

NamedTensors copy_of(Module& model) {
  NamedTensors state = model.state_dict();
  for (NamedTensor& one : state) one.tensor = one.tensor.clone();
  return state;
}

template <class T>
void fill(const Tensor& x, T value) {
  std::ranges::fill(x.span<T>(), value);
}

void check_refused(Training& run) {
  const auto refused = ContainsSubstring("was modified after the forward of this backward");
  CHECK_THAT(run.error_after([&] { run.opt.step(); }),
             refused && ContainsSubstring(".weight)") && ContainsSubstring("version"));
  const NamedTensors own = run.model.state_dict(), others = copy_of(run.model);
  CHECK_THAT(run.error_after([&] { run.model.load_state_dict(others); }), refused);
  CHECK_THAT(run.error_after([&] { copy(zeros(own[0].tensor.shape()), own[0].tensor); }),
             refused && ContainsSubstring(own[0].name));
  run.model.load_state_dict(others);
  CHECK_THAT(run.error_after([&] { run.model.initialise(std::uint64_t{8}); }), refused);
  CHECK_THAT(run.error_after([&] { fill(own[0].tensor, 0.5f); }), refused && ContainsSubstring(own[0].name));
  CHECK_THAT(run.error_after([&] { fill(run.model.parameters().values(), 0.5f); }), refused);
  run.model.initialise(std::uint64_t{8});
  CHECK_THAT(run.error_after([&] { fill(run.batch.images, 0.25f); }), refused && ContainsSubstring("1, 28, 28]"));
  CHECK_THAT(run.error_after([&] { copy(make_batch(8, 2).images, run.batch.images); }), refused);
  CHECK_THAT(run.error_after([&] { fill(run.batch.labels, std::int64_t{1}); }), refused && ContainsSubstring("i64[8]"));
}

}  // namespace

TEST_CASE("weights, inputs and labels that were written since the forward are an error in backward") {
  SimpleCNN model(1);
  model.eval();
  Training run(model);
  check_refused(run);
}

TEST_CASE("so they are under DataParallel, whose replicas share the values or copy them") {
  for (const dp::Refresh refresh : {dp::Refresh::persistent, dp::Refresh::per_forward})
    for (const bool in_replicas : {false, true}) {
      SimpleCNN model(1);
      dp::DataParallelOptions options{.devices = first_devices(DeviceKind::cpu, 2), .replicas = refresh};
      if (in_replicas) options.loss = [](const Variable& y, const Tensor& labels) { return ops::nll_loss(y, labels); };
      dp::DataParallel net(model, options);
      optim::SGD opt(model, {.lr = 0.1f});
      const duet_test::Batch batch = make_batch(8, 1);
      const auto loss = [&] {
        return in_replicas ? net(Value(List{Variable(batch.images), Variable(batch.labels)})).variable()
                           : ops::nll_loss(net(batch.images), batch.labels);
      };
      loss().backward();
      const Variable late = loss();
      opt.step();
      CHECK_THAT(error_of<UsageError>([&] { late.backward(); }),
                 ContainsSubstring("replica") && ContainsSubstring(".weight)") && ContainsSubstring("was modified"));
      const Variable early = loss(), again = loss();  // per_forward copies the same values once more
      opt.zero_grad();
      CHECK_NOTHROW(ops::add(early, again).backward());
      const Variable late_labels = loss();
      fill(batch.labels, std::int64_t{1});
      CHECK_THAT(error_of<UsageError>([&] { late_labels.backward(); }), ContainsSubstring("was modified"));
    }
}

TEST_CASE("results and other tensors on the tape that were written are an error") {
  const Tensor x = from_values<float>({2}, {1, -2});
  const Variable leaf(x, true);
  const Variable y = ops::relu(leaf);
  fill(y.value(), 3.0f);
  CHECK_THAT(error_of<UsageError>([&] { y.backward(x); }), ContainsSubstring("relu: its result f32[2] was modified"));
  const Variable product = ops::mul(leaf, Variable(from_values<float>({2}, {3, 4})));
  backend(x).scale(x, 2.0f);
  x.bump_version();
  CHECK_THAT(error_of<UsageError>([&] {
               product.backward(from_values<float>({2}, {1, 1}));
             }),
             ContainsSubstring("mul: its left argument f32[2] (KeepGradient) was modified") &&
                 ContainsSubstring("it is at version 1, expected version 0"));
}

TEST_CASE("an error of a value that was written leaves gradients as they are") {
  SimpleCNN model(1);
  Training run(model);
  run.loss().backward();
  const Tensor before = std::as_const(model.parameters()).gradients().clone();
  const Variable late = run.loss();
  run.opt.step();
  CHECK_THROWS_AS(late.backward(), UsageError);
  CHECK(std::ranges::equal(before.span<float>(), std::as_const(model.parameters()).gradients().span<float>()));
}

TEST_CASE("reading between forward and backward is no error, nor writing what backward does not read") {
  SimpleCNN model(1);
  Training run(model);
  CHECK(run.error_after([&] {
             float sum = 0;
             for (const auto& [name, tensor] : model.state_dict())
               for (const float value : tensor.span<float>()) sum += value;
             for (float& value : model.parameters().values().span<float>()) sum += value;
             static_cast<void>(sum);
           })
            .empty());
  CHECK(run.error_after([&] {
             const NoGrad evaluation;
             run.loss();
           })
            .empty());
  CHECK(run.error_after([&] {
             const Variable other = run.loss();
             other.backward();
           })
            .empty());
  duet_test::SyncNet norms(3);
  Training of_norms(norms);
  CHECK(of_norms.error_after([&] { of_norms.loss(); }).empty());  // running statistics move
  Tensor summand = from_values<float>({2}, {1, 2});
  const Variable x(from_values<float>({2}, {1, 2}), true);
  const Variable sum = ops::add(x, Variable(summand));
  fill(summand, 0.0f);
  CHECK_NOTHROW(sum.backward(from_values<float>({2}, {1, 1})));
}

TEST_CASE("a written parameter leaves backward runs alone that read others only") {
  Linear first(3, 2), second(3, 2);
  struct Two : Module {
    Two(Module& a, Module& b) {
      register_module("a", a);
      register_module("b", b);
    }
    std::string type_name() const override { return "Two"; }
  } both(first, second);
  both.initialise(std::uint64_t{1});
  const Tensor x = from_values<float>({1, 3}, {1, 2, 3}), target = zeros({1, 2});
  const Variable of_first = ops::mse_loss(first(x), target), of_second = ops::mse_loss(second(x), target);
  const NamedTensors own = first.state_dict();
  copy(zeros({2, 3}), own[0].tensor);
  CHECK_NOTHROW(of_second.backward());
  CHECK_THROWS_WITH(of_first.backward(), ContainsSubstring("its weight f32[2, 3] (a.weight) was modified"));
}
