// From single's step divided by the devices to the step as it is, loss by loss.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/bar_charts.h"
#include "cli/report/losses.h"
#include "cli/report/svg.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr double kTop = 6, kRow = 24, kGap = 14, kHeight = 16, kAxis = 30;
constexpr double kNoteworthy = 0.05;  // of a step, unexplained

/// The part of a step whose colour a loss has, and its words.
struct Shown {
  const char *name, *colour, *words;
};
constexpr Shown kShown[] = {{"ideal", "forward", "ideal: single / devices"},
                            {"smaller_batch", "loss", "smaller batch"},
                            {"machine", "backward", "machine: devices side by side"},
                            {"uneven", "waiting", "uneven: waiting for the last"},
                            {"communication", "communication", "communication that nothing hides"},
                            {"wrapper", "scatter", "wrapper"},
                            {"unexplained", "input", "unexplained"}};

const Shown& shown(const char* name) {
  return *std::find_if(std::begin(kShown), std::end(kShown),
                       [&](const Shown& each) { return std::strcmp(each.name, name) == 0; });
}

struct Row {
  std::string name, value, colour;
  double from = 0, to = 0;
};

/// The bars of a run: each begins where the one before it ends; then the whole step.
std::vector<Row> rows_of(const Results& results, const Run& run) {
  const Losses losses = take_apart(*loss_inputs(results, run));
  std::vector<Row> rows;
  double reached = 0;
  for (const LossPart& part : losses.parts) {
    const Shown& as = shown(part.name);
    const bool ideal = part.name == losses.parts[0].name;
    const double us = part.us.value_or(0);
    rows.push_back({ideal && results.weak ? "ideal: single's step" : as.words,
                    part.us ? grouped(std::llround(us)) : "not measured", as.colour, reached, reached + us});
    reached += us;
  }
  rows.push_back({row_label(results, run) + ", a step", grouped(std::llround(losses.step_us)), "", 0, losses.step_us});
  return rows;
}

}  // namespace

std::string loss_waterfall(const Results& results) {
  std::vector<std::pair<const Run*, std::vector<Row>>> all;
  std::vector<std::string> names, values;
  double largest = 0, lowest = 0, height = kTop + kAxis;
  for (const Run* run : runs_with_losses(results)) {
    all.emplace_back(run, rows_of(results, *run));
    for (const Row& row : all.back().second) {
      names.push_back(row.name);
      values.push_back(row.value);
      largest = std::max({largest, row.from, row.to});
      lowest = std::min({lowest, row.from, row.to});
      height += kRow;
    }
    height += kGap;
  }
  if (largest <= 0) return "";
  Svg svg(kChartWidth, height, "What a step loses");
  const std::vector<double> marks = ticks(largest, 4);
  const double left = room_for(names);
  const double scale = (kChartWidth - left - room_for(values)) / (marks.back() - lowest);
  const auto x = [&](double us) { return left + (us - lowest) * scale; };
  for (const double mark : marks) {
    svg.line(x(mark), kTop, x(mark), height - 26, "grid");
    svg.text(x(mark), height - 10, grouped(std::llround(mark)), "middle");
  }
  svg.text(left - 24, height - 10, "us", "end");
  double top = kTop;
  for (const auto& [run, rows] : all) {
    for (const Row& row : rows) {
      const double from = x(std::min(row.from, row.to)), to = x(std::max(row.from, row.to));
      svg.text(left - 8, top + 13, row.name, "end");
      svg.rect(from, top, std::max(0.5, to - from), kHeight,
               row.colour.empty() ? "fill-" + run->mode : "part-" + row.colour,
               concat(row_label(results, *run), ", ", row.name, ": ", row.value));
      svg.text(to + 6, top + 13, row.value, "start", "label value");
      top += kRow;
    }
    top += kGap;
  }
  return svg.str();
}

std::string waterfall_caption(const Results& results) {
  std::string text =
      concat("From single's step", results.weak ? ", of as many rows for its device," : " divided by the devices",
             " to the step as it is; every bar begins where the one above it ends.");
  for (const Run* run : runs_with_losses(results)) {
    const double unexplained = take_apart(*loss_inputs(results, *run)).unexplained_us();
    if (std::fabs(unexplained) > kNoteworthy * run->step_us.sum())
      text += concat(" ", fixed(100 * unexplained / run->step_us.sum(), 0), " % of the step of ",
                     row_label(results, *run), " is unexplained.");
  }
  return text;
}

}  // namespace duet::cli
