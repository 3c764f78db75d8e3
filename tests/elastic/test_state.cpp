// Values of a program's own in an elastic job, in a process that takes itself for a rank of one.
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/recovery.h"
#include "lib/elastic.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"

using namespace duet;
using duet_test::ContainsSubstring;

namespace {

/// Before the first use of Recovery, which asks then whether there is an elastic job.
const int set = ::setenv(kElasticVariable, "of a test", 1);

Recovery& recovery() { return Recovery::instance(); }

/// What another rank gives that has these values.
template <class... Values>
std::vector<std::byte> state_with(const std::string& name, Values&... values) {
  const std::array kept = {elastic::state(name, values)...};
  return recovery().state();
}

/// A parameter of a training.
struct Weight final : Recoverable {
  Weight() { join("a weight"); }
  ~Weight() override { leave(); }
  bool is_written() const override { return true; }
  void stream(StateStream& state) override { state.value(value); }
  int value = 1;
};

/// A parameter store and an optimizer keep their values like this.
struct Values final : Recoverable {
  explicit Values(Tensor given) : tensor(std::move(given)) { join("values"); }
  ~Values() override { leave(); }
  void stream(StateStream& state) override { state.tensor(tensor); }
  const Tensor tensor;
};

/// One value of type T, taken from a rank whose value is `given`.
template <class T>
T taken(T given, T own) {
  const std::vector<std::byte> bytes = state_with("value", given);
  const elastic::State kept = elastic::state("value", own);
  recovery().take_state(bytes);
  return own;
}

}  // namespace

TEST_CASE("a process that joins gets values, lists of any length, tensors and modules") {
  CHECK(taken(7, 1) == 7);
  CHECK(taken(std::array{1.5, 2.5}, {}) == std::array{1.5, 2.5});
  CHECK(taken(std::vector<float>{1, 2, 3}, {}) == std::vector<float>{1, 2, 3});
  CHECK(taken(std::vector<std::int64_t>{}, {4, 5}).empty());
  CHECK(taken<std::string>("a text", "") == "a text");

  Tensor other = from_values<float>({2}, {3, 4}), own = zeros({2});
  const std::span<float> elements = own.span<float>();
  const std::vector<std::byte> of_tensor = state_with("tensor", other);
  {
    const elastic::State kept = elastic::state("tensor", own);
    recovery().take_state(of_tensor);
  }
  CHECK(elements[1] == 4);

  const auto of_values = [] {
    const Values given(from_values<float>({2}, {5, 6}));
    return recovery().state();
  }();
  const Values on_second(zeros({2}, DType::f32, {DeviceKind::cpu, 1}));
  recovery().take_state(of_values);
  CHECK(on_second.tensor.span<float>()[1] == 6);

  nn::BatchNorm2d trained(2), average(2);
  trained.parameters().values().span<float>()[0] = 5;
  trained.state_dict().back().tensor.span<std::int64_t>()[0] = 9;
  const std::vector<std::byte> of_module = state_with("average", trained);
  const elastic::State kept = elastic::state("average", average);
  recovery().take_state(of_module);
  CHECK(average.parameters().values().span<float>()[0] == 5);
  CHECK(average.state_dict().back().tensor.span<std::int64_t>()[0] == 9);
}

TEST_CASE("values under other names or of other sizes are errors that say which") {
  std::int32_t small = 1;
  std::int64_t large = 1;
  Tensor two = zeros({2}), three = zeros({3});
  const std::vector<std::byte> of_small = state_with("best", small), of_two = state_with("mean", two);
  const auto take = [](const std::vector<std::byte>& bytes, const std::string& name, auto& own) {
    const elastic::State kept = elastic::state(name, own);
    recovery().take_state(bytes);
  };
  CHECK_THROWS_WITH(take(of_small, "worst", small),
                    ContainsSubstring("another rank gives the state 'best', expected the state 'worst'"));
  CHECK_THROWS_WITH(take(of_small, "best", large),
                    ContainsSubstring("the state 'best' of another rank has 1 values of 4 bytes, expected 1 of 8"));
  CHECK_THROWS_WITH(take(of_two, "mean", three),
                    ContainsSubstring("the state 'mean' of another rank has 2 values of 4 bytes, expected 3 of 4"));

  const elastic::State kept = elastic::state("best", small);
  CHECK_THROWS_WITH(elastic::state("best", large),
                    ContainsSubstring("two states of an elastic job have the name 'best'"));
}

