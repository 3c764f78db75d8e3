// Jobs of which one rank alone received a signal.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
using duet_test::Arguments;
using duet_test::with;

namespace {

/// `before`, then a training of 6 steps an epoch. The fault strikes a rank of it.
duet_test::Ran train(const Arguments& before, const Arguments& more, const std::string& fault) {
  ::setenv("DUET_FAULT", fault.c_str(), 1);
  duet_test::Ran ran = duet_test::duet(with(with(with(before, {"train"}), duet_test::kSmallLinear), more));
  ::unsetenv("DUET_FAULT");
  return ran;
}

Arguments launch_of_three(const Arguments& more = {}) {
  Arguments all = {"launch", "-n", "3"};
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), {"--", std::getenv("DUET_PROGRAM")});
  return all;
}

struct Case {
  int rank, signal;
  std::string name;
  bool launched;
  std::string mode;
};

}  // namespace

TEST_CASE("a signal that one rank alone received ends all with a checkpoint, and is named with its rank") {
  for (const Case& one : {Case{0, SIGTERM, "SIGTERM", true, "ddp"}, Case{1, SIGTERM, "SIGTERM", true, "ddp"},
                          Case{2, SIGTERM, "SIGTERM", true, "ddp"}, Case{1, SIGINT, "SIGINT", true, "ddp"},
                          Case{2, SIGTERM, "SIGTERM", false, "ddp"}, Case{1, SIGTERM, "SIGTERM", true, "averaging"}}) {
    const TemporaryFolder folder;
    const std::string kept = folder.path() + "/kept",
                      fault = "update:" + std::to_string(one.rank) + ":9:" + std::to_string(one.signal);
    Arguments more = {"--mode", one.mode, "--epochs", "100000", "--checkpoint", kept};
    if (!one.launched) more.insert(more.end(), {"--devices", "3"});
    const auto ran = train(one.launched ? launch_of_three() : Arguments{}, more, fault);
    INFO(one.mode << " " << fault << "\n" << ran.err);
    CHECK(ran.status == 1);  // of an interrupted job
    CHECK_THAT(ran.err, duet_test::ContainsSubstring("rank " + std::to_string(one.rank) + " received signal " +
                                                     std::to_string(one.signal) + " (" + one.name + ")\n"));
    CHECK_FALSE(duet_test::files_in(kept, "checkpoint-").empty());
    CHECK(duet_test::processes_with(folder.path()) == 0);
  }
}

TEST_CASE("the error files of the other ranks name the rank that received the signal, and the step of the checkpoint") {
  const TemporaryFolder folder;
  const std::string kept = folder.path() + "/kept", logs = folder.path() + "/logs";
  const auto ran = train(launch_of_three({"--log-dir", logs}),
                         {"--mode", "ddp", "--epochs", "100000", "--checkpoint", kept}, "update:2:9:15");
  INFO(ran.err);
  REQUIRE(duet_test::files_in(logs).size() == 1);
  const std::string files = logs + "/" + duet_test::files_in(logs)[0] + "/attempt_0/rank_";
  const auto checkpoints = duet_test::files_in(kept, "checkpoint-");
  REQUIRE_FALSE(checkpoints.empty());
  const int step = std::stoi(checkpoints.back().substr(std::string("checkpoint-").size()));
  for (const char* rank : {"0", "1"})
    CHECK_THAT(read_file(files + rank + "/error.json"),
               duet_test::ContainsSubstring("\"ended after step " + std::to_string(step) +
                                            ": rank 2 received signal 15 (SIGTERM)\""));
  CHECK_THAT(read_file(files + "2/error.json"), duet_test::ContainsSubstring("\"received signal 15 (SIGTERM)\""));
}

TEST_CASE("a process that trains alone is named with its signal too") {
  for (const Arguments& mode : {Arguments{"--mode", "single"}, {"--mode", "dp", "--devices", "2"}, {"--mode", "ddp"}}) {
    Arguments more = {"--epochs", "100000"};
    more.insert(more.end(), mode.begin(), mode.end());
    const auto ran =
        train({"launch", "-n", "1", "--", std::getenv("DUET_PROGRAM")}, more, "forward:0:9:" + std::to_string(SIGTERM));
    INFO(mode.back() << "\n" << ran.err);
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, duet_test::ContainsSubstring("duet: rank 0 received signal 15 (SIGTERM)\n"));
  }
}

TEST_CASE("a job of which one rank received a signal is restarted from its checkpoint") {
  const TemporaryFolder folder;
  const std::string whole = folder.path() + "/whole", result = folder.path() + "/result";
  // The ranks exchange their signals after at most twice as many steps as before: long before the last of 180.
  const Arguments training = {"--mode", "ddp", "--epochs", "30", "--result"};
  const auto with = [&](const std::string& file, const Arguments& more) {
    Arguments all = training;
    all.push_back(file);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  REQUIRE(train(launch_of_three(), with(whole, {}), "").status == 0);
  const auto ran = train(launch_of_three({"--max-restarts", "1"}),
                         with(result, {"--checkpoint", folder.path() + "/kept"}), "update:2:9:15");
  INFO(ran.out << ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("duet: rank 2 received signal 15 (SIGTERM); restart 1 of 1\n"));
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("restart 1: resumes from"));
  CHECK(run_from_json(read_file(result)).parameters_sha256 == run_from_json(read_file(whole)).parameters_sha256);
}
