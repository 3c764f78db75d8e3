// Adam and AdamW against values of PyTorch 2.15, and their state.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/optim/adam.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"
#include "tests/support/difference.h"

using namespace duet;
using duet_test::ContainsSubstring;

namespace {

constexpr std::size_t kPattern = 6;
constexpr std::int64_t kValues = 67;  // vectors of every instruction set, and a rest
using Row = std::array<float, kPattern>;

/// A model of the values 0.1 -0.2 0.3 ... 0.6, again and again, whose gradients are sin(0.7 i + 0.3 t) in step t.
class Setup {
 public:
  Setup() {
    nn::FlatParameters& store = model_.parameters();
    for (int slot = 0; slot < store.slot_count(); ++slot) backend(store.values()).fill(store.value(slot), 0.0f);
    const Tensor weights = store.value(0);
    for (std::size_t at = 0; at < kValues; ++at) {
      const std::size_t i = at % kPattern;
      weights.data<float>()[at] = static_cast<float>(0.1 * static_cast<double>(i + 1) * (i % 2 == 0 ? 1 : -1));
    }
  }
  nn::Module& model() { return model_; }
  std::vector<float> values() {
    const std::span<const float> weights = model_.parameters().value(0).span<float>();
    return {weights.begin(), weights.end()};
  }
  void step(optim::Optimizer& optimizer, int t, bool with_bias = false) {
    nn::FlatParameters& store = model_.parameters();
    optimizer.zero_grad();
    const Tensor gradient = store.gradient(0);
    for (std::size_t i = 0; i < kValues; ++i)
      gradient.data<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i % kPattern) + 0.3 * t));
    store.set_filled(0);
    if (with_bias) backend(gradient).fill(store.gradient(1), 0.5f);
    if (with_bias) store.set_filled(1);
    optimizer.step();
  }

 private:
  nn::Linear model_{kValues, 1};
};

void check(Setup& setup, optim::Optimizer& optimizer, const std::array<Row, 4>& wanted) {
  constexpr std::array kSteps = {1, 2, 10, 20};
  std::size_t row = 0;
  for (int t = 1; t <= 20; ++t) {
    setup.step(optimizer, t);
    if (t != kSteps[row]) continue;
    CAPTURE(t);
    const std::vector<float> values = setup.values();
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::abs(values[i] - wanted[row][i % kPattern]) <= 1e-6f);
    ++row;
  }
  CHECK(row == kSteps.size());
}

}  // namespace

