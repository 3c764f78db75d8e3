// Comparisons of weak scaling, of several batches, and of averaging alone.
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/report/report.h"
#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

using namespace duet::cli;
using duet_test::ContainsSubstring;

namespace {

using Names = std::vector<std::string>;

/// Of a small comparison on drawn digits.
duet_test::Ran compare(const std::string& out, const Names& more) {
  Names all = {"compare",       "--wide", "--data", "synthetic", "--train-images", "512",
               "--test-images", "20",     "--lr",   "0.05",      "--out",          out};
  all.insert(all.end(), more.begin(), more.end());
  return duet_test::duet(all);
}

}  // namespace

TEST_CASE("under weak scaling N devices train N batches a step, and are compared in samples a second") {
  const TemporaryFolder folder;
  const auto ran = compare(folder.path(), {"--modes", "single,dp,ddp", "--devices", "1,2", "--batch", "32", "--scaling",
                                           "weak", "--time-budget", "0.5", "--json", "-"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Results results = results_from_json(ran.out);
  CHECK(results.weak);
  CHECK(results.settings.batch == 32);
  const Run& single = results.runs.at(0);
  for (const Run& run : results.runs) {
    INFO(run.mode << " " << run.devices);
    CHECK(run.batch == 32 * run.devices);
    REQUIRE_FALSE(run.rounds_us.empty());
    CHECK(run.samples_per_s == duet_test::Approx(static_cast<double>(run.batch) / median(run.rounds_us) * 1e6));
    std::vector<double> ratios;
    for (std::size_t i = 0; i < run.rounds_us.size(); ++i)
      ratios.push_back(run.devices * single.rounds_us.at(i) / run.rounds_us[i]);
    CHECK(run.speedup.value() == duet_test::Approx(median(ratios)));
    CHECK_FALSE(run.first_differing_step);
    const bool reference = &run == &single || (run.mode == "dp" && run.devices == 2) || run.mode == "copies";
    CHECK(same_result(results, run) == (reference ? "-" : "yes"));
  }
  CHECK_THAT(ran.err, ContainsSubstring("ddp ended with the same bits as dp on 2 devices.") &&
                          !ContainsSubstring("does not end"));
  CHECK_THAT(read_file(folder.path() + "/index.html"), ContainsSubstring("batch 32 of each device (weak scaling)"));
}

TEST_CASE("several batches are compared one after the other, each with a report of its own") {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/report";
  const auto ran =
      compare(out, {"--modes", "single,dp", "--devices", "2", "--batch", "128,32", "--time-budget", "1", "--json"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(duet_test::files_in(out) == Names{"batch-128", "batch-32", "index.html", "results.json"});
  CHECK(read_file(out + "/results.json") == ran.out);
  const auto json = nlohmann::ordered_json::parse(ran.out);
  REQUIRE(json.at("batches").size() == 2);
  CHECK(json.at("partial") == false);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string batch = i == 0 ? "128" : "32", own = out + "/batch-" + batch;
    CHECK(duet_test::files_in(own) == Names{"index.html", "results.csv", "results.json"});
    CHECK(read_file(own + "/results.json") == json["batches"][i].dump(1) + "\n");
    const Results results = results_from_json(read_file(own + "/results.json"));
    CHECK(std::to_string(results.settings.batch) == batch);
    for (const Run& run : results.runs) CHECK(std::to_string(run.batch) == batch);
    CHECK_THAT(ran.err, ContainsSubstring("\nbatch " + batch + "\n"));
    CHECK_THAT(read_file(out + "/index.html"), ContainsSubstring("href=\"batch-" + batch + "/index.html\""));
  }
  CHECK_THAT(ran.err, ContainsSubstring("\nSpeed-up over single on 2 devices\n batch"));
  const auto predict = duet_test::duet({"predict", out + "/results.json"});
  CHECK(predict.status == 1);
  CHECK_THAT(predict.err, ContainsSubstring("expected those of one: batch-128/results.json or batch-32/results.json"));
}

TEST_CASE("a failed cell of one batch fails the comparison of several, and the others are reported") {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/report";
  // A rank of the tutorial's split gets no image at all: 5 images on 8 ranks.
  const auto ran = compare(out, {"--modes", "single,averaging", "--devices", "8", "--batch", "8,16", "--train-images",
                                 "5", "--time-budget", "0"});
  INFO(ran.out << ran.err);
  CHECK(ran.status == 1);
  CHECK(duet_test::files_in(out) == Names{"batch-16", "batch-8", "index.html", "results.json"});
  CHECK_THAT(ran.out, ContainsSubstring("failed: "));
}

TEST_CASE("a signal in the second batch keeps the report of the first, and marks that of all as partial") {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/report";
  ::setenv("TMPDIR", folder.path().c_str(), 1);  // where the comparison keeps its cells' files
  // 400 steps of the first batch; 800,000 of the second, which are not over when the signal comes.
  const auto ran = duet_test::duet_interrupted(
      {"compare",        "--wide", "--modes",       "single", "--devices",     "1",   "--data", "synthetic",
       "--model",        "linear", "--batch",       "2000,1", "--epochs",      "400", "--out",  out,
       "--train-images", "2000",   "--test-images", "20",     "--time-budget", "0"},
      out + "/batch-2000/index.html", SIGTERM);
  ::unsetenv("TMPDIR");
  INFO(ran.out << ran.err);
  CHECK(ran.status == 128 + SIGTERM);
  CHECK(duet_test::processes_with(folder.path()) == 0);
  const auto json = nlohmann::ordered_json::parse(read_file(out + "/results.json"));
  CHECK(json.at("partial") == true);
  REQUIRE_FALSE(json.at("batches").empty());
  CHECK(json["batches"][0].at("partial") == false);
  CHECK_THAT(read_file(out + "/index.html"), ContainsSubstring("partial: interrupted"));
}

TEST_CASE("a comparison of averaging alone prints the tutorials' lines") {
  const TemporaryFolder folder;
  const auto ran = compare(folder.path(), {"--modes", "averaging", "--devices", "1,2,3,4", "--epochs", "2", "--model",
                                           "linear", "--time-budget", "0"});
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == 0);
  const std::string page = read_file(folder.path() + "/index.html");
  std::size_t at = 0;
  for (int devices = 1; devices <= 4; ++devices) {
    const std::string line = "\nTotal execution time for " + std::to_string(devices) + " CPU devices: ";
    at = ran.out.find(line, at);
    REQUIRE(at != std::string::npos);
    const std::string shown = ran.out.substr(at + 1, ran.out.find('\n', at + 1) - at - 1);
    CHECK(shown.ends_with(" seconds"));
    CHECK_THAT(page, ContainsSubstring(shown));
  }
}
