#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

std::vector<std::string> train(const std::vector<std::string>& more, const std::string& images = "333") {
  std::vector<std::string> arguments = {"train", "--data", "synthetic", "--train-images", images, "--test-images",
                                        "200",   "--lr",   "0.05",      "--batch",        "64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

const char* const kLarge = "6000";  // images
constexpr int kStepsOfLarge = 94;   // in an epoch of them

/// How many epochs there are to the end of that in which a training of kLarge images was interrupted. In the first one
/// it leaves one checkpoint and nothing else; where the signal comes late, there are those of whole epochs besides.
std::string epochs_begun(const std::string& kept) {
  const auto checkpoints = duet_test::files_in(kept, "checkpoint-");
  REQUIRE_FALSE(checkpoints.empty());
  const int step = std::stoi(checkpoints.back().substr(std::string("checkpoint-").size()));
  if (step < kStepsOfLarge) CHECK(duet_test::files_in(kept) == std::vector<std::string>{checkpoints.back()});
  return std::to_string(step / kStepsOfLarge + 1);
}

}  // namespace

TEST_CASE("any number of devices ends with one device's parameters and loss curve, over every backend") {
  const TemporaryFolder folder;
  const auto result_of = [&](const std::vector<std::string>& more) {
    const std::string result = folder.path() + "/r";
    std::vector<std::string> arguments = train({"--epochs", "1", "--result", result, "--blocks", "16"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto ran = duet_test::duet(arguments);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return run_from_json(read_file(result));
  };
  const Run single = result_of({});
  CHECK(single.blocks == 16);
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--mode", "dp", "--devices", "3"},
                                               {"--mode", "dp", "--devices", "7"},
                                               {"--mode", "ddp", "--devices", "3"},
                                               {"--mode", "ddp", "--devices", "5", "--backend", "tcp"},
                                               {"--mode", "ddp", "--devices", "4", "--backend", "gloo"},
                                               {"--mode", "ddp", "--devices", "6", "--workers", "thread"},
                                               {"--mode", "ddp", "--devices", "12"},
                                               {"--mode", "dp", "--devices", "3", "--loss", "in_replica"}}) {
    const Run run = result_of(more);
    INFO(more[1] << " " << more[3]);
    CHECK(run.parameters_sha256 == single.parameters_sha256);
    CHECK(run.train_loss == single.train_loss);
    CHECK(run.test_accuracy == single.test_accuracy);
  }
}

TEST_CASE("a training keeps the blocks of its batches on another number of devices, and no other ones") {
  const TemporaryFolder folder;
  const std::string whole = folder.path() + "/whole", resumed = folder.path() + "/resumed", kept = folder.path() + "/c";
  REQUIRE(duet_test::duet(train({"--epochs", "2", "--result", whole, "--blocks", "16"})).status == 0);
  REQUIRE(duet_test::duet(train({"--epochs", "1", "--checkpoint", kept, "--blocks", "16"})).status == 0);
  CHECK_FALSE(duet_test::files_in(kept, "model_best").empty());
  const auto on_three = [&](const std::string& option, const std::string& value) {
    return duet_test::duet(
        train({"--mode", "ddp", "--devices", "3", "--epochs", "2", "--resume", kept, option, value}));
  };
  const auto other = on_three("--blocks", "32");
  CHECK(other.status == 1);
  CHECK(other.err.find("is of a run with 16 blocks, this run has --blocks 32") != std::string::npos);
  REQUIRE(on_three("--result", resumed).status == 0);
  CHECK(duet_test::hash_of(resumed) == duet_test::hash_of(whole));
  const auto many = duet_test::duet(train({"--mode", "dp", "--devices", "9", "--epochs", "1", "--blocks", "8"}));
  CHECK(many.status == 0);
  CHECK(many.err.find("9 devices share out the rows of 8 blocks: results equal one device's to rounding only") !=
        std::string::npos);
}

TEST_CASE("--check-finite ends a training that overflows, and names the place") {
  for (const std::vector<std::string>& mode :
       {std::vector<std::string>{}, {"--mode", "dp", "--devices", "2"}, {"--mode", "ddp", "--devices", "2"}}) {
    std::vector<std::string> arguments = train({"--lr", "1e30"});
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    CHECK(duet_test::duet(arguments).status == 0);
    arguments.push_back("--check-finite");
    const auto ran = duet_test::duet(arguments);
    INFO(ran.err);
    CHECK(ran.status != 0);
    CHECK(ran.err.find("step 2: ") != std::string::npos);
    CHECK(ran.err.find("is not finite") != std::string::npos);
  }
  CHECK(duet_test::duet(train({"--check-finite"})).status == 0);
}

TEST_CASE("a signal ends the step, keeps a checkpoint, and training goes on from there") {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR2, SIGXCPU}) {
    const TemporaryFolder folder;
    const std::string kept = folder.path() + "/c", progress = folder.path() + "/progress";
    const auto ran = duet_test::duet_interrupted(
        train({"--epochs", "5000", "--checkpoint", kept, "--progress", progress}, kLarge), progress, signal);
    INFO(ran.err);
    CHECK(ran.status == 128 + signal);
    CHECK_THAT(ran.err, duet_test::ContainsSubstring("checkpoint: " + kept + "/checkpoint-") &&
                            duet_test::ContainsSubstring("repeat the command with --resume " + kept));
    const std::string epochs = epochs_begun(kept);
    CHECK(duet_test::processes_with(folder.path()) == 0);
    if (signal != SIGINT) continue;
    const std::string whole = folder.path() + "/whole", resumed = folder.path() + "/resumed";
    REQUIRE(duet_test::duet(train({"--epochs", epochs, "--result", whole}, kLarge)).status == 0);
    REQUIRE(duet_test::duet(train({"--epochs", epochs, "--resume", kept, "--result", resumed}, kLarge)).status == 0);
    CHECK(duet_test::hash_of(resumed) == duet_test::hash_of(whole));
  }
}

