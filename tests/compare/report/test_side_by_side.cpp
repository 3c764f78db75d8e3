// What duet show prints of two comparisons, as golden texts.
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "compare/report/report.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

using namespace duet::cli;
using namespace duet_test;
using duet_test::Approx;

namespace {

/// made_up() on a machine that is a third faster, ddp even more so, with noise of its own; without ddp on 4 devices.
Results faster() {
  Results results = duet_test::made_up();
  results.version = "0.2.0";
  results.machine = {.cpu = "Other CPU",
                     .cores = 4,
                     .isa = "AVX-512",
                     .gpus = {},
                     .memory_gb = 33.2,
                     .kernel = "Linux 6.12",
                     .sockets = 2};
  for (Run& run : results.runs) {
    double change = 0.02;
    for (double& us : run.rounds_us) us *= (run.mode == "ddp" ? 0.5 : 0.75) * (1 + (change = -change));
    run.samples_per_s = 128e6 / median(run.rounds_us);
    run.graph = true;
  }
  results.runs.erase(results.runs.begin() + 5);
  compare_with_single(results);
  return results;
}

std::string shown(const Results& a, const Results& b, int columns) {
  const std::string text = side_by_side(a, b, columns, {});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(width(line) <= static_cast<std::size_t>(columns));
  return text;
}

}  // namespace

TEST_CASE("two comparisons side by side, on 100 columns") {
  CHECK(shown(duet_test::made_up(), faster(), 100) ==
        R"(  A: duet 0.1.0 · Example <CPU>, 2 cores, AVX2 · no GPU · 8.5 GB · Linux 6.1 · runs on cpu
  B: duet 0.2.0 · Other CPU, 4 cores on 2 sockets, AVX-512 · no GPU · 33.2 GB · Linux 6.12 · runs on
  cpu
  Both: network simple_cnn, 0 parameters · batch 128 · precision fp32 · images MNIST, 60,000 ·
  optimizer sgd · threads per device 1

  mode                 step A    step B   speed-up A     speed-up B                 B/A
  single             17.07 ms  12.67 ms        1.00x          1.00x  1.35x (1.31..1.36)
  single, all cores   9.39 ms   6.97 ms  1.82x ±0.01    1.82x ±0.01  1.35x (1.31..1.36)
  averaging 2        10.67 ms   7.92 ms  1.60x ±0.01    1.60x ±0.01  1.35x (1.31..1.36)
  dp 2                8.96 ms   6.65 ms  1.90x ±0.02    1.90x ±0.02  1.35x (1.31..1.36)
  ddp 2              10.67 ms   5.28 ms  1.60x ±0.01  2.40x ±0.02 !  2.02x (1.96..2.04)
  dp 4                      -         -            -              -      failed in both

  Only in A: ddp 4.
  B/A: samples a second of B for each of A, above 1 where B is faster. Its 95 % interval is that of
  two independent medians over rounds, on their logarithms.
  B is 1.35 times as fast as A (1.31 to 1.36), with dp 2.
)");
  CHECK(side_by_side(duet_test::made_up(), faster(), 300, {}) == shown(duet_test::made_up(), faster(), 100));
}

TEST_CASE("two comparisons on narrow screens leave steps out, then speed-ups") {
  CHECK(shown(duet_test::made_up(), faster(), 80) ==
        R"(  A: duet 0.1.0 · Example <CPU>, 2 cores, AVX2 · no GPU · 8.5 GB · Linux 6.1 ·
  runs on cpu
  B: duet 0.2.0 · Other CPU, 4 cores on 2 sockets, AVX-512 · no GPU · 33.2 GB ·
  Linux 6.12 · runs on cpu
  Both: network simple_cnn, 0 parameters · batch 128 · precision fp32 · images
  MNIST, 60,000 · optimizer sgd · threads per device 1

  mode                speed-up A     speed-up B                 B/A
  single                   1.00x          1.00x  1.35x (1.31..1.36)
  single, all cores  1.82x ±0.01    1.82x ±0.01  1.35x (1.31..1.36)
  averaging 2        1.60x ±0.01    1.60x ±0.01  1.35x (1.31..1.36)
  dp 2               1.90x ±0.02    1.90x ±0.02  1.35x (1.31..1.36)
  ddp 2              1.60x ±0.01  2.40x ±0.02 !  2.02x (1.96..2.04)
  dp 4                         -              -      failed in both

  Only in A: ddp 4.
  B/A: samples a second of B for each of A, above 1 where B is faster. Its 95 %
  interval is that of two independent medians over rounds, on their logarithms.
  B is 1.35 times as fast as A (1.31 to 1.36), with dp 2.
)");
  CHECK_THAT(shown(duet_test::made_up(), faster(), 60), ContainsSubstring("B/A") && !ContainsSubstring("speed-up A"));
}

