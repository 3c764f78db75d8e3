// Rounds of cells that never ran: each has a step time, which a load multiplies.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/system/burst_block.h"
#include "cli/system/files.h"
#include "compare/rounds.h"
#include "lib/error.h"
#include "lib/random.h"
#include "measure/statistics.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;
using duet_test::Approx;

namespace {

struct FakeMachine {
  std::vector<double> step_us;
  double noise = 0;                    // of a step, as a share
  std::optional<std::size_t> fails{};  // in its third burst
  double now_s = 1000;
  std::vector<std::size_t> order{};
  std::vector<int> steps{};
  std::vector<RoundState> shown{};
  Philox draws{1};

  std::optional<double> burst(std::size_t cell, int count) {
    std::size_t before = 0;
    for (const std::size_t other : order) before += other == cell;
    order.push_back(cell);
    steps.push_back(count);
    if (cell == fails && before == 2) return std::nullopt;
    const double us = step_us[cell] * (1 + noise * (static_cast<double>(draws.uniform()) - 0.5));
    now_s += us * (count + 2) / 1e6;
    return us;
  }

  RoundState run(std::vector<RoundCell>& cells, const RoundLimits& limits) {
    cells.resize(step_us.size());
    return run_rounds(cells, limits,
                      {.burst = [&](std::size_t cell, int count) { return burst(cell, count); },
                       .show = [&](const RoundState& state) { shown.push_back(state); },
                       .now_s = [&] { return now_s; }});
  }
};

}  // namespace

TEST_CASE("every round runs every cell once, in an order of its own that is the same in every comparison") {
  FakeMachine machine{.step_us = {9000, 5000, 6000, 100}, .noise = 0.1};
  std::vector<RoundCell> cells;
  const RoundState end = machine.run(cells, {.rounds = 6});
  CHECK(end.round == 6);
  REQUIRE(machine.order.size() == 24);
  std::set<std::vector<std::size_t>> orders;
  for (std::size_t round = 0; round < 6; ++round) {
    const auto begin = machine.order.begin() + static_cast<std::ptrdiff_t>(4 * round);
    CHECK(std::set<std::size_t>(begin, begin + 4).size() == 4);
    orders.emplace(begin, begin + 4);
  }
  CHECK(orders.size() > 3);
  FakeMachine again{.step_us = {9000, 5000, 6000, 100}, .noise = 0.1};
  std::vector<RoundCell> same;
  again.run(same, {.rounds = 6});
  CHECK(again.order == machine.order);
  for (std::size_t i = 0; i < 4; ++i) CHECK(same[i].rounds_us == cells[i].rounds_us);
}

TEST_CASE("a burst takes at least 0.1 s and 20 steps, and fewer steps where the budget would hold too few rounds") {
  FakeMachine machine{.step_us = {9000, 200}, .noise = 0.1};
  std::vector<RoundCell> cells = {{.step_us = 9000}, {.step_us = 200}};
  machine.run(cells, {.rounds = 1});
  CHECK(machine.steps == (machine.order[0] == 0 ? std::vector<int>{20, 500} : std::vector<int>{500, 20}));

  FakeMachine slow{.step_us = {2e6, 1e6}, .noise = 0.1};
  cells = {{.step_us = 2e6}, {.step_us = 1e6}};
  slow.run(cells, {.budget_s = 10, .base = 0});
  for (const int steps : slow.steps) CHECK(steps == 1);

  FakeMachine middling{.step_us = {5e4, 1e4}};
  cells = {{.step_us = 5e4}, {.step_us = 1e4}};
  middling.run(cells, {.budget_s = 2, .base = 0});
  for (std::size_t i = 0; i < middling.steps.size(); ++i) CHECK(middling.steps[i] >= (middling.order[i] == 0 ? 2 : 5));

  FakeMachine fixed_steps{.step_us = {9000}};
  cells.assign(1, {});
  fixed_steps.run(cells, {.rounds = 3, .steps = 7});
  CHECK(fixed_steps.steps == std::vector<int>{7, 7, 7});
}

TEST_CASE("rounds end when every speed-up is known to 1 %, not before the eighth") {
  FakeMachine quiet{.step_us = {9000, 5000}, .noise = 0.001};
  std::vector<RoundCell> cells;
  const RoundState end = quiet.run(cells, {.base = 0});
  CHECK(end.round == 8);
  CHECK(end.widest.value() <= 0.01);
  FakeMachine noisy{.step_us = {9000, 5000}, .noise = 0.2};
  cells.clear();
  const RoundState later = noisy.run(cells, {.base = 0});
  CHECK(later.round > 8);
  CHECK(noisy.now_s - 1000 <= 45);
  CHECK(noisy.shown.front().widest == std::nullopt);
  CHECK(noisy.shown.back().widest.has_value());
  CHECK(noisy.shown.back().round == later.round);
}

