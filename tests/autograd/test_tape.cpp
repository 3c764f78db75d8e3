// The tape: what it records, in which order it runs backwards, and what leaves end up with.
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/autograd/variable.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/autograd/branches.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

namespace {

/// An operator that counts its backward calls and passes the gradient on.
struct CountingNode final : Node {
  const char* name() const override { return "counting"; }
  void backward(const Gradients& gradients) override {
    ++*calls;
    gradients.inputs[0] = gradients.outputs[0];
  }
  int* calls = nullptr;
};

Variable counting(const Variable& x, int& calls) {
  auto node = make_pooled<CountingNode>();
  node->calls = &calls;
  node->add_edge(x.edge());
  return Variable(x.value(), std::move(node));
}

}  // namespace

TEST_CASE("a node runs once, after all its consumers") {
  int calls = 0;
  const Variable x = leaf({1, 2});
  const Variable y = counting(x, calls);
  const Variable z = ops::add(ops::add(y, y), ops::relu(y));
  z.backward(from_values<float>({2}, {1, 10}));
  CHECK(calls == 1);
  CHECK(numbers(x.grad()) == std::vector<float>{3, 30});
}

TEST_CASE("a long chain with a short cut waits for the long way") {
  int calls = 0;
  const Variable x = leaf({1});
  const Variable y = counting(x, calls);
  Variable z = y;
  for (int i = 0; i < 2000; ++i) z = ops::relu(z);
  ops::add(y, z).backward(from_values<float>({1}, {1}));
  CHECK(calls == 1);
  CHECK(numbers(x.grad()) == std::vector<float>{2});
}

TEST_CASE("consumers are counted, whatever the age of operators that another thread recorded") {
  int calls = 0;
  const Variable x = leaf({1});
  Variable y;
  std::thread([&] {
    for (int i = 0; i < 10000; ++i) static_cast<void>(ops::relu(x));  // that thread's numbers run ahead
    y = counting(x, calls);
  }).join();
  ops::add(y, ops::relu(y)).backward(from_values<float>({1}, {1}));
  CHECK(calls == 1);
  CHECK(numbers(x.grad()) == std::vector<float>{2});
}

TEST_CASE("leaves add up the gradients of several backward runs until they are cleared") {
  Variable x = leaf({1, -2});
  ops::relu(x).backward(from_values<float>({2}, {3, 3}));
  ops::relu(x).backward(from_values<float>({2}, {4, 4}));
  CHECK(numbers(x.grad()) == std::vector<float>{7, 0});
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
  ops::add(x, x).backward(from_values<float>({2}, {1, 1}));
  CHECK(numbers(x.grad()) == std::vector<float>{2, 2});
}

TEST_CASE("gradients that two leaves were given are not one memory that adding could change") {
  const Variable a = leaf({1, 2}), b = leaf({3, 4});
  ops::add(a, b).backward(from_values<float>({2}, {1, 1}));
  ops::relu(a).backward(from_values<float>({2}, {5, 5}));
  CHECK(numbers(a.grad()) == std::vector<float>{6, 6});
  CHECK(numbers(b.grad()) == std::vector<float>{1, 1});
}

TEST_CASE("constants ask for nothing, and a detached value cuts the tape") {
  const Variable x = leaf({1, 2}), constant(from_values<float>({2}, {5, 6}));
  CHECK_FALSE(ops::add(constant, constant).requires_grad());
  ops::add(x, constant).backward(from_values<float>({2}, {1, 1}));
  CHECK_FALSE(constant.grad().defined());
  CHECK_FALSE(ops::relu(x).detach().requires_grad());
  CHECK_THROWS_WITH(constant.backward(from_values<float>({2}, {1, 1})),
                    "backward of a variable that requires no gradient");
}

TEST_CASE("NoGrad records nothing on its thread, and nests") {
  const Variable x = leaf({1});
  {
    const NoGrad guard;
    {
      const NoGrad inner;
      const NoGrad inactive(false);
      CHECK_FALSE(grad_enabled());
    }
    CHECK_FALSE(ops::relu(x).requires_grad());
    bool elsewhere = false;
    std::thread([&] { elsewhere = grad_enabled(); }).join();
    CHECK(elsewhere);
  }
  CHECK(grad_enabled());
  CHECK(ops::relu(x).requires_grad());
}

TEST_CASE("backward needs a scalar or a gradient of the same shape and dtype") {
  const Variable x = leaf({1, 2, 3});
  CHECK_THROWS_WITH(ops::relu(x).backward(), "backward() without a gradient needs a scalar, got shape [3]");
  CHECK_THROWS_AS(ops::relu(x).backward(), ShapeError);
  CHECK_THROWS_WITH(ops::relu(x).backward(zeros({2})),
                    "backward() got a gradient of shape [2] for a value of shape [3]");
  CHECK_THROWS_AS(ops::relu(x).backward(zeros({3}, DType::f64)), ShapeError);
  CHECK_THROWS_AS(ops::relu(x).backward(Tensor()), ShapeError);
  CHECK_THROWS_WITH(x.item(), "item() needs one element, got shape [3]");
  const Variable one = leaf({4});
  ops::relu(one).backward();
  CHECK(numbers(one.grad()) == std::vector<float>{1});
}

