// The pictures of a report as data: what is drawn is what results.json holds.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "compare/report/evidence.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/measure/statistics.h"

using namespace duet::cli;
using duet_test::Approx;

namespace {

const ChartSeries& series(const Chart& chart, const std::string& name) {
  const auto found =
      std::find_if(chart.series.begin(), chart.series.end(), [&](const ChartSeries& one) { return one.name == name; });
  REQUIRE(found != chart.series.end());
  return *found;
}

/// What is wrong with a picture: places outside of it, bars from right to left, series of one name.
std::vector<std::string> faults_of(const Chart& chart) {
  std::vector<std::string> faults;
  std::set<std::string> names;
  for (const ChartSeries& one : chart.series) {
    if (!names.insert(one.name).second) faults.push_back(one.name + " is there twice");
    for (const ChartPoint& point : one.points) {
      if (!chart.rows.empty() && !(point.at >= 0 && point.at < static_cast<double>(chart.rows.size())))
        faults.push_back(point.tip + " has no row");
      if (!(point.low <= point.high)) faults.push_back(point.tip + " ends before it begins");
      if (point.tip.empty()) faults.push_back(one.name + " has a point that says nothing");
      if (chart.log_x && point.at <= 0) faults.push_back(point.tip + " has no logarithm");
    }
  }
  return faults;
}

/// Draws of a generator that are the same with every standard library.
class Draws {
 public:
  explicit Draws(std::uint32_t seed) : generator_(seed) {}
  /// 0 to n - 1.
  int below(int n) { return static_cast<int>(generator_() % static_cast<std::uint32_t>(n)); }
  bool one_of(int n) { return below(n) == 0; }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(generator_()) / 4294967295.0;
  }

 private:
  std::mt19937 generator_;
};

Run drawn_run(Draws& draw, const std::string& mode, int devices, double scale) {
  Run run;
  run.mode = mode;
  run.devices = devices;
  run.backend = mode == "ddp" && devices > 1 ? "shm" : "";
  const double epoch = scale * (draw.one_of(3) ? 1 : draw.between(0.2, 2));
  for (int i = draw.below(4); i >= 0; --i) run.epoch_s.push_back(epoch * draw.between(1, draw.one_of(4) ? 3 : 1.02));
  run.samples_per_s = 1;
  for (const PartName& part : kStepParts)
    if (!draw.one_of(3)) run.step_us.*part.member = draw.between(1, 1e4 * scale);
  if (draw.one_of(2)) run.step_waiting_us = StepParts{.communication = run.step_us.communication / 2};
  const double last = draw.one_of(2) ? 0.3125 : draw.between(0, 2);
  run.train_loss = {2.3, 1.5, last};
  for (int i = mode == "ddp" ? devices : 1; i > 0; --i) run.peak_memory_mb.push_back(draw.between(50, 5000));
  for (int i = 0; i < devices; ++i) {
    const std::string lane = mode == "ddp" ? "rank " + std::to_string(i) : "cpu:" + std::to_string(i);
    run.median_step.push_back({lane, "forward", draw.between(0, 10), draw.between(50, 9000)});
    if (mode == "ddp") run.median_step.push_back({lane + ", communication", "all_reduce", 20, 500});
  }
  return run;
}

Results drawn_results(std::uint32_t seed) {
  Draws draw(seed);
  Results results = duet_test::made_up();
  results.runs.clear();
  results.settings.epochs = 1 + draw.below(40);
  const double scale = draw.one_of(3) ? draw.between(0.001, 0.1) : draw.between(1, 1000);
  std::vector<int> counts;
  for (int devices = 1; devices <= 16; ++devices)
    if (draw.one_of(3) || devices == 2) counts.push_back(devices);
  for (const std::string mode : {"single", "averaging", "dp", "ddp"}) {
    for (const int devices : mode == "single" ? std::vector<int>{1} : counts) {
      if (draw.one_of(6)) continue;
      results.runs.push_back(drawn_run(draw, mode, devices, scale));
      if (mode == "ddp" && draw.one_of(3)) {
        results.runs.push_back(results.runs.back());
        results.runs.back().backend = "gloo";
      }
    }
  }
  return results;
}

/// Relative luminance of "#rrggbb", as WCAG defines it.
double luminance(const std::string& colour) {
  double sum = 0;
  const double weights[] = {0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += weights[i] * (value <= 0.03928 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4));
  }
  return sum;
}

double contrast(const std::string& a, const std::string& b) {
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

/// The colours of the style sheet from `begin` on, by name.
std::map<std::string, std::string> colours_from(const std::string& style, const std::string& begin) {
  std::map<std::string, std::string> colours;
  const std::size_t from = style.find(begin), to = style.find('}', from);
  REQUIRE(from != std::string::npos);
  for (std::size_t at = style.find(" --", from); at < to; at = style.find(" --", at + 1)) {
    const std::size_t colon = style.find(": #", at);
    colours[style.substr(at + 3, colon - at - 3)] = style.substr(colon + 2, 7);
  }
  return colours;
}

}  // namespace

