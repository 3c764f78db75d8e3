#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "cli/report/report.h"
#include "cli/report/svg.h"
#include "tests/cli/made_up.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

TEST_CASE("the table in a pipe") {
  const char* const expected =
      R"( mode               devices    start                epoch  samples/s     speed-up      efficiency  waiting               moving    loss  accuracy      memory  same result
 single                   1  0.250 s  8.00 s (7.92..8.08)      7,500        1.00x           100 %        -                    -  0.3125   97.12 %      120 MB  -
 single, all cores        1  0.250 s  4.40 s (4.36..4.44)     13,636  1.82x ±0.01            91 %        -                    -  0.3125   97.12 %      120 MB  yes
 averaging                2  0.250 s  5.00 s (4.95..5.05)     12,000  1.60x ±0.01            80 %        -   4.7 % with waiting  0.3125   97.12 %      120 MB  own data split
 dp                       2  0.250 s  4.20 s (4.16..4.24)     14,286  1.91x ±0.02            95 %        -                1.1 %  0.3125   97.12 %      120 MB  yes
 ddp                      2  0.250 s  5.00 s (4.95..5.05)     12,000  1.60x ±0.01            80 %        -  14.1 % with waiting  0.3125   97.12 %  2 x 120 MB  yes
 ddp                      4  0.250 s  6.00 s (5.94..6.06)     10,000  1.33x ±0.01  oversubscribed        -  23.5 % with waiting  0.3125   97.12 %  4 x 120 MB  no: differs from step 17
 dp                       4  failed: replica 3 on cpu:3: out of memory
)";
  CHECK(table(duet_test::made_up(), {}) == expected);
}

TEST_CASE("losses on a GPU are close to single's only where both are finite") {
  constexpr double kInfinite = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const auto same_result = [](double single, double other) {
    Results results = duet_test::made_up();
    for (Run& run : results.runs) run.device = "cuda";
    results.runs[0].train_loss.back() = single;
    results.runs[5].train_loss.back() = other;
    return table_row(results, results.runs[5]).back();
  };
  CHECK(same_result(0.3125, 0.3126) == "loss within 0.1 %");
  CHECK(same_result(0.3125, 0.3325) == "no");
  for (const double bad : {kInfinite, -kInfinite, kNan}) {
    CHECK(same_result(bad, 0.3125) == "no");
    CHECK(same_result(0.3125, bad) == "no");
    CHECK(same_result(bad, bad) == "no");
  }
}

TEST_CASE("a part of a comparison is marked as one") {
  Results results = duet_test::made_up();
  CHECK(table(results, {}).find("partial") == std::string::npos);
  CHECK_THAT(to_json(results), duet_test::ContainsSubstring("\"partial\": false"));
  CHECK(to_html(results, "", 1).find("partial") == std::string::npos);
  results.partial = true;
  CHECK_THAT(to_json(results), duet_test::ContainsSubstring("\"partial\": true"));
  CHECK_THAT(table(results, {}), duet_test::ContainsSubstring(std::string("\n ") + kPartial + "\n"));
  CHECK_THAT(to_html(results, "", 1), duet_test::ContainsSubstring(kPartial));
}

TEST_CASE("few samples a second have a decimal") {
  Results results = duet_test::made_up();
  results.runs[0].samples_per_s = 4.609;
  CHECK_THAT(table(results, {}), duet_test::ContainsSubstring("  4.6  "));
}

TEST_CASE("a run of which nothing was timed has no numbers in place of times") {
  Results results = duet_test::made_up();
  for (Run& run : results.runs) {
    run.epoch_s.clear();
    run.samples_per_s = run.waiting_share = 0;
    run.step_us = {};
  }
  compare_with_single(results);
  CHECK(table_row(results, results.runs[3]) == std::vector<std::string>{"dp", "2", "0.250 s", "-", "-", "-", "-", "-",
                                                                        "-", "0.3125", "97.12 %", "120 MB", "yes"});
  CHECK(findings(results).at(0) == "one step an epoch: nothing to time (batch 128, 60,000 training images).");
}

