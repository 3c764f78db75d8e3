// Comparisons under weak scaling, and of averaging alone.
#include <cstddef>
#include <string>
#include <vector>

#include "compare/report/report.h"
#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "train/measure/statistics.h"

using namespace duet::cli;
using duet_test::ContainsSubstring;

namespace {

/// Runs a small comparison on drawn digits.
duet_test::Ran compare(const std::string& out, const std::vector<std::string>& more) {
  std::vector<std::string> all = {"compare",       "--wide", "--data", "synthetic", "--train-images", "512",
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
    CHECK(run.samples_per_s == duet_test::Approx(single.samples_per_s * run.speedup.value()));
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

TEST_CASE("a comparison of averaging alone prints the tutorials' lines") {
  const TemporaryFolder folder;
  const auto ran = compare(folder.path(), {"--modes", "averaging", "--devices", "1,2,3,4", "--epochs", "2", "--model",
                                           "linear", "--time-budget", "0"});
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == 0);
  const std::string page = read_file(folder.path() + "/index.html");
  std::size_t at = 0;
  for (int devices = 1; devices <= 4; ++devices) {
    const std::string line =
        duet::concat("\nTotal execution time for ", devices, " CPU device", devices == 1 ? ": " : "s: ");
    at = ran.out.find(line, at);
    REQUIRE(at != std::string::npos);
    const std::string shown = ran.out.substr(at + 1, ran.out.find('\n', at + 1) - at - 1);
    CHECK(shown.ends_with(" seconds"));
    CHECK_THAT(page, ContainsSubstring(shown));
  }
}
