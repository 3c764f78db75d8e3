// What a folder that is given away does not tell, and when it can be made.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/share.h"
#include "lib/error.h"
#include "lib/io/folder.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/system/files.h"

using namespace duet;
using namespace duet::cli;
using duet_test::ContainsSubstring;

namespace {

const PrivateNames kNames = {.paths = {{"jobs/run 7/net.so", "net.so"}, {"/home/alice b", "~"}},
                             .words = {{"node7.example.org", "HOST"}, {"node7", "HOST"}, {"alice", "USER"}}};

CompareOptions options_of(const std::string& folder) {
  CompareOptions options;
  options.share = folder;
  options.model = folder + "/private/net.so";
  return options;
}

/// made_up() with texts that name where it ran.
Results telling(const std::string& folder) {
  Results results = duet_test::made_up();
  results.settings.model = folder + "/private/net.so";
  results.runs.back().error = "cannot read " + folder + "/private/data/train: No such file";
  results.torch_notes = {"torch by /opt/alice/bin/python3, 12 GB/s"};
  results.model_notes = {"left out on 4 devices"};
  results.runs[0].median_step = {{"cpu:0", "forward", 0, 1}};
  return results;
}

Machine machine() {
  Machine machine = duet_test::made_up().machine;
  machine.cores = 1;
  return machine;
}

}  // namespace

TEST_CASE("what is given away names neither user, host nor folders") {
  const auto changed = [](const std::string& text) { return without(kNames, text); };
  CHECK(changed("compare --data /home/alice b/mnist --share r") == "compare --data mnist --share r");
  CHECK(changed("compare --model=jobs/run 7/net.so") == "compare --model=net.so");
  CHECK(changed("jobs/run 7/net.so/weights/a: damaged, old-jobs/run 7/net.so2") ==
        "a: damaged, old-jobs/run 7/net.so2");
  CHECK(changed("-I/home/alice b/include, /home/alice bc") == "-I/~/include, USER bc");
  CHECK(changed("'/srv/x y/z'") == "'x y/z'");  // a path that no option names ends at the space
  CHECK(changed("~/a/b.json: field 'x' is missing") == "b.json: field 'x' is missing");
  CHECK(changed("cannot read ../alice/data: No such file") == "cannot read data: No such file");
  CHECK(changed("at node7.example.org, node7, node70 and my-node7") == "at HOST, HOST, node70 and my-HOST");
  CHECK(changed("/scratch/alice") == "USER");
  CHECK(changed("malice, alice_2, alice") == "malice, alice_2, USER");
  CHECK(changed("/home/alice b") == "~");
  CHECK(changed("12 GB/s, AVX-512/AMX, 100 % / 2 and /") == "12 GB/s, AVX-512/AMX, 100 % / 2 and /");
  CHECK(changed("/tmp/run/") == "run");
  CHECK(changed("").empty());
}

TEST_CASE("the names of this user and host, and the paths of options, are private") {
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  CompareOptions options;
  options.data = "my data/of alice/mnist/";
  options.vs_torch = "python3";
  const PrivateNames names = private_names(options);
  CHECK(without(names, "on " + std::string(host.data())) == "on HOST");
  CHECK(without(names, "my data/of alice/mnist/: 3 files") == "mnist: 3 files");
  CHECK(without(names, "python3") == "python3");
}

TEST_CASE("a share is one folder, without what tells who made it") {
  const TemporaryFolder folder;
  const std::string parent = folder.path() + "/new", place = parent + "/run1";
  require_new_folder(place);
  share(options_of(place), telling(place), machine(), "duet compare --model " + place + "/private/net.so");
  std::vector<std::string> names = list_folder(place);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"command.txt", "index.html", "info.json", "results.json"});
  CHECK(list_folder(parent) == std::vector<std::string>{"run1"});
  CHECK(read_file(place + "/command.txt") == "duet compare --model net.so\n");
  const Results read = read_results(place + "/results.json");
  CHECK(read.settings.model == "net.so");
  CHECK(read.runs.back().error == "cannot read train: No such file");
  CHECK(read.torch_notes == std::vector<std::string>{"torch by python3, 12 GB/s"});
  CHECK(read.runs[3].rounds_us == telling(place).runs[3].rounds_us);
  for (const std::string& name : names) {
    INFO(name);
    CHECK_THAT(read_file(place + "/" + name), !ContainsSubstring(folder.path()) && !ContainsSubstring("private"));
  }
  CHECK_THAT(read_file(place + "/index.html"), ContainsSubstring("duet compare --model net.so"));
  const auto info = nlohmann::json::parse(read_file(place + "/info.json"));
  for (const char* const field :
       {"duet", "build", "cpu", "cores", "sockets", "caches", "memory_gb", "kernel", "gpus", "libraries"}) {
    INFO(field);
    CHECK(info.contains(field));
  }
}

TEST_CASE("a share that cannot be made is refused, and what is there stays") {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/run/";
  require_new_folder(place);
  std::filesystem::create_directory(place);
  require_new_folder(place);
  write_output(place + "notes", "mine");
  write_output(place + "other", "mine, too");
  const std::string expected = "--share " + place + ": holds notes, expected a new or an empty folder";
  CHECK_THROWS_WITH(require_new_folder(place), expected);
  CHECK_THROWS_WITH(share(options_of(place), duet_test::made_up(), machine(), "duet compare"),
                    ContainsSubstring("--share " + place + ": cannot be made: Directory not empty"));
  CHECK(read_file(place + "notes") == "mine");
  CHECK(list_folder(folder.path()).size() == 2);
  CHECK_THROWS_WITH(require_new_folder(place + "notes"), ContainsSubstring("is no folder, expected a new or an empty"));
  CHECK_THROWS_WITH(require_new_folder("/proc/x"), ContainsSubstring("--share /proc/x: "));
  std::filesystem::remove_all(place);
  std::filesystem::create_directory(place);
  std::filesystem::create_symlink(folder.path() + "/run", folder.path() + "/link");
  share(options_of(folder.path() + "/link"), duet_test::made_up(), machine(), "duet compare");
  CHECK_FALSE(read_file(place + "results.json").empty());
}