TEST_CASE("a state that ends early, wherever, or that goes on is an error") {
  std::vector<float> losses = {1, 2, 3};
  Tensor mean = zeros({3});
  std::string name = "a text";
  const elastic::State kept_losses = elastic::state("losses", losses), kept_mean = elastic::state("mean", mean),
                       kept_name = elastic::state("name", name);
  std::vector<std::byte> bytes = recovery().state();
  recovery().take_state(bytes);
  for (std::size_t count = 0; count < bytes.size(); ++count) {
    CAPTURE(count);
    CHECK_THROWS_WITH(recovery().take_state(std::span(bytes).first(count)),
                      ContainsSubstring("bytes too early") || ContainsSubstring("bytes are left of it"));
  }
  bytes.push_back({});
  CHECK_THROWS_WITH(recovery().take_state(bytes), ContainsSubstring("is longer than this one's"));
}

TEST_CASE("values are as they were when a void step began, and stay as they are between passes") {
  int recovers = 0;
  recovery().set_group({.complete = [](std::int64_t) {},
                        .recover =
                            [&] {
                              recovery().restore();
                              ++recovers;
                            },
                        .is_left = [] { return false; }});
  int steps = 0;
  std::vector<float> losses;
  Weight weight;
  elastic::State kept_steps = elastic::state("steps", steps), kept_losses = elastic::state("losses", losses);
  const auto step = [&](bool is_lost) {
    recovery().begin_batch({});
    if (is_lost) recovery().set_void();
    recovery().recover_if_void();
    if (!recovery().is_void()) recovery().complete_step();
    ++steps;
    losses.push_back(static_cast<float>(steps));
  };
  step(false);
  step(true);
  CHECK(recovers == 1);
  step(false);
  recovery().end_pass();
  CHECK(steps == 2);
  CHECK(losses == std::vector<float>{1, 2});
  CHECK_THROWS_WITH(elastic::state("late", recovers),
                    ContainsSubstring("the state 'late' is made in or after a step or unit of an elastic job"));
  CHECK_THROWS_WITH(Weight(), ContainsSubstring("a weight is made in or after a step or unit of an elastic job"));

  bool loses = true;
  elastic::unit([&] {
    ++steps;
    ++weight.value;
    if (loses) recovery().set_void();
    loses = false;
  });
  CHECK(recovers == 2);
  CHECK(steps == 3);
  CHECK(weight.value == 2);

  // What another rank has completed counts here, and not what this one does in the step.
  recovery().begin_batch({});
  recovery().complete_step();
  steps = 40;
  recovery().end_pass();
  const std::vector<std::byte> state = recovery().state();
  recovery().begin_batch({});
  recovery().set_void();
  recovery().recover_if_void();
  recovery().take_state(state);
  steps = 50;
  recovery().end_pass();
  CHECK(steps == 40);
  weight.value *= 7;  // which the state has already
  CHECK(recovery().state() == state);
  recovery().begin_batch({});
  CHECK(weight.value == 2);
  weight.value = 1;
  recovery().complete_step();

  recovery().end_pass();
  ++steps;
  CHECK_THROWS_WITH(recovery().begin_batch({}),
                    ContainsSubstring("the state 'steps' has changed outside of steps and units of an elastic job"));
  recovery().end_pass();

  // The state is that behind the last step also without the objects that have left, and units may follow.
  const std::vector<std::byte> whole = recovery().state();
  kept_steps = kept_losses = nullptr;
  CHECK(recovery().state() == whole);
  elastic::unit([] {});
  const std::vector<std::byte> behind_unit = recovery().state();
  CHECK(behind_unit != whole);
  CHECK(std::equal(behind_unit.begin() + 16, behind_unit.end(), whole.begin() + 16, whole.end()));  // two counters

  // With undo a step has several updates, and ends with the next batch.
  recovery().allow_undo();
  recovery().begin_batch({});
  const std::int64_t before = recovery().steps();
  const auto update = [&] {
    weight.value *= 2;
    recovery().complete_step();
  };
  update();
  update();
  CHECK(recovery().steps() == before);
  recovery().begin_batch({});
  CHECK(recovery().steps() == before + 1);
  CHECK(weight.value == 4);
  update();
  recovery().set_void();
  recovery().recover_if_void();
  CHECK(weight.value == 4);
  recovery().begin_batch({});
  update();
  recovery().end_pass();
  CHECK(recovery().steps() == before + 2);
  CHECK(weight.value == 8);
  recovery().reset_group();
  CHECK_NOTHROW(Weight());  // of a training alone
}