TEST_CASE("rounds end with the budget, after three unless one alone exceeds it") {
  const auto rounds_in = [](double budget_s) {
    FakeMachine machine{.step_us = {9000, 5000}, .noise = 0.5};
    std::vector<RoundCell> cells;
    machine.run(cells, {.budget_s = budget_s, .base = 0});
    return cells[0].rounds_us.size();
  };
  CHECK(rounds_in(0) == 0);
  CHECK(rounds_in(0.01) == 1);
  CHECK(rounds_in(0.2) == 3);
  CHECK(rounds_in(3) > 5);
}

TEST_CASE("a cell that fails in a round is left out of the next, and does not keep the others from ending") {
  FakeMachine machine{.step_us = {9000, 5000, 6000}, .noise = 0.001, .fails = 1};
  std::vector<RoundCell> cells;
  const RoundState end = machine.run(cells, {.base = 0});
  CHECK(end.round == 8);
  CHECK(cells[1].failed);
  CHECK(cells[1].rounds_us.size() == 2);
  CHECK(cells[2].rounds_us.size() == 8);
  FakeMachine without_base{.step_us = {9000, 5000}, .noise = 0.001, .fails = 0};
  cells.clear();
  CHECK(without_base.run(cells, {.base = 0}).round == 8);
  FakeMachine alone{.step_us = {9000}, .fails = 0};
  cells.clear();
  CHECK(alone.run(cells, {.base = 0}).round == 3);
}

TEST_CASE("an interrupted round keeps what the earlier ones measured") {
  std::vector<RoundCell> cells(2);
  int bursts = 0;
  const auto run = [&] {
    run_rounds(cells, {.rounds = 9},
               {.burst = [&](std::size_t, int) -> std::optional<double> {
                  if (++bursts == 6) throw std::runtime_error("Ctrl-C");
                  return 1.0;
                },
                .now_s = [] { return 0.0; }});
  };
  CHECK_THROWS_WITH(run(), "Ctrl-C");
  CHECK(cells[0].rounds_us.size() + cells[1].rounds_us.size() == 5);
}

TEST_CASE("equal cells have equal speed beside a load that takes turns of several bursts") {
  Philox draws(5);
  int held = 0;
  for (int trial = 0; trial < 20; ++trial) {
    FakeMachine machine{.step_us = {9000, 9000, 5000, 9000}, .noise = 0.02};
    machine.draws = Philox(static_cast<std::uint64_t>(trial));
    double until_s = 0, factor = 1;
    std::vector<RoundCell> cells(4);
    run_rounds(cells, {.budget_s = 30, .base = 0},
               {.burst =
                    [&](std::size_t cell, int steps) {
                      if (machine.now_s > until_s) {
                        until_s = machine.now_s + 2 + 4 * static_cast<double>(draws.uniform());
                        factor = draws.uniform() < 0.5F ? 1 : 1.8;
                      }
                      const std::optional<double> us = machine.burst(cell, steps);
                      machine.now_s += (factor - 1) * *us * steps / 1e6;
                      return std::optional(*us * factor);
                    },
                .now_s = [&] { return machine.now_s; }});
    const Interval same = ratio_interval(ratios_of(cells[0].rounds_us, cells[1].rounds_us)).value();
    held += !same.excludes(1) || (same.middle > 0.98 && same.middle < 1.02);
  }
  INFO(held << " of 20");
  CHECK(held >= 18);
}

TEST_CASE("parked ranks all run the steps that a burst asks for, and give back what they measured") {
  const TemporaryFolder folder;
  BurstControl control(folder.path() + "/bursts", 3);
  std::vector<std::thread> ranks;
  std::vector<int> sums(3, 0);
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      BurstPort port(control.path(), rank);
      while (const int steps = port.next()) {
        sums[static_cast<std::size_t>(rank)] += steps;
        if (rank == 0) port.report("text of " + std::to_string(steps));
        port.report({.median_us = 100.0 * rank + steps});
        while (!port.all_reported()) std::this_thread::yield();
      }
    });
  const auto wait = [&] {
    while (!control.parked()) control.wait_parked(std::chrono::milliseconds(100));
  };
  wait();
  for (const int steps : {5, 7}) {
    control.begin(steps);
    wait();
    CHECK(control.text() == "text of " + std::to_string(steps));
    REQUIRE(control.bursts().size() == 3);
    CHECK(control.bursts()[2].median_us == 200 + steps);
  }
  control.leave();
  for (std::thread& rank : ranks) rank.join();
  CHECK(sums == std::vector<int>(3, 12));
}

TEST_CASE("a file that no comparison made is refused") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/bursts";
  CHECK_THROWS_AS(BurstPort(path, 0), DataError);
  {
    const BurstControl control(path, 2);
    CHECK_THROWS_WITH(BurstPort(path, 2), duet_test::ContainsSubstring("is for 2 ranks, this is rank 2"));
  }
  std::string text = read_file(path);
  write_output(path, text.substr(1));
  CHECK_THROWS_WITH(BurstPort(path, 0), duet_test::ContainsSubstring("bytes, expected"));
  text[0] = 'x';
  write_output(path, text);
  CHECK_THROWS_WITH(BurstPort(path, 0), duet_test::ContainsSubstring("not made by this version"));
}
