// Hooks of parameters: when they fire, and how they go.
#include <algorithm>
#include <string>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/nn/chain.h"
#include "tests/autograd/branches.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("the hook of a parameter fires once per backward, when its last contribution is in") {
  Branches net;
  nn::FlatParameters& store = net.parameters();
  std::vector<int> fired;
  std::vector<float> seen;
  const nn::HookHandle hook = store.hooks().on_grad_ready([&](int slot) {
    fired.push_back(slot);
    if (slot == 0) seen = numbers(store.gradient(0));
  });
  loss_of(net).backward();
  CHECK(fired.size() == 4);
  CHECK(std::count(fired.begin(), fired.end(), 0) == 1);
  CHECK(fired[0] >= 4);  // the last layer's come first
  CHECK(fired[1] >= 4);
  CHECK(seen == numbers(store.gradient(0)));
  CHECK(store.has_gradient(0));
  CHECK_FALSE(store.has_gradient(2));
}

TEST_CASE("the hook of a parameter fires while backward still has operators to run") {
  nn::Sequential net;
  net.add<nn::Linear>(3, 3);
  net.add<nn::Linear>(3, 2);
  net.initialise(1);
  nn::FlatParameters& store = net.parameters();
  std::vector<std::vector<float>> seen;  // the first layer's gradient, whenever another one is ready
  const nn::HookHandle hook = store.hooks().on_grad_ready([&](int) { seen.push_back(numbers(store.gradient(0))); });
  loss_of(net).backward();
  REQUIRE(seen.size() == 4);
  CHECK(std::all_of(seen.front().begin(), seen.front().end(), [](float value) { return value == 0; }));
  CHECK(seen.back() != seen.front());
}

TEST_CASE("hooks coexist, unregister, and end before a store or after it") {
  nn::HookHandle survivor;
  {
    Branches net;
    int first = 0, second = 0, ends = 0;
    nn::HookHandle a = net.parameters().hooks().on_grad_ready([&](int) { ++first; });
    const nn::HookHandle b = net.parameters().hooks().on_grad_ready([&](int) { ++second; });
    survivor = net.parameters().hooks().at_backward_end([&] { ++ends; });
    loss_of(net).backward();
    CHECK((first == 4 && second == 4 && ends == 1));
    a.reset();
    a.reset();
    loss_of(net).backward();
    CHECK((first == 4 && second == 8 && ends == 2));
    // A run that reaches no parameter ends without them.
    ops::relu(leaf({1})).backward();
    CHECK(ends == 2);
  }
  survivor.reset();
}

TEST_CASE("a hook may remove itself, or the next one, while it runs") {
  Branches net;
  const std::string text = "longer than any buffer inside a string: it dies with the hook";
  std::string said;
  int others = 0;
  nn::HookHandle self, next;
  self = net.parameters().hooks().on_grad_ready([&, text](int) {
    self.reset();
    next.reset();
    said += text;
  });
  next = net.parameters().hooks().on_grad_ready([&](int) { ++others; });
  loss_of(net).backward();
  CHECK(said == text);
  CHECK(others == 0);
}