TEST_CASE("ranks that are threads end with the bits of one device, and are one process") {
  const TemporaryFolder folder;
  const std::string alone = folder.path() + "/alone", ranks = folder.path() + "/ranks", file = folder.path() + "/trace";
  REQUIRE(duet_test::duet(train({"--epochs", "1", "--result", alone})).status == 0);
  for (const char* const backend : {"auto", "memory"}) {
    const auto ran = duet_test::duet(train({"--epochs", "1", "--mode", "ddp", "--workers", "thread", "--devices", "4",
                                            "--backend", backend, "--result", ranks, "--trace", file}));
    INFO(backend << ": " << ran.err);
    REQUIRE(ran.status == 0);
    CHECK(duet_test::hash_of(ranks) == duet_test::hash_of(alone));
    const Run run = run_from_json(read_file(ranks));
    CHECK(run.workers == "thread");
    CHECK(run.peak_memory_mb.size() == 1);
    for (const std::string name : {"\"rank 3\"", "\"cpu:3\"", "\"step 5\""})
      CHECK_THAT(read_file(file), duet_test::ContainsSubstring(name));
  }
}

TEST_CASE("a signal ends ranks after the same step, and they go on from there") {
  const std::vector<std::pair<int, std::vector<std::string>>> jobs = {
      {SIGINT, {"--mode", "ddp", "--workers", "thread"}},
      {SIGINT, {"--mode", "ddp", "--backend", "shm"}},
      {SIGTERM, {"--mode", "ddp", "--backend", "gloo"}},
      {SIGUSR1, {"--mode", "averaging"}}};
  for (const auto& [signal, mode] : jobs) {
    const TemporaryFolder folder;
    const std::string kept = folder.path() + "/c", progress = folder.path() + "/progress";
    const std::string whole = folder.path() + "/whole", resumed = folder.path() + "/resumed";
    const auto of_two = [&mode = mode](std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), mode.begin(), mode.end());
      arguments.insert(arguments.end(), {"--devices", "2"});
      return train(arguments, kLarge);
    };
    const auto ran = duet_test::duet_interrupted(
        of_two({"--epochs", "5000", "--checkpoint", kept, "--progress", progress}), progress, signal);
    INFO(mode[1] << " " << mode.back() << "\n" << ran.err);
    CHECK(ran.status == 128 + signal);
    CHECK(duet_test::processes_with(folder.path()) == 0);
    const std::string epochs = epochs_begun(kept);
    const bool averaged = mode[1] == "averaging";
    if (!averaged && mode.back() != "shm") continue;  // the same checkpoint
    REQUIRE(duet_test::duet(averaged ? of_two({"--epochs", epochs, "--result", whole})
                                     : train({"--epochs", epochs, "--result", whole}, kLarge))
                .status == 0);
    REQUIRE(duet_test::duet(of_two({"--epochs", epochs, "--resume", kept, "--result", resumed})).status == 0);
    CHECK(duet_test::hash_of(resumed) == duet_test::hash_of(whole));
  }
}

