#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cli/unlikely.h"
#include "lib/monotonic.h"
#include "tests/support/catch2.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

using namespace duet::cli;
using duet::listed;
using duet::python_float;

TEST_CASE("a terminal gets colours and a rewritten line, anything else plain text") {
  CHECK(terminal_style(true, false, nullptr, "xterm") == TerminalStyle{true, true});
  CHECK(terminal_style(true, false, "", "xterm") == TerminalStyle{true, true});
  CHECK(terminal_style(true, false, "1", "xterm") == TerminalStyle{false, true});
  CHECK(terminal_style(true, false, nullptr, "dumb") == TerminalStyle{});
  CHECK(terminal_style(true, false, nullptr, nullptr) == TerminalStyle{});
  CHECK(terminal_style(true, true, nullptr, "xterm") == TerminalStyle{});
  CHECK(terminal_style(false, false, nullptr, "xterm") == TerminalStyle{});
}

TEST_CASE("progress goes through a pipe and comes back") {
  const Progress sent{
      .epoch = 1, .epochs = 2, .step = 312, .steps = 469, .loss = 0.3125, .samples_per_s = 48900.5, .left_s = 3.2};
  Progress got;
  REQUIRE(from_line(to_line(sent), got));
  CHECK(got.epoch == 1);
  CHECK(got.epochs == 2);
  CHECK(got.step == 312);
  CHECK(got.steps == 469);
  CHECK(got.loss == 0.3125);
  CHECK(got.samples_per_s == 48900.5);
  CHECK(got.left_s == 3.2);
  CHECK_FALSE(from_line("Rank  0 , epoch  0 :  0.4", got));
  Progress lost = sent;
  lost.loss = std::nan("");
  REQUIRE(from_line(to_line(lost), got));
  CHECK(std::isnan(got.loss));
  CHECK(progress_text("ddp 2", sent) ==
        " ddp 2 ▕█████████████       ▏ epoch 1/2  312/469  loss 0.312  48.9k samples/s  ETA 4 s");
}

TEST_CASE("numbers as people read them") {
  CHECK(duet::grouped(0) == "0");
  CHECK(duet::grouped(999) == "999");
  CHECK(duet::grouped(60000) == "60,000");
  CHECK(duet::grouped(-1234567) == "-1,234,567");
  CHECK(seconds(0.1834) == "0.183");
  CHECK(seconds(5.868) == "5.87");
  CHECK(seconds(123.9) == "124");
  CHECK(listed({}) == "");
  CHECK(listed({"1"}) == "1");
  CHECK(listed({"1", "2", "4"}) == "1, 2 and 4");
  CHECK(listed({"1", "2", "4", "8"}, "and", 2) == "1, 2 and 2 more");
  CHECK(width("▕█▏") == 3);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
  CHECK(shortest(0.1) == "0.1");
}

TEST_CASE("floats print as Python prints them") {
  CHECK(python_float(0.43) == "0.43");
  CHECK(python_float(1.0) == "1.0");
  CHECK(python_float(0.0) == "0.0");
  CHECK(python_float(0.0001) == "0.0001");
  CHECK(python_float(0.00001) == "1e-05");
  CHECK(python_float(1e15) == "1000000000000000.0");
  CHECK(python_float(1e16) == "1e+16");
  CHECK(python_float(1.0 / 3) == "0.3333333333333333");
  CHECK(python_float(std::nan("")) == "nan");
}

TEST_CASE("text without UTF-8 is ASCII of the same width, but for paths") {
  for (const std::string text :
       {"a · b", "a ·\nb ·…", "1.79x ±0.02", "1,217 us ±692", " ▕██  ▏ epoch", "cut…", "cut… b"}) {
    INFO(text);
    const std::string plain = ascii(text);
    CHECK(plain.size() == width(text));
    CHECK(std::all_of(plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  }
  CHECK(ascii("duet · 1.79x ±0.02") == "duet - 1.79x+-0.02");
  for (const std::string path : {"/tmp/über/a·b…c/±.so", "/tmp/zwei  Leerzeichen", "\xff/latin1"}) {
    CHECK(ascii("report " + path + "/index.html") == "report " + path + "/index.html");
    CHECK(wrapped("report " + path, 80, 2) == std::vector{"  report " + path});
  }
}

TEST_CASE("the first locale that is set decides on UTF-8") {
  struct Case {
    const char *lc_all, *lc_ctype, *lang;
    bool utf8;
  };
  for (const Case& one : {Case{nullptr, nullptr, nullptr, false}, Case{"C", nullptr, "en_US.UTF-8", false},
                          Case{nullptr, nullptr, "en_US.UTF-8", true}, Case{"", "C.utf8", "C", true},
                          Case{"POSIX", "C.UTF-8", "C.UTF-8", false}, Case{nullptr, "de_DE.ISO-8859-1", "C", false}})
    CHECK(takes_utf8(one.lc_all, one.lc_ctype, one.lang) == one.utf8);
}

TEST_CASE("progress fits the terminal, and goes to a pipe in lines") {
  const Progress progress{
      .epoch = 1, .epochs = 2, .step = 312, .steps = 469, .loss = 0.3125, .samples_per_s = 48900.5, .left_s = 3.2};
  for (const int columns : {10, 20, 30, 40, 60, 80, 100}) {
    INFO(columns);
    CHECK(width(progress_text("ddp 2", progress, columns)) <= static_cast<std::size_t>(columns));
  }
  CHECK(progress_text("ddp 2", progress, 30) == " ddp 2  312/469  ETA 4 s");
  for (const auto& [every, expected] :
       {std::pair{duet::Clock::duration(1),
                  std::string("ddp 2 epoch 1/2  312/469  loss 0.312  48.9k samples/s  ETA 4 s\n")},
        std::pair{duet::Clock::duration(std::chrono::hours(1)), std::string()},
        std::pair{duet::Clock::duration(), std::string()}}) {
    std::FILE* const file = std::tmpfile();
    ProgressLine(file, {}, every).show("ddp 2", progress);
    std::rewind(file);
    char text[200] = {};
    const std::size_t size = std::fread(text, 1, sizeof text, file);
    std::fclose(file);
    CHECK(std::string(text, size) == expected);
  }
}

TEST_CASE("settings that are hardly meant are warned of") {
  struct Case {
    int devices, threads, loaders;
    double lr;
    std::string said;
  };
  for (const Case& one :
       {Case{2, 1, 2, 10, ""}, Case{100, 1, 0, 0.01, "100 devices share 2 cores: this measures overhead, not scaling"},
        Case{1, 8, 0, 0.01, "8 threads of 1 device share 2 cores: this measures overhead, not scaling"},
        Case{1, 1, 50, 0.01, "--loader-workers is 50, but there are 2 cores: more threads don't load faster"},
        Case{1, 1, 0, 50, "--lr is 50: with steps that large few networks learn"}}) {
    TrainOptions options;
    options.threads_per_device = one.threads;
    options.loader_workers = one.loaders;
    options.lr = one.lr;
    const std::vector<std::string> expected = one.said.empty() ? std::vector<std::string>() : std::vector{one.said};
    CHECK(unlikely_settings(options, one.devices, 2) == expected);
  }
}
