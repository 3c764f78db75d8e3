// Files that a user names for results, and messages of runs without results.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compare/results.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
using duet_test::Arguments;
using duet_test::ContainsSubstring;
using duet_test::lines;
using duet_test::with;

namespace {

const Arguments kTrain = with({"train", "--epochs", "1"}, duet_test::kSmallLinear);
const Arguments kCollective = {"bench", "all_reduce", "-b", "64", "-e", "128", "-n", "2"};

}  // namespace

TEST_CASE("a file that cannot be written is refused before the work, in one line that names its option") {
  const TemporaryFolder folder;
  std::vector<Arguments> commands;
  for (const Arguments& mode : {Arguments{}, {"--mode", "ddp", "--devices", "2"}})
    for (const char* const option : {"--trace", "--result", "--step-times", "--fingerprints", "--progress"})
      commands.push_back(with(with(kTrain, mode), {option}));
  commands.push_back(with(kCollective, {"--json"}));
  commands.push_back({"info", "--json"});
  commands.push_back({"compare", "--data", "synthetic", "--out", folder.path() + "/out", "--json"});
  commands.push_back({"compare", "--data", "synthetic", "--out"});
  for (const Arguments& command : commands) {
    const std::string option = command.back();
    const bool makes_folders = option == "--out";
    for (const std::string& path : {std::string("/no/such/x"), std::string("/proc/x"), folder.path()}) {
      if (makes_folders && path != "/proc/x") continue;
      const auto ran = duet_test::duet(with(command, {path}));
      INFO(command[0] << " " << option << " " << path << "\n" << ran.out << ran.err);
      CHECK(ran.status == 1);
      CHECK(ran.out.empty());
      CHECK_THAT(ran.err, ContainsSubstring(makes_folders ? path : option + " " + path));
      CHECK(lines(ran.err) == 1);
    }
  }
}

TEST_CASE("a result goes into a pipe that is there, and does not replace it") {
  const TemporaryFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  const auto ran = duet_test::duet(with(kTrain, {"--result", pipe}));
  INFO(ran.err);
  CHECK(ran.status == 0);
  struct stat status {};
  REQUIRE(::stat(pipe.c_str(), &status) == 0);
  CHECK(S_ISFIFO(status.st_mode));
  std::string text(65536, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(reader, text.data(), text.size()))));
  ::close(reader);
  REQUIRE_FALSE(text.empty());
  CHECK(duet::cli::run_from_json(text).mode == "single");
}

TEST_CASE("a link to the standard output stays a link, and the result follows the text") {
  const TemporaryFolder folder;
  const std::string link = folder.path() + "/link", target = folder.path() + "/target";
  std::filesystem::create_symlink("/proc/self/fd/1", link);  // as /dev/stdout is
  for (const Arguments& mode : {Arguments{}, {"--mode", "ddp", "--devices", "2"}}) {
    const auto ran = duet_test::duet(with(with(kTrain, mode), {"--result", link}));
    INFO(ran.out << ran.err);
    CHECK(ran.status == 0);
    CHECK(std::filesystem::is_symlink(link));
    CHECK(ran.out.starts_with("network: "));
    CHECK_THAT(ran.out, ContainsSubstring("\n{\"mode\":"));
  }
  std::ofstream(target) << std::string(100'000, 'x');
  std::filesystem::remove(link);
  std::filesystem::create_symlink(target, link);
  REQUIRE(duet_test::duet(with(kTrain, {"--result", link})).status == 0);
  CHECK(std::filesystem::is_symlink(link));
  CHECK(duet::cli::run_from_json(read_file(target)).mode == "single");
}

TEST_CASE("a report does not replace a link in its folder") {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/target", out = folder.path() + "/out";
  std::filesystem::create_directory(out);
  std::ofstream(target) << "old";
  std::filesystem::create_symlink(target, out + "/results.json");
  const auto ran = duet_test::duet({"compare", "--wide", "--modes", "single", "--data", "synthetic", "--train-images",
                                    "128", "--test-images", "20", "--batch", "64", "--model", "linear", "--out", out,
                                    "--time-budget", "0"});
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(std::filesystem::is_symlink(out + "/results.json"));
  CHECK_FALSE(nlohmann::json::parse(read_file(target)).at("runs").empty());
}

TEST_CASE("a file that cannot be written at the end does not prevent the others") {
  for (const Arguments& mode : {Arguments{}, {"--mode", "ddp", "--devices", "2"}}) {
    for (const char* const option : {"--trace", "--fingerprints", "--step-times"}) {
      const TemporaryFolder folder;
      const std::string result = folder.path() + "/result";
      const auto ran = duet_test::duet(with(with(kTrain, mode), {option, "/dev/full", "--result", result}));
      INFO(option << " " << ran.out << ran.err);
      CHECK(ran.status == 1);
      CHECK_THAT(ran.err, ContainsSubstring("cannot write /dev/full: No space left on device"));
      CHECK(duet::cli::run_from_json(read_file(result)).ok);
    }
  }
}

TEST_CASE("files that the disk cannot hold are refused before the training") {
  const TemporaryFolder folder;
  for (const char* const option : {"--step-times", "--fingerprints"}) {
    const auto ran = duet_test::duet(with(
        kTrain, {"--train-images", "60000", "--batch", "1", "--epochs", "2000000000", option, folder.path() + "/x"}));
    INFO(ran.out << ran.err);
    CHECK(ran.status == 1);
    CHECK(ran.out.empty());
    CHECK_THAT(ran.err, ContainsSubstring(std::string(option) + " " + folder.path() + "/x: needs about "));
  }
}

TEST_CASE("the option --json means the same of every command: a file, or the standard output alone") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/json";
  const Arguments compare = {
      "compare",       "--wide",    "--modes",        "single", "--devices", "1",
      "--data",        "synthetic", "--train-images", "333",    "--batch",   "64",
      "--model",       "linear",    "--test-images",  "20",     "--out",     folder.path() + "/out",
      "--time-budget", "1"};
  const std::vector<std::pair<Arguments, const char*>> commands = {
      {compare, "runs"}, {kCollective, "rows"}, {{"info"}, "devices"}};
  for (const auto& [command, field] : commands) {
    INFO(command[0] << " " << field);
    const auto to_file = duet_test::duet(with(command, {"--json", file}));
    CHECK(to_file.status == 0);
    CHECK_FALSE(nlohmann::json::parse(read_file(file)).at(field).empty());
    const std::string start = nlohmann::json::parse(read_file(file)).at("duet");
    CHECK_THAT(to_file.out, ContainsSubstring(command[0] == "bench" ? "\n" : "duet " + start));
    for (const Arguments& option : {Arguments{"--json", "-"}, Arguments{"--json"}}) {
      const auto to_stdout = duet_test::duet(with(command, option));
      INFO(to_stdout.out << to_stdout.err);
      CHECK(to_stdout.status == 0);
      CHECK_FALSE(nlohmann::json::parse(to_stdout.out, nullptr, false).is_discarded());
    }
  }
}

