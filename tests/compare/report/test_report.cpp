#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "lib/error.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/system/display.h"
#include "train/system/files.h"

using namespace duet::cli;

TEST_CASE("the table in a pipe") {
  const char* const expected =
      R"( mode               devices    start                epoch  samples/s     speed-up      efficiency  waiting               moving    loss  accuracy      memory  same result
 single                   1  0.250 s  8.00 s (7.92..8.08)      7,500        1.00x           100 %        -                    -  0.3125   97.12 %      120 MB  -
 single, all cores        1  0.250 s  4.40 s (4.36..4.44)     13,636  1.82x ±0.01            91 %        -                    -  0.3125   97.12 %      120 MB  yes
 averaging                2  0.250 s  5.00 s (4.95..5.05)     12,000  1.60x ±0.01            80 %        -   4.7 % with waiting  0.3125   97.12 %      120 MB  own data split
 dp                       2  0.250 s  4.20 s (4.16..4.24)     14,286  1.90x ±0.02            95 %        -                1.1 %  0.3125   97.12 %      120 MB  yes
 ddp                      2  0.250 s  5.00 s (4.95..5.05)     12,000  1.60x ±0.01            80 %        -  14.1 % with waiting  0.3125   97.12 %  2 x 120 MB  yes
 ddp                      4  0.250 s  6.00 s (5.94..6.06)     10,000  1.33x ±0.01  oversubscribed        -  23.4 % with waiting  0.3125   97.12 %  4 x 120 MB  no: differs from step 17
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
  CHECK(to_html(results, "", 1).find(kPartial) == std::string::npos);
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
  std::string page = to_html(duet_test::made_up(), "duet compare --lr 0.05", 3);
  if (const std::string library = page_file("chart.js"); !library.empty()) {
    REQUIRE(page.find(library) != std::string::npos);
    page.erase(page.find(library), library.size());  // its notice names its site
  }
  for (const char* bad : {"http:", "https:", "src=", "<link", "@import", "url(", "{{"}) {
    INFO(bad);
    CHECK(page.find(bad) == std::string::npos);
  }
  for (const char* part :
       {"<h1>", "Findings", "What was run", "duet compare --lr 0.05", "<dt>versions</dt><dd>oneDNN ", " UTC</dd>",
        "seed 1234", "prefers-color-scheme: dark", "@media print", "Example &lt;CPU&gt;", "failed: replica 3",
        "oversubscribed", "single, all cores", "time budget 3 s"}) {
    INFO(part);
    CHECK_THAT(page, duet_test::ContainsSubstring(part));
  }
}

TEST_CASE("the verdict heads the page, beside speed-ups and losses; all else folds out") {
  const Results results = duet_test::made_up_with_copies();
  const std::string page = to_html(results, "", 1), heading = "<h1>" + escaped(answer(results)) + "</h1>";
  CHECK_THAT(page, duet_test::ContainsSubstring(heading));
  const std::size_t folded = page.find("<details");
  CHECK(page.find("<table") > folded);
  CHECK(page.find("<summary>Findings</summary>") > folded);
  if (page_file("chart.js").empty()) {
    CHECK_THAT(page, duet_test::ContainsSubstring("libjs-chart.js") && !duet_test::ContainsSubstring("<figure"));
    return;
  }
  CHECK(page.find("data-chart=\"speedups\"") < folded);
  CHECK(page.find("data-chart=\"losses\"") < folded);
  CHECK(page.find("<noscript><svg role=\"img\" viewBox=") < folded);
  for (const char* id : {"parts", "epochs", "memory-process", "loss"}) {
    INFO(id);
    CHECK(page.find(duet::concat("data-chart=\"", id, "\"")) > folded);
  }
}

