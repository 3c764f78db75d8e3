// Resuming from checkpoints in a folder, and refused checkpoints.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/io/folder.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

using Arguments = std::vector<std::string>;

const std::vector<Arguments> kModes = {{},
                                       {"--mode", "dp", "--devices", "2"},
                                       {"--mode", "ddp", "--devices", "2"},
                                       {"--mode", "averaging", "--devices", "2"},
                                       {"--mode", "ddp", "--devices", "2", "--workers", "thread"}};

#ifdef DUET_FAULT_POINTS
constexpr bool kFaultPoints = true;
#else
constexpr bool kFaultPoints = false;
#endif

/// Trains on 6 steps an epoch, under a launcher if `before` starts one.
duet_test::Ran train(const Arguments& mode, const Arguments& more, const Arguments& before = {}) {
  Arguments all = before;
  all.insert(all.end(), {"train", "--data", "synthetic", "--train-images", "333", "--test-images", "20", "--model",
                         "linear", "--batch", "64", "--lr", "0.05"});
  all.insert(all.end(), mode.begin(), mode.end());
  all.insert(all.end(), more.begin(), more.end());
  return duet_test::duet(all);
}

std::string name_of(const Arguments& mode) {
  std::string text;
  for (const std::string& word : mode) text += word + " ";
  return text;
}

/// Folders' names are not the same in every case.
std::string without(std::string text, const std::string& folder) {
  for (std::size_t at = 0; (at = text.find(folder)) != std::string::npos;) text.replace(at, folder.size(), "FOLDER");
  return text;
}

int lines_with(const std::string& text, const std::string& part) {
  std::istringstream in(text);
  int count = 0;
  for (std::string line; std::getline(in, line);) count += line.find(part) != std::string::npos;
  return count;
}

}  // namespace

TEST_CASE("a training goes on in the folder that it is resumed from, and prints it") {
  for (const Arguments& mode : kModes) {
    const TemporaryFolder folder;
    const std::string run = folder.path() + "/run";
    REQUIRE(train(mode, {"--epochs", "1", "--checkpoint", run}).status == 0);
    const auto ran = train(mode, {"--epochs", "2", "--resume", run});
    INFO(name_of(mode) << ran.out << ran.err);
    REQUIRE(ran.status == 0);
    const bool said =
        ran.out.find("resumed from " + run + "/checkpoint-00000006.safetensors, epoch 2\n") != std::string::npos;
    CHECK(said);
    CHECK(duet_test::files_in(run, "checkpoint-") ==
          Arguments{"checkpoint-00000006.safetensors", "checkpoint-00000012.safetensors"});
  }
}

TEST_CASE(
    "Adam and AdamW go on in another mode with the bits of an uninterrupted training, and with no other optimizer") {
  for (const std::string optimizer : {"adam", "adamw"}) {
    const TemporaryFolder folder;
    const std::string run = folder.path() + "/run", whole = folder.path() + "/whole", late = folder.path() + "/late";
    const auto with = [&](Arguments more) {
      more.insert(more.end(), {"--optimizer", optimizer, "--weight-decay", "0.1"});
      return more;
    };
    REQUIRE(train({}, with({"--epochs", "3", "--result", whole})).status == 0);
    REQUIRE(train({"--mode", "dp", "--devices", "4"}, with({"--epochs", "1", "--checkpoint", run})).status == 0);
    REQUIRE(train({"--mode", "ddp", "--devices", "2"}, with({"--epochs", "2", "--resume", run})).status == 0);
    REQUIRE(
        train({"--mode", "ddp", "--devices", "2"}, with({"--epochs", "3", "--resume", run, "--result", late})).status ==
        0);
    CHECK(duet_test::hash_of(late) == duet_test::hash_of(whole));
    const auto other = train({}, {"--epochs", "4", "--resume", run});
    CHECK(other.status == 1);
    CHECK_THAT(other.err,
               duet_test::ContainsSubstring("is of a run with optimizer " + optimizer + ", this run has sgd"));
  }
}

TEST_CASE("the option --checkpoint names another folder for a resumed training, and a file names none") {
  const TemporaryFolder folder;
  const std::string run = folder.path() + "/run", other = folder.path() + "/other";
  REQUIRE(train({}, {"--epochs", "1", "--checkpoint", run}).status == 0);
  REQUIRE(train({}, {"--epochs", "2", "--resume", run, "--checkpoint", other}).status == 0);
  REQUIRE(train({}, {"--epochs", "2", "--resume", run + "/checkpoint-00000006.safetensors"}).status == 0);
  CHECK(duet_test::files_in(run, "checkpoint-") == Arguments{"checkpoint-00000006.safetensors"});
  CHECK(duet_test::files_in(other, "checkpoint-") == Arguments{"checkpoint-00000012.safetensors"});
}