TEST_CASE("a loss that is not finite is named, with a hint") {
  Results results = duet_test::made_up();
  results.runs[0].train_loss.back() = results.runs[3].train_loss.back() = std::nan("");
  CHECK(findings(results).at(0) ==
        "The loss of single 1 and dp 2 is not finite: --check-finite ends a training where that begins and says where "
        "it arose.");
}

TEST_CASE("colours are escape sequences, only where they are enabled") {
  const std::string plain = table(duet_test::made_up(), {});
  const std::string coloured = table(duet_test::made_up(), {.colour = true, .rewrite = true});
  CHECK(plain.find('\x1b') == std::string::npos);
  CHECK_THAT(coloured, duet_test::ContainsSubstring("\x1b[32myes\x1b[0m"));
}

TEST_CASE("a comparison of graphs with plain steps says so") {
  Results results = duet_test::made_up();
  results.runs[0].graph = true;
  const auto list = findings(results);
  CHECK(std::any_of(list.begin(), list.end(), [](const std::string& s) { return s.find("marked graph") != s.npos; }));
  CHECK(table_row(results, results.runs[0])[0] == "single, graph");
}

TEST_CASE("a row whose ranks were threads says so") {
  Results results = duet_test::made_up();
  for (Run& run : results.runs)
    if (run.mode == "ddp") run.workers = "thread";
  CHECK(table(results, {}).find("ddp, threads") != std::string::npos);
}

TEST_CASE("rows name what carried the ranks' collectives where they differ in it") {
  Results results = duet_test::made_up();
  for (Run& run : results.runs)
    if (run.mode == "ddp" && run.devices > 1) run.backend = "shm";
  CHECK(table(results, {}).find("ddp, shm") == std::string::npos);
  Run over_gloo = *find_run(results, "ddp", 2);
  over_gloo.backend = "gloo";
  results.runs.push_back(over_gloo);
  CHECK(table(results, {}).find("ddp, shm") != std::string::npos);
  CHECK(table(results, {}).find("ddp, gloo") != std::string::npos);
}

TEST_CASE("the page is one file that needs no network and holds every part") {
  const std::string page = to_html(duet_test::made_up(), "duet compare --lr 0.05", 3);
  for (const char* bad : {"http:", "https:", "src=", "<link", "<script", "@import", "url("}) {
    INFO(bad);
    CHECK(page.find(bad) == std::string::npos);
  }
  for (const char* part :
       {"<h1>", "Findings", "Time of an epoch against devices", "Where a step", "Memory of every process",
        "Training loss", "What was run", "duet compare --lr 0.05", "<dt>versions</dt><dd>oneDNN ", " UTC</dd>",
        "seed 1234", "prefers-color-scheme: dark", "@media print", "Example &lt;CPU&gt;", "failed: replica 3",
        "oversubscribed", "curve ideal", "single, all cores", "time budget 3 s"}) {
    INFO(part);
    CHECK_THAT(page, duet_test::ContainsSubstring(part));
  }
}

TEST_CASE("every colour that the page uses is defined") {
  const std::string page = to_html(duet_test::made_up(), "", 1);
  const std::string use = "var(--";
  for (std::size_t at = page.find(use); at != std::string::npos; at = page.find(use, at + 1)) {
    const std::size_t begin = at + use.size();
    const std::string colour = page.substr(begin, page.find(')', begin) - begin);
    INFO(colour);
    CHECK(page.find(" --" + colour + ": #") != std::string::npos);
  }
}

TEST_CASE("pictures of nothing are left out") {
  const Results nothing;
  CHECK(epoch_chart(nothing).empty());
  CHECK(parts_chart(nothing).empty());
  CHECK(loss_chart(nothing).empty());
  CHECK(memory_chart(nothing).empty());
  Results gpus = duet_test::made_up();
  CHECK(device_memory_chart(gpus).empty());
  gpus.runs[3].device_memory_mb = {210.5, 300};
  CHECK_THAT(device_memory_chart(gpus), duet_test::ContainsSubstring("dp 2, device 1: 300 MB"));
  CHECK(ticks(0, 5) == std::vector<double>{0, 1});
  CHECK(ticks(7.3, 5) == std::vector<double>{0, 2, 4, 6, 8});
}
