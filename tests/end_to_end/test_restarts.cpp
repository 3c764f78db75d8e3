#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
using duet_test::with;

namespace {

/// duet launch with two ranks of a small training, of which one is killed.
duet_test::Ran launch(const char* fault, const std::vector<std::string>& more, const char* restarts = "2") {
  const duet_test::Arguments before = {
      "launch", "-n", "2", "--max-restarts", restarts, "--", std::getenv("DUET_PROGRAM")};
  const duet_test::Arguments train = {"train", "--mode",        "ddp", "--data", "synthetic", "--train-images",
                                      "333",   "--test-images", "200", "--lr",   "0.05",      "--batch",
                                      "64",    "--epochs",      "3"};
  ::setenv("DUET_FAULT", fault, 1);
  const duet_test::Ran ran = duet_test::duet(with(with(before, train), more));
  ::unsetenv("DUET_FAULT");
  return ran;
}

}  // namespace

TEST_CASE("a job with a killed rank goes on from its checkpoint, to the bits of an uninterrupted one") {
  const TemporaryFolder folder;
  const std::string whole = folder.path() + "/whole";
  REQUIRE(launch("", {"--result", whole}).status == 0);
  // In the first epoch, so from the start; in the second; between a checkpoint's bytes and its name; after the last.
  const char* const faults[] = {"backward:1:3:9", "update:0:9:9", "all_reduce:1:20:9", "rename:0:3:9", "end:1:1:9"};
  for (const char* const fault : faults) {
    const std::string kept = folder.path() + "/kept " + fault, result = folder.path() + "/result " + fault;
    const auto ran = launch(fault, {"--result", result, "--checkpoint", kept});
    INFO(fault << "\n" << ran.out << ran.err);
    REQUIRE(ran.status == 0);
    CHECK_THAT(ran.err, duet_test::ContainsSubstring(" was killed by signal 9 (SIGKILL); restart 1 of 2"));
    CHECK((ran.out.find("restart 1: resumes from") == std::string::npos) == (fault == faults[0]));
    CHECK(duet_test::hash_of(result) == duet_test::hash_of(whole));
    CHECK(duet_test::processes_with(folder.path()) == 0);
    for (const std::string& name : duet_test::files_in(kept)) CHECK(name.find(".tmp.") == std::string::npos);
  }
}

TEST_CASE("a restart does not take another run's checkpoint") {
  const TemporaryFolder folder;
  REQUIRE(launch("", {"--checkpoint", folder.path()}).status == 0);
  const auto ran = launch("", {"--checkpoint", folder.path()}, "1");
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("restart 1 of 1"));
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("later than step 0 where this run begins"));
}