TEST_CASE("info lists the devices") {
  const auto ran = duet_test::duet({"info", "--json"});
  const auto info = nlohmann::json::parse(ran.out);
  REQUIRE(info.at("devices").size() >= info.at("cores").get<std::size_t>());
  CHECK(info.at("devices").at(0).at("device") == "cpu:0");
  CHECK_FALSE(info.at("devices").at(0).at("name").get<std::string>().empty());
  std::set<std::string> libraries;
  for (const auto& library : info.at("libraries")) {
    libraries.insert(library.at("name").get<std::string>());
    CHECK_FALSE(library.at("version").get<std::string>().empty());  // or why it is not there
  }
  for (const char* name : {"LibTorch", "libjpeg", "libpng"}) CHECK(libraries.count(name) == 1);
  CHECK(info.at("sockets").is_number_unsigned());
  CHECK(info.at("caches").is_array());
  CHECK_FALSE(info.at("build").get<std::string>().empty());
}

TEST_CASE("a loss that is not finite is reported once, with a hint") {
  for (const Arguments& mode : {Arguments{}, {"--mode", "ddp", "--devices", "2"}, {"--mode", "dp", "--devices", "2"}}) {
    const auto ran =
        duet_test::duet(with(with(kTrain, mode), {"--model", "simple_cnn", "--lr", "1e30", "--epochs", "3"}));
    INFO(ran.out << ran.err);
    CHECK(ran.status == 0);
    CHECK_THAT(ran.out, ContainsSubstring("loss nan"));
    CHECK_THAT(ran.err, ContainsSubstring("the loss is nan") && ContainsSubstring("--check-finite"));
    CHECK_THAT(ran.err, ContainsSubstring("warning: --lr is 1e+30"));
    std::istringstream all(duet_test::without_warnings(ran.err));
    int reports = 0;  // without remarks that a rank waits, as on a busy machine
    for (std::string line; std::getline(all, line);)
      reports += line.find(" has waited ") == std::string::npos && line.find(" continues after ") == std::string::npos;
    CHECK(reports == 1);
  }
  CHECK(duet_test::duet(kTrain).err.empty());
}

TEST_CASE("a run of one step reports that there is nothing to time, in place of zeros") {
  const std::string nothing = "one step an epoch: nothing to time";
  const TemporaryFolder folder;
  const auto train = duet_test::duet(with(kTrain, {"--batch", "400"}));
  CHECK_THAT(train.out, ContainsSubstring(nothing) && !ContainsSubstring("samples/s"));
  const auto compare = duet_test::duet(
      {"compare",        "--wide",      "--modes",       "single,dp", "--devices", "2",   "--data",  "synthetic",
       "--train-images", "64",          "--test-images", "20",        "--batch",   "128", "--model", "linear",
       "--out",          folder.path(), "--time-budget", "1"});
  INFO(compare.out);
  CHECK(compare.status == 0);
  CHECK_THAT(compare.out, ContainsSubstring(nothing) && !ContainsSubstring("0.000 s") && !ContainsSubstring("0.0 %"));
  CHECK_THAT(compare.err, ContainsSubstring("single 1: loss "));
}

TEST_CASE("bench all_reduce ends with the average bus bandwidth, as nccl-tests do") {
  const auto ran = duet_test::duet(with(kCollective, {"--algorithm", "library,chunked_ring"}));
  INFO(ran.out);
  CHECK_THAT(ran.out, ContainsSubstring("# Avg bus bandwidth    : ") && ContainsSubstring("        min") &&
                          ContainsSubstring("        max"));
  const std::size_t first = ran.out.find("# Avg bus bandwidth");
  CHECK(ran.out.find("# Avg bus bandwidth", first + 1) != std::string::npos);  // of every algorithm
}

TEST_CASE("launch passes the job's name, given or generated, to its ranks") {
  const Arguments print = {"--", "sh", "-c", "echo run=$TORCHELASTIC_RUN_ID"};
  CHECK(duet_test::duet(with({"launch", "--rdzv_id", "my-job"}, print)).out == "run=my-job\n");
  CHECK_THAT(duet_test::duet(with({"launch"}, print)).out, ContainsSubstring("run=duet-"));
}
