// A small comparison: all modes on drawn digits, in processes of their own, must end with the same bits.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/report.h"
#include "compare/results.h"
#include "lib/error.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
using duet_test::with;

namespace {

const std::vector<std::string> kSmall = {"--data",  "synthetic", "--train-images", "333", "--test-images", "200",
                                         "--batch", "64",        "--lr",           "0.05"};

}  // namespace

TEST_CASE("compare trains every cell, and dp and ddp end with the bits of single") {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/report with a space";
  const auto ran = duet_test::duet(
      with({"compare", "--wide", "--devices", "1,2,3", "--out", out, "--json", "-", "--time-budget", "6"}, kSmall));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Results results = results_from_json(ran.out);
  CHECK(duet_test::files_in(out) == std::vector<std::string>{"index.html", "results.csv", "results.json"});
  CHECK(read_file(out + "/results.json") == ran.out);
  REQUIRE(results.runs.size() >= 10);
  if (results.machine.cores < 3)
    CHECK(ran.err.starts_with(duet::concat("warning: 3 devices share ", results.machine.cores, " core")));
  const std::size_t rounds = results.runs[0].rounds_us.size();
  REQUIRE(rounds >= 1);  // 3 and more unless one takes longer than the budget
  for (const Run& run : results.runs) {
    INFO(run.mode << " " << run.devices << ": " << run.error);
    CHECK(run.ok);
    CHECK(run.rounds_us.size() == rounds);
    CHECK(run.rounds_step_us.size() == rounds);
    CHECK(run.rank_step_us.size() == (run.mode == "dp" ? 1U : static_cast<unsigned>(run.devices)));
    CHECK(run.epoch_s.size() + static_cast<std::size_t>(run.disturbed_rounds()) == rounds);
    if (run.mode == "copies") {
      CHECK(run.step_us.communication == 0);
      CHECK(run.test_accuracy.empty());
      CHECK(run.parameters_sha256.empty());
      continue;
    }
    const bool concludes = rounds >= 3 && &run != &results.runs[0] && !load_of(results) && !run.mostly_busy();
    CHECK((run.speedup_low && *run.speedup_low < *run.speedup && *run.speedup < *run.speedup_high) == concludes);
    if (run.devices > 1) CHECK(run.ceiling_efficiency.value() > 0);
    CHECK(run.rounds_waiting_us.size() == (run.devices > 1 ? rounds : 0));
    if (run.devices > 1) CHECK(overhead_of(results, run).value().parts.at(1).us.has_value());  // a smaller batch
    CHECK(std::abs(run.step_us.sum() - 64e6 / run.samples_per_s) < 0.01 * run.step_us.sum());
    CHECK(run.test_accuracy.size() == 1);
    CHECK(run.samples_per_s > 0);
    CHECK(run.peak_memory_mb.size() ==
          static_cast<std::size_t>(run.mode == "averaging" || run.mode == "ddp" ? run.devices : 1));
    const bool first = &run == &results.runs[0];
    CHECK(same_result(results, run) == (first ? "-" : run.mode == "averaging" ? "own data split" : "yes"));
    if (run.mode != "averaging") CHECK(run.train_loss == results.runs[0].train_loss);
    CHECK(std::abs(run.train_loss.back() - results.runs[0].train_loss.back()) < 1);
    CHECK(run.blocks == (run.mode == "averaging" ? 0 : 32));
    CHECK(run.step_us.forward > 0);
    CHECK((run.step_us.scatter > 0) == (run.mode == "dp"));
  }
  CHECK(results.batch_sweep.size() == 6);  // 64 itself, 8 to 128, and 22, the largest share of three devices
  CHECK((results.model.has_value() || !results.model_notes.empty()));
  // Where a machine runs unevenly, a median step can be longer than all up to the end of the first.
  CHECK(std::any_of(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.startup_s > 0; }));
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("drawn digits"));
  CHECK_THAT(ran.err,
             duet_test::ContainsSubstring("dp and ddp ended with the same bits as single on 1, 2 and 3 devices"));
  CHECK(ran.err.find('\x1b') == std::string::npos);
}