TEST_CASE("a gradient given in the plain layout suits a value in a blocked one") {
  const Variable x(zeros({1, 16, 2, 2}), true);
  std::vector<float> values(64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor gradient = from_values<float>({1, 16, 2, 2}, values);
  ops::add(ops::to_layout(x, Layout::blocked8), Variable(zeros({1, 16, 2, 2}))).backward(gradient);
  CHECK(numbers(x.grad()) == values);
}

TEST_CASE("a tape can be used once: the second backward says so instead of crashing") {
  const Variable x(zeros({2, 3}), true), w(zeros({4, 3}), true);
  const Variable y = ops::relu(ops::linear(x, w, Variable()));
  y.backward(zeros({2, 4}));
  CHECK_THROWS_AS(y.backward(zeros({2, 4})), UsageError);
  CHECK_THROWS_WITH(y.backward(zeros({2, 4})), duet_test::ContainsSubstring("a second time"));
}

TEST_CASE("one backward run may start from several outputs, one below the other") {
  const Variable x = leaf({1, 2});
  const Variable y = ops::relu(x), z = ops::add(y, y);
  const BackwardRoot roots[] = {{z.edge(), from_values<float>({2}, {1, 1})},
                                {y.edge(), from_values<float>({2}, {10, 10})}};
  run_backward(roots);
  CHECK(numbers(x.grad()) == std::vector<float>{12, 12});
}

TEST_CASE("a node that no gradient reached hands nothing on") {
  struct Nothing final : Node {
    const char* name() const override { return "nothing"; }
    void backward(const Gradients&) override {}
  };
  const Variable x = leaf({1, 2});
  int calls = 0;
  auto node = make_pooled<Nothing>();
  node->add_edge(counting(ops::relu(x), calls).edge());
  Variable(x.value(), std::move(node)).backward(from_values<float>({2}, {1, 1}));
  CHECK(calls == 0);
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("an exception in a backward leaves the tape's leaves usable") {
  struct Failing final : Node {
    const char* name() const override { return "failing"; }
    void backward(const Gradients&) override { throw DataError("failed on purpose"); }
  };
  const Variable x = leaf({1, 2});
  auto node = make_pooled<Failing>();
  node->add_edge(x.edge());
  const Variable bad = ops::add(Variable(x.value(), std::move(node)), x);
  CHECK_THROWS_WITH(bad.backward(from_values<float>({2}, {1, 1})), "failed on purpose");
  ops::relu(x).backward(from_values<float>({2}, {1, 1}));
  CHECK(numbers(x.grad()) == std::vector<float>{1, 1});
}

TEST_CASE("zero_grad then backward overwrites, backward twice adds") {
  Branches net;
  nn::FlatParameters& store = net.parameters();
  loss_of(net).backward();
  const std::vector<float> once = numbers(store.gradient(0)), bias = numbers(store.gradient(5));
  loss_of(net).backward();
  for (std::size_t i = 0; i < once.size(); ++i) CHECK(store.gradient(0).data<float>()[i] == 2 * once[i]);
  for (std::size_t i = 0; i < bias.size(); ++i) CHECK(store.gradient(5).data<float>()[i] == 2 * bias[i]);
  store.zero_grad();
  CHECK_FALSE(store.has_gradient(0));
  loss_of(net).backward();
  CHECK(numbers(store.gradient(0)) == once);
  CHECK(numbers(store.gradient(5)) == bias);
}

TEST_CASE("an unused parameter has no gradient, and SGD leaves it alone") {
  for (const float momentum : {0.0f, 0.9f}) {
    Branches net;
    nn::FlatParameters& store = net.parameters();
    optim::SGD opt(net, {.lr = 0.1f, .momentum = momentum, .weight_decay = 0.5f});
    const std::vector<float> before = numbers(store.value(2)), used = numbers(store.value(0));
    for (int i = 0; i < 2; ++i) {
      opt.zero_grad();
      loss_of(net).backward();
      opt.step();
    }
    CHECK(numbers(store.value(2)) == before);
    CHECK(numbers(store.value(0)) != used);
  }
}

TEST_CASE("a parameter that gets its gradient later starts its momentum then") {
  nn::Linear net(2, 1, false);
  nn::Sequential both;
  auto& first = both.add<nn::Linear>(2, 1, false);
  auto& second = both.add<nn::Linear>(2, 1, false);
  optim::SGD opt(both, {.lr = 1, .momentum = 0.5f, .dampening = 0.5f});
  nn::Context& context = both.context();
  const Tensor x = from_values<float>({1, 2}, {1, 2});
  const auto step = [&](const nn::Linear& part) {
    opt.zero_grad();
    part.forward(context, Variable(x)).backward(from_values<float>({1, 1}, {1}));
    opt.step();
  };
  const auto change = [&](int slot, auto&& call) {
    const float before = context.store->value(slot).data<float>()[0];
    call();
    return before - context.store->value(slot).data<float>()[0];
  };
  using duet_test::Approx;
  CHECK(change(0, [&] { step(first); }) == Approx(1.0f));
  CHECK(change(0, [&] { step(first); }) == Approx(0.5f + 0.5f));
  CHECK(change(1, [&] { step(second); }) == Approx(1.0f));  // its first step: no dampening
  CHECK(change(1, [&] { step(second); }) == Approx(0.5f + 0.5f));
}

TEST_CASE("distinct tapes run on distinct threads at once, over shared values") {
  const Tensor shared = from_values<float>({3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < results.size(); ++t)
    threads.emplace_back([&, t] {
      const Device device = {DeviceKind::cpu, static_cast<int>(t)};
      for (int i = 0; i < 50; ++i) {
        const Variable w(shared.alias(device), true);
        const Variable x(from_values<float>({1, 3}, {1, 2, static_cast<float>(t)}).alias(device), true);
        ops::relu(ops::linear(x, w, Variable())).backward(from_values<float>({1, 3}, {1, 1, 1}).alias(device));
        results[t] = numbers(w.grad());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < results.size(); ++t) {
    const float last = static_cast<float>(t);
    CHECK(results[t] == std::vector<float>{1, 2, last, 1, 2, last, 1, 2, last});
  }
}