TEST_CASE("no text of a comparison ends the script that holds it") {
  Results results = duet_test::made_up();
  results.settings.data = "</script><!--<script";
  const std::string page = to_html(results, "", 1);
  CHECK(page.find("</script><!") == std::string::npos);
  CHECK(page.find("<!--<script") == std::string::npos);
  CHECK_THAT(page, duet_test::ContainsSubstring("\\u003c/script>\\u003c!--\\u003cscript"));
}

TEST_CASE("every colour that the page uses is defined") {
  const std::string style = page_file("report.css"), use = "var(--";
  const auto defined = [&](const std::string& colour) {
    return style.find(" --" + colour + ": #") != std::string::npos;
  };
  for (std::size_t at = style.find(use); at != std::string::npos; at = style.find(use, at + 1)) {
    const std::size_t begin = at + use.size();
    const std::string colour = style.substr(begin, style.find(')', begin) - begin);
    INFO(colour);
    CHECK((colour == "rows" || defined(colour)));
  }
  const Results results = duet_test::made_up();
  for (const Chart& chart : {speedup_chart(results), overhead_chart(results), epoch_chart(results),
                             parts_chart(results), loss_chart(results)})
    for (const ChartSeries& series : chart.series) {
      INFO(chart.id << ": " << series.name);
      CHECK(defined(series.colour));
    }
}

TEST_CASE("pictures of nothing are left out") {
  const Results nothing;
  for (const Chart& chart : {speedup_chart(nothing), overhead_chart(nothing), epoch_chart(nothing),
                             parts_chart(nothing), step_chart(nothing), loss_chart(nothing), memory_chart(nothing)})
    CHECK(chart.empty());
  CHECK(to_html(nothing, "", 1).find("<figure") == std::string::npos);
  Results gpus = duet_test::made_up();
  CHECK(device_memory_chart(gpus).empty());
  gpus.runs[3].device_memory_mb = {210.5, 300};
  const Chart memory = device_memory_chart(gpus);
  CHECK(memory.rows == std::vector<std::string>{"dp 2"});
  CHECK(memory.series.at(0).points.at(0).high == 300);
  CHECK_THAT(memory.series[0].points[0].tip, duet_test::ContainsSubstring("1: 300 MB"));
}

TEST_CASE("the page has machine, network and batch under its headline, and speed-ups beside the modes") {
  Results results = duet_test::made_up();
  const std::string page = to_html(results, "", 1);
  const std::size_t setting = page.find("<p class=\"note\">" + escaped(setting_line(results)) + " · 20");
  REQUIRE(setting != std::string::npos);
  CHECK(setting > page.find("</h1>"));
  CHECK(setting < page.find("class=\"first\""));
  CHECK_THAT(page, duet_test::ContainsSubstring("<th>mode</th><th>speed-up</th><th>devices</th>"));
  CHECK_THAT(page, duet_test::ContainsSubstring("<td>dp</td><td>1.90x\u00a0±0.02</td><td>2</td>"));
  for (Run& run : results.runs) run.rounds_us.clear();  // so that no part is known well enough to be drawn
  const std::string plain = to_html(results, "", 1);
  CHECK_THAT(plain, duet_test::ContainsSubstring("<p><b>Why not ideal</b></p>\n<p class=\"note\">"));
}

TEST_CASE("a picture as SVG has its bars, and all values in words") {
  Chart chart = speedup_chart(duet_test::made_up());
  chart.series[0].points[0].low = -0.1;
  const std::string svg = to_svg(chart);
  CHECK_THAT(svg, duet_test::ContainsSubstring(">0</text>") && !duet_test::ContainsSubstring(">-0</text>"));
  CHECK(svg.starts_with("<svg xmlns="));
  CHECK(svg.ends_with("</svg>\n"));
  for (const std::string& text : {chart.title, alternative_text(chart), std::string("dp 2")})
    CHECK_THAT(svg, duet_test::ContainsSubstring(">" + escaped(text) + "</"));
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& point : series.points) {
      CHECK_THAT(svg, duet_test::ContainsSubstring("<title>" + escaped(point.tip) + "</title></rect>"));
      CHECK_THAT(alternative_text(chart), duet_test::ContainsSubstring(point.tip));
    }
  CHECK(svg.find("nan") == std::string::npos);
  CHECK_THROWS_AS(to_svg(Chart{}), duet::DataError);
}

