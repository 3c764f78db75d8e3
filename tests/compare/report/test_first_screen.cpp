// What duet compare prints, as golden texts.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "compare/report/report.h"
#include "lib/base/text.h"
#include "lib/random.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/system/display.h"
#include "train/system/files.h"

using namespace duet::cli;

namespace {

/// made_up() with copies, a sweep of batches and a model, so that every part of the screen is there.
Results full() {
  Results results = duet_test::made_up();
  results.parameters = 421642;
  Run copies = results.runs[3];
  copies.mode = "copies";
  copies.parameters_sha256.clear();
  for (double& us : copies.rounds_us) us *= 0.9894;
  for (StepParts& parts : copies.rounds_step_us) parts = parts.scaled(0.9894);
  copies.step_us = copies.step_us.scaled(0.9894);
  copies.samples_per_s /= 0.9894;
  results.runs.push_back(copies);
  Run alone = results.runs[4];
  alone.devices = 1;
  alone.rounds_us = results.runs[0].rounds_us;
  alone.samples_per_s = results.runs[0].samples_per_s;
  results.runs.push_back(alone);
  results.batch_sweep = {{64, 8630}, {128, 17057}};
  results.model = duet_test::fitting_model();
  compare_with_single(results);
  return results;
}

/// One of full()'s rows measured in 9 rounds with another speed over a step of `single_us`, noise and load.
Run redrawn(const Run& row, double single_us, double load, double spread, duet::Mt19937& draw) {
  constexpr double kSpeeds[] = {1.9, 1.9, 1.85, 1.2, 1, 0.8};
  const double speed = row.threads() > 1 ? kSpeeds[static_cast<std::size_t>(draw.randint(0, 6))] : 1;
  std::vector<Run> bursts;
  for (int i = 0; i < 9; ++i) {
    Run& burst = bursts.emplace_back(row);
    const bool busy = draw.uniform() < load;
    burst.other_programs_share = busy ? 0.12 + 0.8 * draw.uniform() : 0.05 * draw.uniform();
    const double noise = 1 + spread * (draw.uniform() + draw.uniform() + draw.uniform() - 1.5);
    burst.step_us = row.step_us.scaled_to(single_us / speed * noise * (busy ? 1.1 + draw.uniform() : 1));
    burst.rounds_us = {burst.step_us.sum()};
    burst.rounds_step_us.clear();
  }
  Run run = row;
  run.rounds_step_us.clear();
  return with_rounds(run, bursts, 60000);
}

std::string shown(int columns) {
  const std::string text = first_screen(full(), {.columns = columns});
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) CHECK(width(line) <= static_cast<std::size_t>(columns));
  CHECK(count <= kScreenLines);
  return text;
}

}  // namespace

TEST_CASE("the first screen of 100 columns, and of no terminal") {
  CHECK(shown(100) == R"(duet 0.1.0 · Example <CPU>, 2 cores, no GPU · simple_cnn, 0.42 M parameters · batch 128 · MNIST

  2 devices train 1.90 times as fast as one (1.90..1.92), with dp; with ddp 1.60 times (1.59..1.61).
  One device on all 2 cores reaches 1.82 times (1.82..1.82).

  mode               1x..............................2x  speed-up      step   samples/s  same bits
  single             +                                      1.00   17.07 ms       7,500  -
  single, all cores  |                          +           1.82    9.39 ms      13,636  yes
  dp 2               |                             +        1.90    8.96 ms      14,286  yes
  ddp 2              |                   +                  1.60   10.67 ms      12,000  yes
  dp 4               failed: replica 3 on cpu:3: out of memory
  Noise: other modes on 1 device run single's own code, and read 1.00x..1.00x.

  Why not 2x: a step of dp on 2 devices takes 8.96 ms, single's divided by 2 is 8.53 ms. Of the 0.43
  ms:
      0.24 ms (0.17..0.28)   devices slow each other down, without exchange too (copies 1.93x)
      0.10 ms (0.10..0.10)   1.7 MB of gradients are moved and added
      0.10 ms                a batch of 64 costs more than its share of 128
     -0.01 ms                the parts, measured apart, exceed the whole

  Predicted for more cores: on 4 devices ddp 1.5 to 2.6x, dp 1.7 to 2.9x; on 8 devices ddp 2.2 to
  3.7x, dp 2.3 to 3.8x.
  All 9 rows and columns: --wide · report out/index.html · other links and hosts: duet predict
  out/results.json
)");
  CHECK(first_screen(full(), {}) == shown(100));
  CHECK(first_screen(full(), {.columns = 160}) == shown(100));
}

