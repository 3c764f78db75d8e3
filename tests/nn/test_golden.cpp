// Numbers that PyTorch gives, bit for bit where its own are fixed. They were taken from PyTorch 1.13 and 2.15.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "tests/support/catch2.h"

using namespace duet;
using duet_test::Approx;

namespace {

/// x[i] = ((37 i % 256) / 255 - 0.1307) / 0.3081, four images.
Tensor fixed_images() {
  Tensor x = empty({4, 1, 28, 28});
  for (std::int64_t i = 0; i < x.count(); ++i)
    x.data<float>()[i] = static_cast<float>((static_cast<double>(37 * i % 256) / 255 - 0.1307) / 0.3081);
  return x;
}

Tensor fixed_labels() { return from_values<std::int64_t>({4}, {3, 1, 4, 1}); }

/// Digest of all parameters in the order of registration.
std::string digest(nn::Module& model) {
  Sha256 sha;
  for (int slot = 0; slot < model.parameters().slot_count(); ++slot)
    sha.update(std::as_bytes(model.parameters().value(slot).span<float>()));
  return sha.hex();
}

Approx close(double value) { return Approx(value).epsilon(2e-5); }

}  // namespace

TEST_CASE("SimpleCNN's initial weights are PyTorch's, bit for bit") {
  nn::SimpleCNN model(1234);
  CHECK(model.parameters().values().count() == 421642);
  const std::vector<std::pair<int, std::vector<std::uint32_t>>> expected = {
      {0, {0xbea0c66c, 0xbd85f0f0, 0xbe23f246, 0xbdb6143b}}, {1, {0x3e09f848, 0xbc8d042b, 0xbe2b99f6, 0xbdcbc0c6}},
      {2, {0x3c904a6b, 0x3d53eac6, 0x3cfec00c, 0xbcd33fa9}}, {4, {0xbc7f29dc, 0x3c743fae, 0xbc83bd8e, 0xbb912aee}},
      {6, {0xbc80c41a, 0xbd0afd31, 0xbcf28021, 0x3da8a4a1}}, {7, {0xbca8e466, 0x3c10011a, 0xbca2d255, 0x3dac0114}}};
  for (const auto& [slot, bits] : expected)
    for (std::size_t i = 0; i < bits.size(); ++i)
      CHECK(std::bit_cast<std::uint32_t>(model.parameters().value(slot).data<float>()[i]) == bits[i]);
  CHECK(digest(model) == "1f737b7c2591f10bec1c931484487411ef2af95110eb529c15bbe83a8a50db91");
}

TEST_CASE("the same without fused rounding are those of PyTorch for processors without AVX2") {
  nn::SimpleCNN model(1234);
  Mt19937 generator(1234);
  for (int slot = 0; slot < 8; slot += 2) {
    const auto fan_in = static_cast<double>(model.parameters().value(slot).shape().count_from(1));
    const double bound = std::sqrt(3.0) * (std::sqrt(2.0 / 6.0) / std::sqrt(fan_in));
    generator.uniform(model.parameters().value(slot).span<float>(), -bound, bound, Rounding::separate);
    generator.uniform(model.parameters().value(slot + 1).span<float>(), -1 / std::sqrt(fan_in), 1 / std::sqrt(fan_in),
                      Rounding::separate);
  }
  CHECK(digest(model) == "f526e1a39bb7ffbc2b4be3ef7177a32d1322f558801a546d00b84fa740138181");
}

TEST_CASE("construction leaves the generator where PyTorch's is") {
  Mt19937 generator(1234);
  const nn::SimpleCNN model(generator);
  CHECK(generator.random_int64() == 551746818273622095);
}

TEST_CASE("SimpleCNN's forward, loss and gradients on fixed images are PyTorch's") {
  for (const bool fused : {true, false}) {
    nn::SimpleCNN model(1234);
    model.context().fuse = fused;
    model.eval();
    const Variable y = model(fixed_images());
    const float row[] = {-2.342586f, -2.293986f, -2.316692f, -2.286713f, -2.092657f,
                         -2.368055f, -2.431910f, -2.095010f, -2.442295f, -2.431126f};
    for (std::size_t i = 0; i < 10; ++i) CHECK(std::abs(y.value().data<float>()[i] - row[i]) < 2e-6f);
    const Variable loss = ops::nll_loss(y, fixed_labels());
    CHECK(loss.item() == Approx(2.2362251).epsilon(1e-6));
    loss.backward();
    const double norms[] = {.281918, .06125634, 1.736314, .1268964, 5.398181, .2310705, 1.025688, .5134571};
    for (int slot = 0; slot < 8; ++slot) {
      double squares = 0;
      const Tensor gradient = model.parameters().gradient(slot);
      for (const float g : gradient.span<float>()) squares += static_cast<double>(g) * static_cast<double>(g);
      CAPTURE(slot);
      CHECK(std::sqrt(squares) == close(norms[slot]));
    }
  }
}

TEST_CASE("five steps of SGD are PyTorch's, without dropout and with its stream of dropout") {
  struct Run {
    bool training;
    std::vector<double> losses;
  };
  for (const Run& run : {Run{false, {2.236225, 1.944793, 1.639372, 1.362535, 1.178595}},
                         Run{true, {2.382869, 1.987143, 1.573214, 1.476657, 1.255103}}}) {
    Mt19937 generator(1234);
    nn::SimpleCNN model(generator);
    model.train(run.training);
    model.context().stream = &generator;
    optim::SGD opt(model, {.lr = 0.01f, .momentum = 0.5f});
    for (const double expected : run.losses) {
      opt.zero_grad();
      const Variable loss = ops::nll_loss(model(fixed_images()), fixed_labels());
      CAPTURE(run.training);
      CHECK(loss.item() == close(expected));
      loss.backward();
      opt.step();
    }
  }
}

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
  saved[0].name = "absent";
  CHECK_THROWS_WITH(other.load_state(saved), "SGD: the state has 'absent', which this optimizer lacks");
  optim::SGD plain(model, {.lr = 0.01f});
  CHECK_THROWS_AS(plain.load_state(opt.state()), DataError);
}