TEST_CASE("compare prints one screen: an answer, and a line for each mode") {
  const TemporaryFolder folder;
  const auto ran = duet_test::duet(
      with({"compare", "--devices", "1,2", "--out", folder.path(), "--tutorial", "--time-budget", "2"}, kSmall));
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == 0);
  const std::size_t screen = ran.out.find("\nduet ");
  REQUIRE(screen != std::string::npos);
  const std::size_t lines = ran.out.find("\nTotal execution time for 1 CPU device: ");
  REQUIRE(lines != std::string::npos);
  CHECK(std::count(ran.out.begin() + static_cast<std::ptrdiff_t>(screen) + 1,
                   ran.out.begin() + static_cast<std::ptrdiff_t>(lines), '\n') <= 24);
  for (const std::string part : {" mode ", " single ", " dp 2 ", " ddp 2 ", "--wide", "/index.html"})
    CHECK_THAT(ran.out, duet_test::ContainsSubstring(part));
}

TEST_CASE("where bits differ, the first differing step is named") {
  const TemporaryFolder folder;
  const auto ran = duet_test::duet(with({"compare", "--wide", "--modes", "single,dp", "--devices", "9", "--blocks", "8",
                                         "--out", folder.path(), "--json", "-", "--time-budget", "0"},
                                        kSmall));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Results results = results_from_json(ran.out);
  const Run& dp = results.runs.back();
  CHECK(dp.parameters_sha256 != results.runs[0].parameters_sha256);
  REQUIRE(dp.first_differing_step);
  CHECK(*dp.first_differing_step <= 5);
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("no: differs from step"));
}

TEST_CASE("a report that cannot be written is found before training") {
  const auto ran = duet_test::duet(with({"compare", "--out", "/proc/duet"}, kSmall));
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("/proc/duet"));
  CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
}

TEST_CASE("usage errors exit with 2, others with 1, each with one line") {
  using Case = std::pair<std::vector<std::string>, int>;
  for (const auto& [arguments, status] :
       std::vector<Case>{{{"compare", "--devices", "0"}, 2},
                         {{"compare", "--devices", "100000"}, 2},
                         {{"train", "--device", "tpu"}, 2},
                         {{"train", "--batch", "0"}, 2},
                         {{"fly"}, 2},
                         {{"train", "--data", "/no/such/folder"}, 1},
                         {{"train", "--data", "synthetic", "--train-images", "10", "--resume", "/no/such/file"}, 1},
                         {{"--version"}, 0},
                         {{"info"}, 0}}) {
    const auto ran = duet_test::duet(arguments);
    INFO(arguments.back() << ": " << ran.err);
    CHECK(ran.status == status);
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == (status == 0 ? 0 : 1));
  }
}

TEST_CASE("a mode that fails is a row with the reason, and a non-zero exit code") {
  const TemporaryFolder folder;
  // A rank of the tutorial's split gets no image at all: 5 images on 8 ranks.
  const auto ran = duet_test::duet({"compare", "--wide", "--modes", "single,averaging", "--devices", "8", "--out",
                                    folder.path(), "--data", "synthetic", "--train-images", "5", "--test-images", "8",
                                    "--json", "-", "--time-budget", "0"});
  INFO(ran.err);
  CHECK(ran.status == 1);
  const Results results = results_from_json(ran.out);
  CHECK(results.runs[0].ok);
  CHECK_FALSE(results.runs.back().ok);
  CHECK_THAT(results.runs.back().error, duet_test::ContainsSubstring("5 training images leave rank"));
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("failed: "));
}

TEST_CASE("a signal ends a comparison and all its processes") {
  const TemporaryFolder folder;
  ::setenv("TMPDIR", folder.path().c_str(), 1);  // where the comparison keeps its cells' files
  const auto ran =
      duet_test::duet_interrupted({"compare", "--wide", "--modes", "ddp", "--devices", "2", "--data", "synthetic",
                                   "--out", folder.path() + "/report", "--train-images", "20000", "--epochs", "5000"},
                                  folder.path() + "/*/progress", SIGTERM);
  ::unsetenv("TMPDIR");
  INFO(ran.err);
  CHECK(ran.status == 128 + SIGTERM);
  CHECK(duet_test::processes_with(folder.path()) == 0);
  CHECK(duet_test::files_in(folder.path() + "/report").empty());
  CHECK(duet_test::files_in(folder.path(), "duet-").empty());
}

TEST_CASE("a training that diverges still reports") {
  const TemporaryFolder folder;
  const auto ran = duet_test::duet(
      with({"compare", "--wide", "--modes", "single,dp", "--devices", "2", "--out", folder.path(), "--json", "-"},
           {"--data", "synthetic", "--train-images", "333", "--test-images", "200", "--batch", "64", "--lr", "1e30",
            "--time-budget", "0"}));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Results results = results_from_json(ran.out);
  CHECK(std::isnan(results.runs[0].train_loss.back()));
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("nan"));
}
