// --config: options from a file, behind those of the command line.
#include <string>
#include <variant>
#include <vector>

#include "lib/error.h"
#include "tests/support/catch2.h"
#include "train/options/options.h"
#include "train/system/files.h"

using namespace duet;
using namespace duet::cli;
using duet_test::ContainsSubstring;

namespace {

struct Config {
  explicit Config(const std::string& lines) { write_output(path, lines); }
  TemporaryFolder folder;
  std::string path = folder.path() + "/settings.toml";
};

/// What is said of such a file after "PATH: ".
std::string complaint_of_file(const std::string& lines, std::vector<std::string> arguments = {"train"}) {
  const Config config(lines);
  arguments.insert(arguments.end(), {"--config", config.path});
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    const std::string text = error.what(), place = config.path + ": ";
    return text.starts_with(place) ? text.substr(place.size()) : "not of the file: " + text;
  }
  return "";
}

}  // namespace

TEST_CASE("a file gives options, and the command line wins") {
  const Config config(
      "# a comment\nmode = \"ddp\"\ndevices = 2\nlr = 0.05  # another\nquiet = true\nverbose = false\n"
      "data = \"my folder/of = images\"\nseed=7\n");
  const auto train = std::get<TrainOptions>(parse({"train", "--lr", "0.5", "--config", config.path, "--seed=8"}));
  CHECK(train.mode == Mode::ddp);
  CHECK(train.devices == 2);
  CHECK(train.lr == 0.5);
  CHECK(train.seed == 8);
  CHECK(train.quiet);
  CHECK_FALSE(train.verbose);
  CHECK(train.data == "my folder/of = images");
  CHECK(train.epochs == 10);
  CHECK_FALSE(std::get<TrainOptions>(parse({"train", "--config=" + config.path, "--quiet=false"})).quiet);
}

TEST_CASE("every command that computes takes a file") {
  const Config compare("modes = [\"dp\", \"ddp\"]\ndevices = 1..4\nbatch = 32\nbackend = \"shm,tcp\"\n");
  const auto compared = std::get<CompareOptions>(parse({"compare", "--config", compare.path, "--batch", "128"}));
  CHECK(compared.modes == std::vector<Mode>{Mode::dp, Mode::ddp});
  CHECK(compared.devices == std::vector<int>{1, 2, 4});
  CHECK(compared.batch == 128);
  CHECK(compared.backends == std::vector<std::string>{"shm", "tcp"});
  CHECK(compared.config == compare.path);

  const Config bench("min-bytes = 1K\nalgorithm = naive_ring\n");
  const auto timed = std::get<CollectiveOptions>(parse({"bench", "all_reduce", "-e", "2K", "--config", bench.path}));
  CHECK(timed.min_bytes == 1024);
  CHECK(timed.max_bytes == 2048);
  CHECK(timed.algorithms == std::vector<std::string>{"naive_ring"});

  const Config predict("link = \"ndr\"\nhosts = \"1..4\"\n");
  CHECK(std::get<PredictOptions>(parse({"predict", "r", "--config", predict.path})).hosts == std::vector<int>{1, 2, 4});

  const Config launch("nproc = 3\nmax_restarts = 2\nno-pin = true\n");
  const auto launched = std::get<LaunchOptions>(
      parse({"launch", "--config", launch.path, "-n", "2", "--", "program", "--config", "its own"}));
  CHECK(launched.job.ranks == 2);
  CHECK(launched.job.max_restarts == 2);
  CHECK(launched.no_pin);
  CHECK(launched.job.command == std::vector<std::string>{"program", "--config", "its own"});
}

TEST_CASE("an error of a file names it and the key") {
  CHECK(complaint_of_file("lrr = 1\n") == "unknown key 'lrr', did you mean lr?");
  CHECK_THAT(complaint_of_file("devices = 2\n", {"predict", "r", "--lines"}),
             ContainsSubstring("not of the file: ") && ContainsSubstring("--lines, did you mean --links? (see duet"));
  CHECK(complaint_of_file("epochs = 3\n", {"bench", "broadcast"}) == "unknown key 'epochs'");
  CHECK(complaint_of_file("bursts = here\n") == "unknown key 'bursts'");
  CHECK(complaint_of_file("config = here\n") == "unknown key 'config'");
  CHECK(complaint_of_file("help = true\n") == "unknown key 'help'");
  CHECK(complaint_of_file("command = program\n", {"launch"}) == "unknown key 'command'");
  CHECK(complaint_of_file("lr = -1\n") == "--lr is -1, expected 0 or more (see duet train --help)");
  CHECK(complaint_of_file("mode = dpp\n") ==
        "--mode: unknown 'dpp', expected single, averaging, dp or ddp (see duet train --help)");
  CHECK(complaint_of_file("lr = \n") == "--lr is '', expected 0 or more (see duet train --help)");
  CHECK(complaint_of_file("quiet = 3\n") == "quiet is 3, expected true or false");
  CHECK(complaint_of_file("[train]\nlr = 1\n") == "section [train], expected lines KEY = VALUE alone");
  CHECK_THROWS_WITH(parse({"train", "--config", "/nowhere.toml"}),
                    ContainsSubstring("--config: cannot read /nowhere.toml: No such file"));
  CHECK_THROWS_WITH(parse({"train", "--config", "/tmp"}), ContainsSubstring("--config: cannot read /tmp: "));
}
