// Rounds of cells that never ran: each has a step time, which a load multiplies.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "compare/bursts.h"
#include "compare/parked_cell.h"
#include "compare/rounds.h"
#include "lib/base/descriptor.h"
#include "lib/error.h"
#include "lib/random.h"
#include "tests/support/catch2.h"
#include "train/measure/statistics.h"
#include "train/system/files.h"

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
  const RoundState end = machine.run(cells, {.budget_s = 5});
  const auto rounds = static_cast<std::size_t>(end.round);
  REQUIRE(rounds >= 6);
  REQUIRE(machine.order.size() == 4 * rounds);
  std::set<std::vector<std::size_t>> orders;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto begin = machine.order.begin() + static_cast<std::ptrdiff_t>(4 * round);
    CHECK(std::set<std::size_t>(begin, begin + 4).size() == 4);
    orders.emplace(begin, begin + 4);
  }
  CHECK(orders.size() > 3);
  FakeMachine again{.step_us = {9000, 5000, 6000, 100}, .noise = 0.1};
  std::vector<RoundCell> same;
  again.run(same, {.budget_s = 5});
  CHECK(again.order == machine.order);
  for (std::size_t i = 0; i < 4; ++i) CHECK(same[i].rounds_us == cells[i].rounds_us);
}

TEST_CASE("a burst takes at least 0.1 s and 20 steps, and fewer steps where the budget would hold too few rounds") {
  FakeMachine machine{.step_us = {9000, 200}, .noise = 0.1};
  std::vector<RoundCell> cells = {{.step_us = 9000}, {.step_us = 200}};
  machine.run(cells, {});
  for (std::size_t i = 0; i < 2; ++i) CHECK(machine.steps[i] == (machine.order[i] == 0 ? 20 : 500));

  FakeMachine slow{.step_us = {2e6, 1e6}, .noise = 0.1};
  cells = {{.step_us = 2e6}, {.step_us = 1e6}};
  slow.run(cells, {.budget_s = 10, .base = 0});
  for (const int steps : slow.steps) CHECK(steps == 1);

  FakeMachine middling{.step_us = {5e4, 1e4}};
  cells = {{.step_us = 5e4}, {.step_us = 1e4}};
  middling.run(cells, {.budget_s = 2, .base = 0});
  for (std::size_t i = 0; i < middling.steps.size(); ++i) CHECK(middling.steps[i] >= (middling.order[i] == 0 ? 2 : 5));
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
    run_rounds(cells, {},
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

namespace {

/// The processes of a cell whose ranks run `rank` in sh, with $0 naming their FIFOs: "$0.commands" and "$0.answers".
std::unique_ptr<ParkedCell> ranks_of(const TemporaryFolder& folder, int ranks, const std::string& rank) {
  std::string script = "files=${0#--bursts=}\n";
  for (int i = 0; i < ranks; ++i) script += "sh -c '" + rank + "' $files." + std::to_string(i) + " &\n";
  return std::make_unique<ParkedCell>("/bin/sh", std::vector<std::string>{"-c", script + "wait"},
                                      folder.path() + "/cell", ranks);
}

}  // namespace

TEST_CASE("parked ranks all get the steps that a burst asks for, rest, and give back what they measured") {
  const TemporaryFolder folder;
  const auto cell = ranks_of(folder, 3, R"(
exec <$0.commands >$0.answers
echo ready of ${0##*.}
while read steps; do echo "$steps of ${0##*.}"; echo "$steps" >>$0.seen; done
echo ended >>$0.seen)");
  CHECK(cell->answers() == std::vector<std::string>{"ready of 0", "ready of 1", "ready of 2"});
  for (const std::string steps : {"5", "7"})
    CHECK(cell->burst(std::stoi(steps)) == std::vector<std::string>{steps + " of 0", steps + " of 1", steps + " of 2"});
  cell->leave();
  cell->wait_for_end();
  for (int rank = 0; rank < 3; ++rank)
    CHECK(read_file(folder.path() + "/cell." + std::to_string(rank) + ".seen") == "5\n0\n7\n0\nended\n");
}

TEST_CASE("a rank's port answers when it is ready, bursts, and lingers until it is to rest") {
  const TemporaryFolder folder;
  const std::string files = folder.path() + "/cell";
  CHECK_THROWS_WITH(BurstPort(files, 0), duet_test::ContainsSubstring("cannot open " + files + ".0.commands: "));
  const auto fifo = [](const std::string& path) {
    ::mkfifo(path.c_str(), 0600);
    return Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  };
  Descriptor commands = fifo(command_fifo(files, 0));
  const Descriptor answers = fifo(answer_fifo(files, 0));
  int lingered = 0;
  std::thread rank([&] {
    BurstPort port(files, 0);
    port.serve(
        "ready", [&](int steps) { return std::string(static_cast<std::size_t>(steps), 'x'); },
        [&] {
          while (!port.commanded()) std::this_thread::yield();
          ++lingered;
        });
  });
  const auto next = [&](std::size_t size) {
    std::string text;
    while (text.size() < size) {
      std::array<char, 4096> part;
      const ssize_t got = ::read(answers.get(), part.data(), part.size());
      text.append(part.data(), static_cast<std::size_t>(std::max<ssize_t>(0, got)));
    }
    return text;
  };
  const auto command = [&](const std::string& line) { CHECK(::write(commands.get(), line.data(), line.size()) > 0); };
  CHECK(next(6) == "ready\n");
  command("200000\n");  // more than a pipe holds
  CHECK(next(200'001) == std::string(200'000, 'x') + "\n");
  command("0\n");
  CHECK(next(3) == "{}\n");
  CHECK(lingered == 1);
  commands.close();
  rank.join();
}