TEST_CASE("the first screen of 80 columns leaves samples a second out") {
  CHECK(shown(80) == R"(duet 0.1.0 · Example <CPU>, 2 cores, no GPU · simple_cnn, 0.42 M parameters · b…

  2 devices train 1.90 times as fast as one (1.90..1.92), with dp; with ddp 1.60
  times (1.59..1.61). One device on all 2 cores reaches 1.82 times (1.82..1.82).

  mode               1x........................2x  speed-up      step  same bits
  single             +                                1.00   17.07 ms  -
  single, all cores  |                     +          1.82    9.39 ms  yes
  dp 2               |                       +]       1.90    8.96 ms  yes
  ddp 2              |               +]               1.60   10.67 ms  yes
  dp 4               failed: replica 3 on cpu:3: out of memory
  Noise: other modes on 1 device run single's own code, and read 1.00x..1.00x.

  Why not 2x: a step of dp on 2 devices takes 8.96 ms, single's divided by 2 is
  8.53 ms. Of the 0.43 ms:
      0.24 ms (0.17..0.28)   devices slow each other down, without exchange too…
      0.10 ms (0.10..0.10)   1.7 MB of gradients are moved and added
      0.10 ms                a batch of 64 costs more than its share of 128
     -0.01 ms                the parts, measured apart, exceed the whole

  Predicted for more cores: on 4 devices ddp 1.5 to 2.6x, dp 1.7 to 2.9x; on 8
  devices ddp 2.2 to 3.7x, dp 2.3 to 3.8x.
  All 9 rows and columns: --wide · report out/index.html · other links and
  hosts: duet predict out/results.json
)");
}

TEST_CASE("the first screen of 60 columns") {
  const std::string text = shown(60);
  CHECK_THAT(text, duet_test::ContainsSubstring("same bits") && !duet_test::ContainsSubstring("samples/s"));
}

TEST_CASE("the first screen and all columns fit a terminal of 30 columns") {
  Results results = full(), narrow = duet_test::made_up();
  results.partial = narrow.partial = true;
  for (const int columns : {30, 40, 50}) {
    const std::string screen = first_screen(results, {.columns = columns});
    CHECK_THAT(screen, duet_test::ContainsSubstring("  dp 2 "));
    CHECK_THAT(screen, duet_test::ContainsSubstring(" far\n"));  // ends kPartial
    CHECK_THAT(table(narrow, {}, columns), duet_test::ContainsSubstring(" far\n"));
    std::istringstream lines(screen + table(narrow, {}, columns));
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      const bool is_word = line.find_last_of(' ') < 3 || line.find("failed: ") != std::string::npos;  // is never broken
      CHECK((is_word || width(line) <= static_cast<std::size_t>(columns)));
    }
  }
}

TEST_CASE("a screen without rounds concludes nothing") {
  Results results = duet_test::made_up();
  for (Run& run : results.runs) {
    run.rounds_us.clear();
    run.rounds_step_us.clear();
  }
  compare_with_single(results);
  const std::string text = first_screen(results, {});
  CHECK_THAT(text, duet_test::ContainsSubstring("Nothing is concluded: too few rounds") &&
                       duet_test::ContainsSubstring("failed: replica 3 on cpu:3: out of memory") &&
                       !duet_test::ContainsSubstring("Why not"));
  results.model = duet_test::fitting_model();
  for (Run& run : results.runs) run.ok = false;
  CHECK_THAT(first_screen(results, {}),
             duet_test::ContainsSubstring("no row of dp or ddp on several devices has a result.") &&
                 !duet_test::ContainsSubstring("Predicted"));
}

TEST_CASE("plain steps are no noise of replayed ones") {
  Results results = full();
  CHECK_THAT(first_screen(results, {}), duet_test::ContainsSubstring("Noise: "));
  for (Run& run : results.runs) run.graph = run.mode == "single";
  CHECK_THAT(first_screen(results, {}), !duet_test::ContainsSubstring("Noise: "));
}

TEST_CASE("a screen says that devices had no cores of their own, and which losses are not finite") {
  Results results = duet_test::made_up();
  results.machine.cores = 1;
  std::erase_if(results.runs, [](const Run& run) { return run.threads_per_device > 1; });
  for (Run& run : results.runs)
    if (run.ok && run.mode == "dp") run.train_loss = {std::nan("")};
  compare_with_single(results);
  CHECK_THAT(first_screen(results, {}),
             duet_test::ContainsSubstring("Nothing is concluded. 2 devices share 1 core: this measures overhead") &&
                 duet_test::ContainsSubstring("The loss of dp 2 is not finite: --check-finite ends a training"));
}

// tests/compare/report/sentences.py checks what `duet show` says of them.
TEST_CASE("comparisons with other speeds, noise and loads", "[.sentences]") {
  const char* const folder = std::getenv("DUET_SENTENCES");
  REQUIRE(folder != nullptr);
  duet::Mt19937 draw(58);
  for (int i = 0; i < 120; ++i) {
    constexpr double kLoads[] = {0, 0, 0.2, 0.5, 0.9}, kSpreads[] = {0.004, 0.04, 0.2};
    const double load = kLoads[static_cast<std::size_t>(draw.randint(0, 5))];
    const double spread = kSpreads[static_cast<std::size_t>(draw.randint(0, 3))];
    Results results = full();
    const double single_us = results.runs[0].step_us.sum();
    for (Run& run : results.runs)
      if (run.ok) run = redrawn(run, single_us, load, spread, draw);
    compare_with_single(results);
    write_output(duet::concat(folder, "/", i, ".json"), to_json(results));
  }
}