TEST_CASE("texts of a picture as SVG lie within it, and beside each other") {
  Results results = duet_test::made_up();
  for (const char* const mode : {"torch ddp over duet", "torch ddp tuned", "LibTorch averaged"}) {
    results.runs.push_back(results.runs[3]);
    results.runs.back().mode = mode;
  }
  Chart chart = speedup_chart(results);
  for (const ChartSeries& series : chart.series)
    CHECK(series.colour == (series.name.find("orch") == std::string::npos ? series.colour : "torch"));
  for (int word = 0; word < 100; ++word) chart.caption += " word";
  const std::string svg = to_svg(chart);
  CHECK_THAT(svg, duet_test::ContainsSubstring(">Bars are ") && duet_test::ContainsSubstring(" word</text>\n</svg>"));
  double right = 0, below = 0;
  REQUIRE(std::sscanf(svg.substr(svg.find("viewBox")).c_str(), "viewBox=\"0 0 %lf %lf", &right, &below) == 2);
  std::map<double, double> ends;  // of the texts in each line
  for (std::size_t at = svg.find("<text"); at != std::string::npos; at = svg.find("<text", at + 1)) {
    double x = 0, y = 0;
    char anchor[8] = {};
    REQUIRE(std::sscanf(svg.c_str() + at, "<text x=\"%lf\" y=\"%lf\" text-anchor=\"%7[a-z]", &x, &y, anchor) == 3);
    const std::size_t begin = svg.find('>', at) + 1;
    const double wide = 7.0 * static_cast<double>(svg.find('<', begin) - begin);
    const double left = std::string(anchor) == "end" ? x - wide : std::string(anchor) == "start" ? x : x - wide / 2;
    INFO(svg.substr(at, 120));
    CHECK((left >= ends[y] && left + wide < right && y < below));
    ends[y] = left + wide;
  }
}

TEST_CASE("the parts of a step are listed, on any width") {
  const Results results = duet_test::made_up();
  const std::string wide = parts_text(results, kAnyWidth);
  CHECK_THAT(wide, duet_test::ContainsSubstring("\n part ") && duet_test::ContainsSubstring("\n forward ") &&
                       duet_test::ContainsSubstring("\n smaller batch ") && duet_test::ContainsSubstring("\n step "));
  CHECK(wide.starts_with("Parts of a step"));
  Results busy = results;
  busy.partial = true;
  for (Run& run : busy.runs) run.rounds_other_programs.assign(run.rounds_us.size(), 0.5);
  const std::string warned = parts_text(busy, 30);
  CHECK(warned.starts_with(wrapped_text(answer(busy), 30) + wrapped_text(kPartial, 30) + "\n"));
  std::istringstream lines(warned + parts_text(results, 30));
  for (std::string line; std::getline(lines, line);) CHECK(width(line) <= 30);
  CHECK(parts_text(Results{}, 80) == "No step was timed.\n");
}

// tests/compare/report/pages.py has a browser draw it.
TEST_CASE("a page for a browser", "[.page]") {
  const char* const file = std::getenv("DUET_PAGE");
  REQUIRE(file != nullptr);
  Results results = duet_test::made_up_with_copies();
  results.runs[0].median_step = {{"cpu:0", "forward", 0, 40}, {"cpu:0", "backward", 40, 100}};
  for (const std::size_t i : {std::size_t{3}, std::size_t{4}})
    results.runs[i].median_step = results.runs[0].median_step;
  results.settings.data = "</script><!--<script><script>throw 1</script>";
  results.model = duet_test::fitting_model();
  write_output(file, to_html(results, "duet compare", 1));
}
