// Comparisons with failed cells.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compare/results.h"
#include "tests/data/files.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

std::vector<std::string> compare(const std::string& out, const std::string& modes) {
  return {"compare",        "--wide", "--modes",       modes, "--devices", "2",  "--data", "synthetic",
          "--train-images", "333",    "--test-images", "20",  "--batch",   "64", "--out",  out,
          "--model",        "linear", "--time-budget", "0"};
}

/// Injects a fault into all jobs that are started during its lifetime.
class Fault {
 public:
  explicit Fault(const char* fault) { ::setenv("DUET_FAULT", fault, 1); }
  ~Fault() { ::unsetenv("DUET_FAULT"); }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
};

}  // namespace

TEST_CASE("names that hold newlines and escapes are printed on one line, as such") {
  const std::string name = "a\nb\x1b[31m\xc2\x9b\x9b\xe0\x82\x9b\xc3\xa4\xe2\x82\xac",
                    shown = "a\\nb\\x1b[31m\\xc2\\x9b\\x9b\\xe0\\x82\\x9b\xc3\xa4\xe2\x82\xac";
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/tensors",
                    text = R"({"a\nb":{"dtype":"F33","shape":[],"data_offsets":[0,0]}})";
  std::ofstream(file, std::ios::binary) << static_cast<char>(text.size()) << std::string(7, '\0') << text;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"train", "--resume", name}, "no checkpoint at " + shown + ": "},
      {{"train", "--mode", "ddp", "--devices", "2", "--data", name}, shown},
      {{"launch", "-n", "2", "--", std::getenv("DUET_PROGRAM"), "train", "--mode", "ddp", "--data", name}, shown},
      {{"train", "--result", name + "/x"}, "--result " + shown + "/x: "},
      {{"train", "--resume", file}, "a\\nb"},
      {{"train", name}, "a b\\x1b[31m"}};
  for (const auto& [arguments, expected] : cases) {
    const auto ran = duet_test::duet(arguments);
    INFO(ran.err);
    CHECK(ran.status != 0);
    CHECK_THAT(ran.err, duet_test::ContainsSubstring(expected));
    CHECK(ran.err.find('\x1b') == std::string::npos);
    CHECK(ran.err.find("a\nb") == std::string::npos);
  }
}

TEST_CASE("a file of images that is truncated during a training ends it with one line") {
  const TemporaryFolder folder;
  duet_test::write_small_mnist(folder.path(), false);
  const std::string images = folder.path() + "/train-images-idx3-ubyte", progress = folder.path() + "/progress";
  duet_test::write_file(images, duet_test::idx_images(2000));
  duet_test::write_file(folder.path() + "/train-labels-idx1-ubyte", duet_test::idx_labels(2000));
  const auto cut = [&] {
    if (!duet_test::there(progress)) return false;
    std::filesystem::resize_file(images, 16);
    return true;
  };
  const auto ran = duet_test::duet_interrupted({"train", "--data", folder.path(), "--model", "linear", "--batch", "64",
                                                "--epochs", "1000000", "--progress", progress},
                                               cut, 0);
  CHECK(ran.status == 128 + SIGBUS);
  CHECK(ran.err == "duet: " + images +
                       " is mapped into memory and has become shorter, or its disk or memory has failed: signal 7 "
                       "(SIGBUS)\n");
}

TEST_CASE("a comparison names a rank that was killed, and goes on") {
  const TemporaryFolder folder;
  const Fault fault("backward:1:3:9");
  const auto ran = duet_test::duet(compare(folder.path(), "ddp,dp,single"));
  INFO(ran.out << ran.err);
  CHECK(ran.status == 1);
  const Results results = results_from_json(read_file(folder.path() + "/results.json"));
  REQUIRE(results.runs.size() >= 3);
  CHECK(results.runs[0].error == "rank 1 was killed by signal 9 (SIGKILL)");
  for (std::size_t i = 1; i < results.runs.size(); ++i) CHECK(results.runs[i].ok);
  CHECK_THAT(ran.out, duet_test::ContainsSubstring("failed: rank 1 was killed by signal 9 (SIGKILL)"));
}

TEST_CASE("a signal to a comparison keeps the cells that have ended, marked as a part") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    const std::string out = folder.path() + "/report";
    const Fault fault("backward:1:1:19");  // ddp stops, and single before it does not
    ::setenv("TMPDIR", folder.path().c_str(), 1);
    const auto stopped = [&] {
      for (const std::string& name : duet_test::files_in(folder.path(), "duet-"))
        for (const std::string& file : duet_test::files_in(folder.path() + "/" + name))
          if (file.find(".log") != std::string::npos &&
              read_file(folder.path() + "/" + name + "/" + file).find("has been stopped") != std::string::npos)
            return true;
      return false;
    };
    const auto ran = duet_test::duet_interrupted(compare(out, "single,ddp,dp"), stopped, signal);
    ::unsetenv("TMPDIR");
    INFO(ran.out << ran.err);
    CHECK(ran.status == 128 + signal);
    CHECK(duet_test::processes_with(folder.path()) == 0);
    CHECK(duet_test::files_in(folder.path(), "duet-").empty());
    REQUIRE(duet_test::files_in(out) == std::vector<std::string>{"index.html", "results.csv", "results.json"});
    const std::string text = read_file(out + "/results.json");
    CHECK(nlohmann::json::parse(text).at("partial") == true);
    const Results results = results_from_json(text);
    REQUIRE_FALSE(results.runs.empty());
    for (const Run& run : results.runs) CHECK((run.ok && run.mode == "single"));
    const auto partial = duet_test::ContainsSubstring("partial: interrupted, only runs that had ended are listed");
    CHECK_THAT(ran.out, duet_test::ContainsSubstring("\n single ") && partial);
    CHECK_THAT(read_file(out + "/index.html"), partial);
  }
}
