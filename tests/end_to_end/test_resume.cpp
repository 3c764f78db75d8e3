// Resuming from checkpoints in a folder, and refused checkpoints.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
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
using duet_test::Arguments;
using duet_test::with;

namespace {

const std::vector<Arguments> kModes = {{},
                                       {"--mode", "dp", "--devices", "2"},
                                       {"--mode", "ddp", "--devices", "2"},
                                       {"--mode", "averaging", "--devices", "2"},
                                       {"--mode", "ddp", "--devices", "2", "--workers", "thread"}};

/// A training of 6 steps an epoch, under a launcher if `before` starts one.
Arguments training(const Arguments& mode, const Arguments& more, const Arguments& before = {}) {
  return with(with(with(with(before, {"train", "--lr", "0.05"}), duet_test::kSmallLinear), mode), more);
}

duet_test::Ran train(const Arguments& mode, const Arguments& more, const Arguments& before = {}) {
  return duet_test::duet(training(mode, more, before));
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

TEST_CASE(
    "checkpoints after every K-th step leave the bits, and a training killed at any time goes on from the newest") {
  const TemporaryFolder folder;
  const std::string whole = folder.path() + "/whole", late = folder.path() + "/late";
  REQUIRE(train({}, {"--epochs", "3", "--result", whole}).status == 0);
  std::size_t next = 0;  // mode that goes on
  for (const Arguments& mode : kModes) {
    if (mode.size() > 1 && mode[1] == "averaging") continue;  // it has other bits
    const std::string run = folder.path() + "/run" + std::to_string(next);
    const auto ran = train(mode, {"--epochs", "3", "--checkpoint", run, "--checkpoint-every", "4", "--result", late});
    INFO(name_of(mode) << ran.out << ran.err);
    REQUIRE(ran.status == 0);
    CHECK(duet_test::hash_of(late) == duet_test::hash_of(whole));
    CHECK(duet_test::files_in(run, "checkpoint-") ==
          Arguments{"checkpoint-00000016.safetensors", "checkpoint-00000018.safetensors"});
    // This leaves what a kill behind the fourth step of the last epoch leaves.
    REQUIRE(std::remove((run + "/checkpoint-00000018.safetensors").c_str()) == 0);
    const Arguments& other = kModes[++next % 3];
    const auto resumed = train(other, {"--epochs", "3", "--resume", run, "--result", late});
    INFO(name_of(other) << resumed.out << resumed.err);
    REQUIRE(resumed.status == 0);
    CHECK_THAT(resumed.out, duet_test::ContainsSubstring("epoch 3 after step 4 of 6\n"));
    CHECK(duet_test::hash_of(late) == duet_test::hash_of(whole));
  }
}

TEST_CASE("kill -9 at any time leaves a valid newest checkpoint") {
  const TemporaryFolder folder;
  const std::string whole = folder.path() + "/whole", late = folder.path() + "/late", run = folder.path() + "/run";
  REQUIRE(train({}, {"--epochs", "300", "--result", whole}).status == 0);
  std::string newest;
  for (int attempt = 0; attempt < 6; ++attempt) {
    const std::string before = newest;
    int seen = 0;  // checkpoints; the signal comes at whatever the writer does behind the last of them
    const auto some = [&] {
      if (!duet::is_folder(run)) return false;
      Arguments files = duet_test::files_in(run, "checkpoint-0");
      std::erase_if(files, [](const std::string& name) { return !name.ends_with(".safetensors"); });
      if (!files.empty() && files.back() > newest) newest = files.back(), ++seen;
      return seen > 1 + attempt % 3;
    };
    const Arguments more = {"--epochs", "300", "--checkpoint-every", "1", attempt == 0 ? "--checkpoint" : "--resume",
                            run};
    const auto ran = duet_test::duet_interrupted(training({}, more), some, SIGKILL);
    INFO(attempt << " " << newest << "\n" << ran.out << ran.err);
    REQUIRE(ran.status == 128 + SIGKILL);
    CHECK(ran.err.empty());
    CHECK(newest > before);
  }
  const auto last = train({"--mode", "ddp", "--devices", "2"}, {"--epochs", "300", "--resume", run, "--result", late});
  INFO(last.out << last.err);
  REQUIRE(last.status == 0);
  CHECK(last.err.empty());
  CHECK(duet_test::hash_of(late) == duet_test::hash_of(whole));
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
        {"--checkpoint-every is 4, but neither", {{"--checkpoint-every", "4"}, 2}},
        {"but neither --checkpoint nor --resume names a folder",
         {{"--checkpoint-every", "4", "--resume", run + "/checkpoint-00000006.safetensors"}, 2}},
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
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("restart 1: resumes from"));
}