TEST_CASE("a picture of any comparison has all its points in its rows") {
  using Faults = std::vector<std::string>;
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    Results results = drawn_results(seed);
    results.weak = seed % 4 == 0;
    INFO("seed " << seed);
    for (const Chart& chart : {speedup_chart(results), overhead_chart(results), epoch_chart(results),
                               loss_chart(results), parts_chart(results), step_chart(results), memory_chart(results)})
      CHECK(faults_of(chart) == Faults{});
  }
}

TEST_CASE("the bars of speed-ups are the intervals of results.json") {
  Results results = duet_test::made_up();
  results.runs.push_back(results.runs[3]);
  results.runs.back().mode = "copies";
  results.runs.back().speedup = 1.97;
  const Chart chart = speedup_chart(results);
  CHECK(chart.rows == std::vector<std::string>{"single, all cores", "averaging 2", "dp 2", "ddp 2", "ddp 4"});
  const ChartPoint& dp = series(chart, "dp").points.at(0);
  CHECK(dp.at == 2);
  CHECK(dp.low == *results.runs[3].speedup_low);
  CHECK(dp.high == *results.runs[3].speedup_high);
  CHECK(dp.tip == "dp 2: 1.90x, " + times_range({1.90, dp.low, dp.high}));
  CHECK(series(chart, "ideal").points.size() == 3);  // ddp 4 shares cores
  CHECK(series(chart, "ideal").points[0].value == 2);
  CHECK(series(chart, "what copies reach").points.at(0).value == 1.97);
  CHECK(series(chart, "median").points.at(2).value == *results.runs[3].speedup);
}

TEST_CASE("the bars of a step's parts follow each other and end at its time") {
  const Results results = duet_test::made_up();
  const Chart chart = parts_chart(results);
  std::map<double, double> ends, sums;
  for (const ChartSeries& one : chart.series)
    for (const ChartPoint& point : one.points) {
      ends[point.at] = std::max(ends[point.at], point.high);
      sums[point.at] += point.high - point.low;
    }
  REQUIRE(ends.size() == 6);  // one run failed
  for (std::size_t row = 0; row < 6; ++row) {
    CHECK(ends[static_cast<double>(row)] == Approx(results.runs[row].step_us.sum()));
    CHECK(sums[static_cast<double>(row)] == Approx(results.runs[row].step_us.sum()));
  }
}

TEST_CASE("a block within another of its lane is drawn in its place") {
  Results results = duet_test::made_up();
  results.runs[0].median_step = {{"cpu:0", "backward", 0, 100}, {"cpu:0", "waiting", 20, 50}};
  const Chart chart = step_chart(results);
  REQUIRE(chart.rows == std::vector<std::string>{"single, cpu:0"});
  const std::vector<ChartPoint>& backward = series(chart, "backward").points;
  REQUIRE(backward.size() == 2);
  CHECK(backward[0].low == 0);
  CHECK(backward[0].high == 20);
  CHECK(backward[1].low == 50);
  CHECK(backward[1].high == 100);
  CHECK(backward[1].tip == "single, cpu:0: backward 100 us");
  CHECK(series(chart, "waiting").points.size() == 1);
}

TEST_CASE("epochs run from the fastest to the slowest, and the ideal is single's over the devices") {
  const Chart chart = epoch_chart(duet_test::made_up());
  const ChartPoint& dp = series(chart, "dp").points.at(0);
  CHECK(dp.at == 2);
  CHECK(dp.value == Approx(4.2));
  CHECK(dp.low == Approx(4.2 * 0.99));
  CHECK(dp.high == Approx(4.2 * 1.01));
  CHECK(series(chart, "ideal").points.at(2).value == Approx(2));  // on 4
}

TEST_CASE("letters and lines stand out from the page, light and dark") {
  const std::string style = page_file("report.css");
  for (const char* const theme : {":root {", "prefers-color-scheme: dark"}) {
    const auto colours = colours_from(style, theme);
    for (const char* const letters :
         {"ink", "soft", "bad", "good", "single", "averaging", "dp", "ddp", "copies", "ideal"}) {
      INFO(theme << ": " << letters << " " << colours.at(letters) << " on " << colours.at("page"));
      CHECK(contrast(colours.at(letters), colours.at("page")) >= 4.5);
    }
    for (const PartName& part : kStepParts) {
      INFO(theme << ": " << part.name << " " << colours.at(part.name) << " on " << colours.at("page"));
      CHECK(contrast(colours.at(part.name), colours.at("page")) >= 2.5);
    }
    CHECK(contrast(colours.at(kWaiting), colours.at("page")) >= 2.5);
  }
}

TEST_CASE("a page that is printed is light") {
  const std::string style = page_file("report.css");
  CHECK(style.find("prefers-color-scheme: dark") == style.find("screen and (prefers-color-scheme: dark") + 12);
  CHECK(style.find("prefers-color-scheme", style.find("prefers-color-scheme") + 1) == std::string::npos);
}