TEST_CASE("an error of a rank that is a thread is one line that names it, with a failed rank's exit code") {
  const auto ran = duet_test::duet(
      train({"--mode", "ddp", "--workers", "thread", "--devices", "2", "--check-finite", "--lr", "1e30"}));
  CHECK(ran.status == 1);
  const std::string error = duet_test::without_warnings(ran.err);  // of the rate
  CHECK(error.starts_with("duet: rank "));
  CHECK_THAT(error, duet_test::ContainsSubstring(": step 2: "));
  CHECK(duet_test::lines(error) == 1);
}

TEST_CASE("a trace shows every step of all ranks and replicas") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/trace";
  const auto count = [&](const std::string& text) {
    const std::string trace = read_file(file);
    int found = 0;
    for (std::size_t at = 0; (at = trace.find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  for (const char* const mode : {"dp", "ddp", "averaging"}) {
    INFO(mode);
    REQUIRE(
        duet_test::duet(train({"--epochs", "1", "--mode", mode, "--devices", "2", "--trace", file}, "320")).status ==
        0);
    const bool dp = std::string(mode) == "dp";
    CHECK(count("\"step 4\"") == (dp ? 1 : 2));  // five steps of 64 images
    CHECK(count("\"process_name\"") == (dp ? 1 : 2));
    CHECK(count("\"update\"") == (dp ? 5 : 10));
    CHECK(count("\"replicate\"") >= (dp ? 5 : 0));
    CHECK(count("\"all_reduce\"") >= (dp ? 0 : 10));
    CHECK(count("\"cpu:1\"") == (dp ? 1 : 0));
  }
}

TEST_CASE("a checkpoint of another run is refused") {
  const TemporaryFolder folder;
  REQUIRE(duet_test::duet(train({"--epochs", "1", "--checkpoint", folder.path() + "/c"})).status == 0);
  const auto model = duet_test::duet(train({"--epochs", "2", "--model", "linear", "--resume", folder.path() + "/c"}));
  CHECK(model.status == 1);
  CHECK_THAT(model.err, duet_test::ContainsSubstring("is of the model \"SimpleCNN\", expected \"LinearClassifier\""));
  const auto seed = duet_test::duet(train({"--epochs", "2", "--seed", "5", "--resume", folder.path() + "/c"}));
  CHECK(seed.status == 1);
  CHECK_THAT(seed.err, duet_test::ContainsSubstring("is of a run with seed 1234, this run has 5"));
  const auto images = duet_test::duet(train({"--epochs", "2", "--resume", folder.path() + "/c"}, "334"));
  CHECK(images.status == 1);
  CHECK_THAT(images.err, duet_test::ContainsSubstring("is of a run with train_images 333, this run has 334"));
}

TEST_CASE("ranks are started by duet launch too, and share the work") {
  const TemporaryFolder folder;
  const char* program = std::getenv("DUET_PROGRAM");
  REQUIRE(program);
  const std::string alone = folder.path() + "/alone", launched = folder.path() + "/launched";
  REQUIRE(duet_test::duet(train({"--epochs", "1", "--result", alone})).status == 0);
  std::vector<std::string> arguments = {"launch", "-n", "2", "--", program};
  for (const std::string& argument : train({"--mode", "ddp", "--epochs", "1", "--result", launched}))
    arguments.push_back(argument);
  const auto ran = duet_test::duet(arguments);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(duet_test::hash_of(launched) == duet_test::hash_of(alone));
  CHECK(run_from_json(read_file(launched)).devices == 2);
}

TEST_CASE("the averaging mode prints the tutorial's lines") {
  const auto ran = duet_test::duet(train({"--mode", "averaging", "--epochs", "1"}));
  INFO(ran.out << ran.err);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("\nRank  0 , epoch  0 :  2."));
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("\nTotal execution time for 1 CPU device: "));
}

