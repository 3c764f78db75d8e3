// The cells of a comparison while they are parked between their bursts.
#include <signal.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

namespace fs = std::filesystem;

/// Of comparisons that are started in its lifetime: where they keep the files of their cells.
class CellFiles {
 public:
  CellFiles() { ::setenv("TMPDIR", folder_.path().c_str(), 1); }
  ~CellFiles() { ::unsetenv("TMPDIR"); }
  const std::string& path() const { return folder_.path(); }
  std::string report() const { return folder_.path() + "/report"; }

 private:
  TemporaryFolder folder_;
};

/// dp and ddp on two devices, without single, and so without copies.
std::vector<std::string> two_cells(const CellFiles& files, const std::string& budget) {
  return {"compare",        "--wide", "--modes", "dp,ddp",      "--devices", "2",      "--data",        "synthetic",
          "--train-images", "333",    "--batch", "64",          "--model",   "linear", "--test-images", "20",
          "--time-budget",  budget,   "--out",   files.report()};
}

std::string file_of(const fs::path& process, const char* name) {
  try {
    return read_file((process / name).string());
  } catch (const std::exception&) {
    return "";
  }
}

/// Kills the process of a comparison's cell whose command line holds `option`, and that is this rank, if any (-1: the
/// cell's own process). Returns whether there was one.
bool kill_process(const std::string& folder, const std::string& option, int rank) {
  for (const fs::directory_entry& process : fs::directory_iterator("/proc")) {
    const std::string line = file_of(process, "cmdline"), variables = '\0' + file_of(process, "environ");
    if (line.find(folder) == std::string::npos || line.find(option) == std::string::npos) continue;
    const std::string wanted = rank < 0 ? "RANK=" : "RANK=" + std::to_string(rank);
    const bool has = variables.find('\0' + wanted) != std::string::npos;
    if (has == (rank >= 0)) return ::kill(std::stoi(process.path().filename().string()), SIGKILL) == 0;
  }
  return false;
}

}  // namespace

TEST_CASE("a parked cell that is killed is a row with the reason, and the others are timed on") {
  struct Case {
    const char *option, *mode;
    int rank;
    const char* reason;
  };
  for (const Case& one : {Case{"--mode=ddp", "ddp", 1, "rank 1 was killed by signal 9 (SIGKILL)"},
                          Case{"--mode=dp", "dp", -1, "ended by signal 9 (Killed)"}}) {
    const CellFiles files;
    bool killed = false;
    const auto ran = duet_test::duet_interrupted(
        two_cells(files, "5"),
        [&] {
          if (!duet_test::there(files.path() + "/*/1.result")) return false;
          return killed = kill_process(files.path(), one.option, one.rank);
        },
        0);
    INFO(one.mode << "\n" << ran.out << ran.err);
    CHECK(killed);
    CHECK(ran.status == 1);
    const Results results = results_from_json(read_file(files.report() + "/results.json"));
    REQUIRE(results.runs.size() == 2);
    for (const Run& run : results.runs) {
      CHECK(run.ok == (run.mode != one.mode));
      if (run.ok) CHECK(run.rounds_us.size() >= 3);
      if (!run.ok) CHECK_THAT(run.error, duet_test::ContainsSubstring(one.reason));
    }
    CHECK(duet_test::processes_with(files.path()) == 0);
  }
}

TEST_CASE("a signal while cells are parked or timed ends them all, and what they learnt is reported as partial") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const CellFiles files;
    // When the second cell has its result, the comparison has taken the first's.
    const auto ran = duet_test::duet_interrupted(two_cells(files, "600"), files.path() + "/*/2.result", signal);
    INFO(ran.out << ran.err);
    CHECK(ran.status == 128 + signal);
    CHECK(duet_test::processes_with(files.path()) == 0);
    CHECK(duet_test::files_in(files.path(), "duet-").empty());
    CHECK_THAT(ran.out, duet_test::ContainsSubstring("partial: interrupted"));
    CHECK_FALSE(results_from_json(read_file(files.report() + "/results.json")).runs.empty());
  }
}

TEST_CASE("parked cells end with the comparison that is killed") {
  const CellFiles files;
  const auto ran = duet_test::duet_interrupted(two_cells(files, "600"), files.path() + "/*/1.result", SIGKILL);
  CHECK(ran.status == 128 + SIGKILL);
  while (duet_test::processes_with(files.path()) > 0) ::usleep(10'000);  // the test's limit of time ends this
}

TEST_CASE("without a time budget cells learn only") {
  const CellFiles files;
  const auto ran = duet_test::duet(two_cells(files, "0"));
  INFO(ran.err);
  CHECK(ran.status == 0);
  for (const Run& run : results_from_json(read_file(files.report() + "/results.json")).runs) {
    CHECK(run.epoch_s.size() == 1);
    CHECK(run.rounds_us.empty());
  }
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("Nothing is concluded from these speeds"));
}

TEST_CASE("cells of every kind are parked and timed") {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--workers", "thread", "--backend", "memory"},
                                               {"--backend", "tcp"},
                                               {"--threads-per-device", "2"},
                                               {"--compat", "torch", "--modes", "single,averaging,ddp"},
                                               {"--check-finite"}}) {
    const CellFiles files;
    std::vector<std::string> arguments = two_cells(files, "0.5");
    arguments[3] = "single,averaging,dp,ddp";
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto ran = duet_test::duet(arguments);
    INFO(more[0] << "\n" << ran.out << ran.err);
    CHECK(ran.status == 0);
    const Results results = results_from_json(read_file(files.report() + "/results.json"));
    CHECK(results.runs.size() >= 4);
    for (const Run& run : results.runs) {
      CHECK_FALSE(run.rounds_us.empty());
      if (run.mode != "copies" && run.mode != "single") CHECK(run.rounds_waiting_us.size() == run.rounds_us.size());
    }
    CHECK(results.batch_sweep.size() == 5);  // 64 itself, 8 to 128
  }
}