// p = Parameter([0.1, -0.2, ...]); p.grad = [sin(0.7 i + 0.3 t)]; the values after steps 1, 2, 10 and 20.
TEST_CASE("Adam has the values of PyTorch's") {
  Setup plain;
  optim::Adam adam(plain.model(), {.lr = 0.01f});
  check(plain, adam,
        {{{0.0900000036f, -0.210000008f, 0.290000021f, -0.409999996f, 0.49000001f, -0.590000033f},
          {0.0803004429f, -0.220012397f, 0.280031949f, -0.419641733f, 0.496269256f, -0.580028117f},
          {0.00262196641f, -0.288207233f, 0.238849223f, -0.408352911f, 0.569622338f, -0.505113363f},
          {0.00342155434f, -0.260654777f, 0.280871093f, -0.370109648f, 0.583861053f, -0.520766079f}}});
  Setup decayed;
  optim::Adam other(decayed.model(), {.lr = 0.01f, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
  check(decayed, other,
        {{{0.0900000036f, -0.210000008f, 0.290000021f, -0.409999996f, 0.49000001f, -0.590000033f},
          {0.0801808164f, -0.220035061f, 0.28004542f, -0.419508636f, 0.494595259f, -0.579974174f},
          {0.00190868508f, -0.282312006f, 0.24805212f, -0.391874135f, 0.570236921f, -0.506678402f},
          {0.0342409462f, -0.224793121f, 0.295814902f, -0.363854468f, 0.548580348f, -0.546606421f}}});
}

TEST_CASE("AdamW has the values of PyTorch's") {
  Setup plain;
  optim::AdamW adam(plain.model(), {.lr = 0.01f});  // weight_decay 0.01
  check(plain, adam,
        {{{0.0899900049f, -0.209980011f, 0.289970011f, -0.409960002f, 0.489950001f, -0.589940012f},
          {0.0802814439f, -0.219971403f, 0.279972941f, -0.41956073f, 0.496170253f, -0.579909086f},
          {0.00256627612f, -0.28796339f, 0.238588214f, -0.407930166f, 0.569101691f, -0.504558265f},
          {0.00337471906f, -0.260130435f, 0.280349106f, -0.369307637f, 0.582751513f, -0.519708216f}}});
  Setup decayed;
  optim::AdamW other(decayed.model(), {.lr = 0.03f, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.3});
  check(decayed, other,
        {{{0.0691101477f, -0.228196442f, 0.26730305f, -0.426395565f, 0.46557197f, -0.564604938f},
          {0.039082095f, -0.256243974f, 0.235039741f, -0.451247931f, 0.481365263f, -0.529467881f},
          {-0.190921456f, -0.420630276f, 0.133380964f, -0.34927997f, 0.672493696f, -0.281956255f},
          {-0.0771545097f, -0.22675395f, 0.266249239f, -0.25432381f, 0.566812754f, -0.394121289f}}});
}

TEST_CASE("Adam goes on from its state with the same bits, and parameters count their own steps") {
  Setup whole, parted;
  optim::Adam adam(whole.model(), {}), before(parted.model(), {});
  for (int t = 1; t <= 6; ++t) whole.step(adam, t);
  for (int t = 1; t <= 3; ++t) parted.step(before, t);
  const std::vector<nn::NamedTensor> state = before.state();
  REQUIRE(state.size() == 3);  // the bias has had no gradient
  CHECK(state[0].name == "weight.exp_avg");
  CHECK(state[1].name == "weight.exp_avg_sq");
  CHECK(state[2].name == "weight.step");
  CHECK(state[2].tensor.span<float>()[0] == 3);
  optim::Adam after(parted.model(), {});
  after.load_state(state);
  for (int t = 4; t <= 6; ++t) parted.step(after, t);
  CHECK(parted.values() == whole.values());
}

TEST_CASE("a parameter that gets its first gradient later has a step count of its own") {
  Setup late, alone;
  optim::Adam adam(late.model(), {}), first(alone.model(), {});
  for (int t = 1; t <= 3; ++t) late.step(adam, t);
  for (int t = 4; t <= 5; ++t) late.step(adam, t, true);
  for (int t = 1; t <= 2; ++t) alone.step(first, t, true);
  const auto bias = [](Setup& setup) { return setup.model().parameters().value(1).span<float>()[0]; };
  CHECK(bias(late) == bias(alone));
  const std::vector<nn::NamedTensor> state = adam.state();
  REQUIRE(state.size() == 6);
  CHECK(state[2].tensor.span<float>()[0] == 5);
  CHECK(state[5].tensor.span<float>()[0] == 2);
}

TEST_CASE("a state that is refused leaves the optimizer as it was") {
  Setup setup, expected;
  optim::Adam adam(setup.model(), {}), undisturbed(expected.model(), {});
  for (int t = 1; t <= 3; ++t) {
    setup.step(adam, t);
    expected.step(undisturbed, t);
  }
  const std::vector<nn::NamedTensor> good = adam.state();
  const auto with = [&](std::size_t place, const std::string& name, const Tensor& tensor) {
    std::vector<nn::NamedTensor> state = good;
    state[place] = {name, tensor};
    return state;
  };
  const auto number = [](float value) { return from_values<float>({1}, {value}); };
  for (const float steps : {0.0f, 2.5f, 1e30f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    CAPTURE(steps);
    CHECK_THROWS_WITH(adam.load_state(with(2, "weight.step", number(steps))),
                      ContainsSubstring("expected a whole number from 1 to 16777216"));
  }
  CHECK_THROWS_AS(adam.load_state(with(2, "weight.step", zeros({2}))), DataError);
  CHECK_THROWS_AS(adam.load_state(with(1, "weight.exp_avg_sq", zeros({1}))), DataError);
  CHECK_THROWS_WITH(adam.load_state(with(2, "weight.exp_avg", good[0].tensor)),
                    "Adam: the state has 'weight.exp_avg' twice");
  CHECK_THROWS_WITH(adam.load_state({good[0], good[2]}),
                    "Adam: the state lacks 'weight.exp_avg_sq', but has others of this parameter");
  CHECK_THROWS_WITH(adam.load_state({good[0], good[1]}),
                    "Adam: the state lacks 'weight.step', but has others of this parameter");
  setup.step(adam, 4);
  expected.step(undisturbed, 4);
  CHECK(setup.values() == expected.values());
}

// torch.optim.Adam(lr=0.5, betas=(0, 0.999)): exp_avg is the gradient, by lerp's formula for weights from 0.5 on.
TEST_CASE("without beta1 the first moment is the gradient, and an infinite value spoils no moment") {
  Setup setup;
  optim::Adam adam(setup.model(), {.lr = 0.5f, .beta1 = 0});
  nn::FlatParameters& store = setup.model().parameters();
  store.value(0).data<float>()[1] = std::numeric_limits<float>::infinity();
  for (const float gradient : {1e4f, 0.12345678f}) {
    adam.zero_grad();
    backend(store.gradients()).fill(store.gradient(0), gradient);
    store.set_filled(0);
    adam.step();
  }
  const std::vector<nn::NamedTensor> state = adam.state();
  CHECK(state[0].tensor.span<float>()[0] == 0.12345678f);
  CHECK(state[0].tensor.span<float>()[1] == 0.12345678f);
  CHECK(setup.values()[1] == std::numeric_limits<float>::infinity());
}

TEST_CASE("Adam refuses options and states that make no sense") {
  Setup setup;
  CHECK_THROWS_WITH(optim::Adam(setup.model(), {.lr = -1}), "Adam: lr is -1, expected a number of 0 or more");
  CHECK_THROWS_WITH(optim::AdamW(setup.model(), {.beta2 = 1}), "AdamW: beta is 1, expected 0 to below 1");
  CHECK_THROWS_AS(optim::Adam(setup.model(), {.eps = -1}), UsageError);
  CHECK_THROWS_AS(optim::Adam(setup.model(), {.weight_decay = std::nan("")}), UsageError);
  optim::Adam adam(setup.model(), {});
  optim::SGD sgd(setup.model(), {.lr = 0.1f, .momentum = 0.5f});
  setup.step(sgd, 1);
  CHECK_THROWS_WITH(adam.load_state(sgd.state()),
                    "Adam: the state has 'weight.momentum_buffer', which this optimizer lacks");
  CHECK_THROWS_WITH(adam.load_state({{"weight.step", from_values<float>({1}, {2.5f})}}),
                    "Adam: the state lacks 'weight.exp_avg', but has others of this parameter");
}