TEST_CASE("settings that differ are named with both values") {
  const Results a = duet_test::made_up();
  Results b = a;
  b.settings.model = "resnet18";
  b.parameters = 11181642;
  b.settings.batch = 64;
  b.weak = true;
  b.settings.precision = duet::Precision::tf32;
  b.settings.data = "drawn digits";
  b.settings.train_images = 333;
  b.settings.optimizer = "adam";
  for (Run& run : b.runs) run.threads_per_device += 1;
  b.partial = true;
  const std::string text = side_by_side(a, b, 100, {});
  for (const char* const line : {
           "Not comparable: network is simple_cnn, 0 parameters in A, resnet18, 11,181,642 parameters in B.",
           "Not comparable: batch is 128 in A, 64 of each device in B.",
           "Not comparable: precision is fp32 in A, tf32 in B.",
           "Not comparable: images is MNIST, 60,000 in A, drawn digits, 333 in B.",
           "Not comparable: optimizer is sgd in A, adam in B.",
           "Not comparable: threads per device is 1 in A, 2 in B.",
           "B is partial: interrupted",
       })
    CHECK_THAT(text, ContainsSubstring(line));
  CHECK_THAT(text, !ContainsSubstring("Both:"));
  CHECK_THAT(side_by_side(a, a, 100, {}), !ContainsSubstring("Not comparable"));
  CHECK_THAT(side_by_side(a, b, 100, {.colour = true}), ContainsSubstring("\x1b[31m  Not comparable: batch"));
}

TEST_CASE("runs without rounds have no interval, those that failed no numbers, and none may be in both") {
  Results a = duet_test::made_up(), b = a;
  for (Run& run : b.runs) {
    run.rounds_us.clear();
    run.rounds_step_us.clear();
    run.samples_per_s *= 2;
  }
  compare_with_single(b);
  CHECK_THAT(side_by_side(a, b, 100, {}), ContainsSubstring("2.00x\n") && ContainsSubstring("failed in both\n"));
  b.runs[3].samples_per_s = 0;
  b.runs[4].ok = false;
  CHECK_THAT(side_by_side(a, b, 100, {}), ContainsSubstring("failed in B\n"));
  CHECK_THAT(side_by_side(b, a, 100, {}), ContainsSubstring("failed in A\n"));
  CHECK_THAT(side_by_side(a, b, 100, {}), ContainsSubstring(" - "));
  b.runs.clear();
  const std::string none = side_by_side(a, b, 100, {});
  CHECK_THAT(none,
             ContainsSubstring("No mode on as many devices is in both.") &&
                 ContainsSubstring("Only in A: single, single, all cores, averaging 2, dp 2, ddp 2, ddp 4 and dp 4.") &&
                 !ContainsSubstring("Only in B"));
  CHECK_FALSE(side_by_side(b, b, 100, {}).empty());
}

TEST_CASE("two comparisons as JSON") {
  const auto json = nlohmann::json::parse(side_by_side_json(duet_test::made_up(), faster()));
  CHECK(json.at("a").at("cpu") == "Example <CPU>");
  CHECK(json.at("b").at("duet") == "0.2.0");
  CHECK(json.at("differences").empty());
  REQUIRE(json.at("rows").size() == 6);
  const auto& ddp = json.at("rows").at(4);
  CHECK(ddp.at("label") == "ddp 2");
  CHECK(ddp.at("devices") == 2);
  CHECK(ddp.at("a").at("step_us").get<double>() == Approx(10661).epsilon(0.001));
  CHECK(ddp.at("b_over_a").get<double>() == Approx(2).epsilon(0.05));
  CHECK(ddp.at("b_over_a_low") < ddp.at("b_over_a"));
  CHECK(ddp.at("b_over_a_high") > ddp.at("b_over_a"));
  CHECK(json.at("rows").at(5).at("a").at("ok") == false);
  CHECK(json.at("rows").at(5).at("b_over_a").is_null());
  Results other = faster();
  other.settings.batch = 64;
  CHECK(nlohmann::json::parse(side_by_side_json(duet_test::made_up(), other)).at("differences").at(0).at("b") == "64");
}
