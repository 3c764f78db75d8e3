// SGD against values worked out by hand and PyTorch's, and its state.
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <vector>

#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"

using namespace duet;
using duet_test::Approx;

namespace {

/// The values of a parameter 1 with gradient 1 after each of three steps.
std::vector<double> three_steps(const optim::SGDOptions& options) {
  nn::Linear model(1, 1, false);
  model.initialise(std::uint64_t{0});
  model.parameters().value(0).data<float>()[0] = 1;
  optim::SGD opt(model, options);
  std::vector<double> values;
  for (int i = 0; i < 3; ++i) {
    opt.zero_grad();
    model(from_values<float>({1, 1}, {1})).backward(from_values<float>({1, 1}, {1}));
    opt.step();
    values.push_back(static_cast<double>(model.parameters().value(0).data<float>()[0]));
  }
  return values;
}

void check_steps(const optim::SGDOptions& options, const std::vector<double>& expected) {
  const std::vector<double> got = three_steps(options);
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-6));
}

}  // namespace

TEST_CASE("SGD's momentum, Nesterov momentum, dampening and weight decay are PyTorch's") {
  check_steps({.lr = 0.1f, .momentum = 0.5f}, {0.9, 0.75, 0.575});
  check_steps({.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true}, {0.8081, 0.5347546, 0.1884550});
  check_steps({.lr = 0.1f}, {0.9, 0.8, 0.7});
  check_steps({.lr = 0.1f, .weight_decay = 0.5f}, {0.85, 0.7075, 0.572125});
  // The first step takes the whole gradient whatever the dampening: buf = 1, then 0.5 + 0.2, then 0.35 + 0.2.
  check_steps({.lr = 0.1f, .momentum = 0.5f, .dampening = 0.8f}, {0.9, 0.83, 0.775});
}

TEST_CASE("a step without a backward since zero_grad() is remarked on, once") {
  std::ostringstream said;
  std::streambuf* const usual = std::cerr.rdbuf(said.rdbuf());
  nn::Linear model(2, 2);
  optim::SGD opt(model, {.lr = 1});
  for (int i = 0; i < 3; ++i) {
    opt.zero_grad();
    opt.step();
  }
  std::cerr.rdbuf(usual);
  CHECK(said.str() == "warning: SGD::step() changes nothing: there was no backward() since zero_grad()\n");
}

TEST_CASE("SGD refuses options that make no sense, and continues from a saved state") {
  nn::Linear model(2, 2);
  CHECK_THROWS_AS(optim::SGD(model, {.lr = -1}), UsageError);
  CHECK_THROWS_AS(optim::SGD(model, {.momentum = -0.5f}), UsageError);
  CHECK_THROWS_WITH(optim::SGD(model, {.nesterov = true}),
                    "SGD: Nesterov momentum requires a momentum and zero dampening");
  const auto step = [&](optim::SGD& opt) {
    opt.zero_grad();
    ops::mse_loss(model(from_values<float>({1, 2}, {1, 2})), zeros({1, 2})).backward();
    opt.step();
  };
  const auto values = [&] {
    const auto span = model.parameters().values().span<float>();
    return std::vector<float>(span.begin(), span.end());
  };
  optim::SGD opt(model, {.lr = 0.01f, .momentum = 0.9f});
  CHECK(opt.state().empty());
  step(opt);
  const Tensor saved_values = model.parameters().values().clone();
  std::vector<nn::NamedTensor> saved;
  for (const nn::NamedTensor& item : opt.state()) saved.push_back({item.name, item.tensor.clone()});
  step(opt);
  const std::vector<float> wanted = values();
  optim::SGD other(model, {.lr = 0.01f, .momentum = 0.9f});
  copy(saved_values, model.parameters().values());
  other.load_state(saved);
  step(other);
  CHECK(values() == wanted);
  copy(saved_values, model.parameters().values());
  for (nn::NamedTensor& item : saved) item.name = "module." + item.name;  // of the same model in a wrapper
  other.load_state(saved);
  step(other);
  CHECK(values() == wanted);
  saved[0].name = "absent";
  CHECK_THROWS_WITH(other.load_state(saved), "SGD: the state has 'absent', which this optimizer lacks");
  optim::SGD plain(model, {.lr = 0.01f});
  CHECK_THROWS_AS(plain.load_state(opt.state()), DataError);
}