TEST_CASE("bench all_reduce starts its own ranks, prints every size, and writes JSON") {
  const TemporaryFolder folder;
  const std::string json = folder.path() + "/rows.json";
  const duet_test::Ran ran = duet_test::duet({"bench", "all_reduce", "--devices", "3", "-e", "32", "-n", "2",
                                              "--algorithm", "library,chunked_ring", "--json", json});
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("# all_reduce among 3 ranks over shm, algorithm chunked_ring") &&
                          duet_test::ContainsSubstring("busbw") && duet_test::ContainsSubstring("# wrong elements: 0"));
  CHECK_THAT(read_file(json), duet_test::ContainsSubstring("\"size_bytes\": 32"));
}

TEST_CASE("a training loads no library that it does not use") {
  ::setenv("LD_DEBUG", "files", 1);
  std::vector<duet_test::Ran> runs;
  for (const char* backend : {"shm", "gloo"})
    runs.push_back(duet_test::duet(train({"--epochs", "1", "--mode", "ddp", "--devices", "2", "--backend", backend})));
  ::unsetenv("LD_DEBUG");
  REQUIRE(runs[0].status == 0);
  CHECK_THAT(runs[0].err, duet_test::ContainsSubstring("libdnnl"));
  for (const char* library : {"libcurl", "libduet_gloo", "libduet_cuda", "libduet_nccl", "libcuda", "libmpi"}) {
    INFO(library);
    CHECK(runs[0].err.find(library) == std::string::npos);
  }
  // That the list would show one, where Gloo was built.
  if (runs[1].status == 0) CHECK_THAT(runs[1].err, duet_test::ContainsSubstring("libduet_gloo"));
}

TEST_CASE("ranks that were started with different options refuse to train") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/file";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--seed \"$RANK\"", "--seed is 1 on rank 1, --seed is 0 on rank 0"},
      {"$(test $RANK = 0 || echo --trace " + file + ")", "--trace is given on rank 1, --trace is not given on rank 0"},
      {"$(test $RANK = 1 || echo --result " + file + ")",
       "--result is not given on rank 1, --result is given on rank 0"}};
  for (const auto& [words, difference] : cases) {
    std::vector<std::string> arguments = {"launch", "--nproc-per-node", "2", "sh", "-c"};
    arguments.push_back("exec \"$0\" \"$@\" " + words);
    arguments.emplace_back(std::getenv("DUET_PROGRAM"));
    for (const std::string& argument : train({"--epochs", "1", "--mode", "ddp"})) arguments.push_back(argument);
    const auto ran = duet_test::duet(arguments);
    INFO(ran.err);
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, duet_test::ContainsSubstring("the ranks disagree: " + difference));
    CHECK(ran.out.find("epoch") == std::string::npos);
  }
}
