// Progress output, with a terminal and without.
#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/threads.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

using Arguments = std::vector<std::string>;

std::vector<std::string> small(std::vector<std::string> arguments, const std::string& model = "linear") {
  arguments.insert(arguments.end(), {"--data", "synthetic", "--train-images", "333", "--test-images", "20", "--batch",
                                     "64", "--model", model});
  return arguments;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("every mode shows its progress in a terminal, and whole lines for its epochs") {
  if (!duet_test::has_terminals()) DUET_SKIP("no pseudo-terminals can be made here");
  for (const Arguments& mode :
       {Arguments{"--mode", "single"}, Arguments{"--mode", "dp", "--devices", "2"},
        Arguments{"--mode", "ddp", "--devices", "2"}, Arguments{"--mode", "averaging", "--devices", "2"},
        Arguments{"--mode", "ddp", "--devices", "2", "--workers", "thread"}}) {
    Arguments arguments = small({"train", "--epochs", "2"});
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    const auto ran = duet_test::duet_in_terminal(arguments);
    INFO(ran.out);
    CHECK(ran.status == 0);
    CHECK(holds(ran.out, " " + mode[1] + (mode[1] == "single" ? " 1" : " 2") + " ▕"));
    CHECK(holds(ran.out, "▏ epoch 1/2"));
    for (const std::string epoch : {"epoch 1/2  loss ", "epoch 2/2  loss "}) {
      const std::size_t at = ran.out.find(epoch);
      REQUIRE(at != std::string::npos);
      CHECK((ran.out[at - 1] == '\n' || ran.out[at - 1] == 'K'));  // on a line of its own, or a line that was cleared
    }
    CHECK_FALSE(holds(ran.out, "progress 1"));
    arguments.push_back("--quiet");
    CHECK_FALSE(holds(duet_test::duet_in_terminal(arguments).out, "▕"));
  }
}

TEST_CASE("a narrow terminal of a locale without UTF-8 has whole progress lines of ASCII") {
  if (!duet_test::has_terminals()) DUET_SKIP("no pseudo-terminals can be made here");
  for (const char* mode : {"dp", "ddp"}) {
    const auto ran =
        duet_test::duet_in_terminal(small({"train", "--epochs", "1", "--mode", mode, "--devices", "2"}), "C", 30);
    INFO(ran.out);
    CHECK(ran.status == 0);
    CHECK(std::all_of(ran.out.begin(), ran.out.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
    const std::string begin = "\x1b[K";
    std::size_t lines = 0;
    for (std::size_t at = ran.out.find(begin); at != std::string::npos; at = ran.out.find(begin, at + 1)) {
      const std::size_t from = at + begin.size(), end = std::min(ran.out.find('\r', from), ran.out.size());
      if (ran.out[from] != ' ') continue;  // a line of results follows
      CHECK(end - from <= 30);
      ++lines;
    }
    CHECK(lines > 0);
  }
}

TEST_CASE("an error of a rank follows the progress line in a terminal, on a line of its own") {
  if (!duet_test::has_terminals()) DUET_SKIP("no pseudo-terminals can be made here");
  const auto ran = duet_test::duet_in_terminal(
      small({"train", "--mode", "ddp", "--devices", "2", "--lr", "1e30", "--check-finite"}, "simple_cnn"));
  INFO(ran.out);
  CHECK(ran.status == 1);
  const std::size_t at = ran.out.find("rank 0 ended with exit code 1");
  const std::size_t other = ran.out.find("rank 1 ended with exit code 1");
  REQUIRE(std::min(at, other) != std::string::npos);
  const char before = ran.out[std::min(at, other) - 1];
  CHECK((before == '\n' || before == 'K'));
}

TEST_CASE("a comparison without a terminal prints a line for every cell that has ended") {
  const TemporaryFolder folder;
  const std::vector<std::string> arguments =
      small({"compare", "--wide", "--modes", "single,dp,ddp", "--devices", "2", "--backend", "shm,gloo", "--out",
             folder.path(), "--time-budget", "0.5"});
  const auto ran = duet_test::duet(arguments);
  INFO(ran.out << ran.err);
  const bool several = duet::usable_cores() > 1;
  const std::string all = several ? "/14] " : "/9] ";
  CHECK(holds(ran.err, "[1" + all + "single 1: "));
  if (several) CHECK(holds(ran.err, "\n[2" + all + "single, all cores: "));
  CHECK(holds(ran.err, all + "dp 2: "));
  CHECK(holds(ran.err, all + "ddp 2: "));
  CHECK(holds(ran.err, all + "ddp 2, gloo: "));
  CHECK(holds(ran.err, all + "copies 2: ready\n"));
  CHECK(holds(ran.err, all + "single, batch 32: ready\n"));
  if (several) CHECK(holds(ran.err, all + "all-reduces, 2, gloo: ready\n"));
  if (several) CHECK(holds(ran.err, all + "dp 2, batch 16: ready\n"));
  CHECK(holds(ran.err, "\nround "));
  CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == (several ? 15 : 10));
  auto quiet = arguments;
  quiet.push_back("--quiet");
  CHECK(duet_test::duet(quiet).err.empty());
}

TEST_CASE("a comparison in a terminal prints no lines for its cells") {
  if (!duet_test::has_terminals()) DUET_SKIP("no pseudo-terminals can be made here");
  const TemporaryFolder folder;
  const auto ran = duet_test::duet_in_terminal(small(
      {"compare", "--wide", "--modes", "single,dp", "--devices", "2", "--out", folder.path(), "--time-budget", "0.5"}));
  INFO(ran.out);
  CHECK(ran.status == 0);
  CHECK_FALSE(holds(ran.out, "/4] single 1: "));
  CHECK_FALSE(holds(ran.out, "/3] single 1: "));
  CHECK(holds(ran.out, "round 1"));
}