TEST_CASE("what keeps a training from its checkpoints is one line with one exit code in every mode") {
  std::map<std::string, std::string> lines;  // by cause, as mode single prints them
  const TemporaryFolder other;
  const duet::FolderLock lock(other.path(), "other");
  for (const Arguments& mode : kModes) {
    const TemporaryFolder folder;
    const std::string run = folder.path() + "/run";
    REQUIRE(train(mode, {"--epochs", "1", "--checkpoint", run}).status == 0);
    const std::map<std::string, std::pair<Arguments, int>> causes = {
        {"has finished 1 epochs, --epochs is 1: nothing left to do", {{"--epochs", "1", "--resume", run}, 2}},
        {"holds a checkpoint of step 6", {{"--epochs", "1", "--checkpoint", run}, 1}},
        {"no checkpoint at", {{"--epochs", "1", "--resume", run + "/nothing"}, 1}},
        {"is of a run with batch 64, this run has 32", {{"--epochs", "2", "--resume", run, "--batch", "32"}, 1}},
        {"is of the model \"LinearClassifier\"", {{"--resume", run, "--model", "simple_cnn", "--epochs", "2"}, 1}},
        {"cannot make folder", {{"--checkpoint", "/proc/duet"}, 1}},
        {"is written by process " + std::to_string(::getpid()), {{"--checkpoint", other.path()}, 1}},
        {"--data /no/such/folder", {{"--data", "/no/such/folder"}, 1}}};
    for (const auto& [cause, attempt] : causes) {
      const auto ran = train(mode, attempt.first);
      INFO(name_of(mode) << cause << "\n" << ran.err);
      CHECK(ran.status == attempt.second);
      CHECK_THAT(ran.err, duet_test::ContainsSubstring(cause));
      CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
      const std::string line = without(ran.err, folder.path());
      CHECK(lines.emplace(cause, line).first->second == line);
    }
  }
}

TEST_CASE("what keeps a launched training from its checkpoints is reported by rank 0 alone, with one exit code") {
  const std::vector<std::pair<Arguments, std::string>> jobs = {{{"--mode", "single"}, "1"},
                                                               {{"--mode", "dp", "--devices", "2"}, "1"},
                                                               {{"--mode", "ddp"}, "1"},
                                                               {{"--mode", "ddp"}, "3"},
                                                               {{"--mode", "averaging"}, "3"}};
  for (const auto& [mode, ranks] : jobs) {
    const TemporaryFolder folder;
    const std::string run = folder.path() + "/run";
    REQUIRE(train({}, {"--epochs", "1", "--checkpoint", run}).status == 0);
    const std::map<std::string, std::pair<Arguments, std::string>> causes = {
        {"has finished 1 epochs, --epochs is 1: nothing left to do", {{"--epochs", "1", "--resume", run}, "2"}},
        {"holds a checkpoint of step 6", {{"--epochs", "1", "--checkpoint", run}, "1"}},
        {"no checkpoint at", {{"--epochs", "1", "--resume", run + "/nothing"}, "1"}},
        {"--data /no/such/folder", {{"--data", "/no/such/folder"}, "1"}}};
    for (const auto& [cause, attempt] : causes) {
      const auto ran = train(mode, attempt.first, {"launch", "-n", ranks, "--", std::getenv("DUET_PROGRAM")});
      INFO(ranks << " " << name_of(mode) << cause << "\n" << ran.err);
      CHECK(ran.status == 1);
      CHECK_THAT(ran.err, duet_test::ContainsSubstring("duet: rank 0 ended with exit code " + attempt.second + ": "));
      CHECK(lines_with(ran.err, cause) == 2);  // the rank's and the launcher's
      CHECK(lines_with(ran.err, ": ") == 2);
    }
  }
}

TEST_CASE("a restarted job whose last checkpoint is of its end succeeds") {
  if (!kFaultPoints) DUET_SKIP("a release build has no fault points");
  const TemporaryFolder folder;
  const std::string run = folder.path() + "/run";
  REQUIRE(train({}, {"--epochs", "1", "--checkpoint", run}).status == 0);
  ::setenv("DUET_FAULT", "end:1:1:9", 1);
  const auto ran = train({"--mode", "ddp"}, {"--epochs", "2", "--resume", run},
                         {"launch", "-n", "2", "--max-restarts", "1", "--", std::getenv("DUET_PROGRAM")});
  ::unsetenv("DUET_FAULT");
  INFO(ran.out << ran.err);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.err, duet_test::ContainsSubstring("restart 1 of 1"));
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("restart 1: goes on from"));
}
