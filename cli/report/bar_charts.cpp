#include "cli/report/bar_charts.h"

#include <algorithm>
#include <cmath>

#include "cli/report/report.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr double kLine = 18;  // of the legend
constexpr double kAxis = 30;  // below the rows

/// The parts of a step and what of them is waiting, in the order of the legend.
std::vector<std::string> legend_names() {
  std::vector<std::string> names;
  for (const PartName& part : kStepParts) {
    names.emplace_back(part.name);
    if (part.member == &StepParts::communication) names.emplace_back(kWaiting);
  }
  return names;
}

double entry_width(const std::string& name) { return 24 + text_width(name); }

/// Of the legend, whose entries begin at `left`.
double legend_height(double left) {
  double x = left, lines = 1;
  for (const std::string& name : legend_names()) {
    if (x + entry_width(name) > kChartWidth) {
      x = left;
      ++lines;
    }
    x += entry_width(name);
  }
  return lines * kLine + 8;
}

}  // namespace

std::string row_label(const Results& results, const Run& run) {
  const std::string count = sharing(run).empty() ? std::to_string(run.devices) : sharing(run);
  return row_name(results, run) + (run.mode == "single" ? "" : " " + count);
}

double room_for(const std::vector<std::string>& texts) {
  double room = 0;
  for (const std::string& text : texts) room = std::max(room, text_width(text));
  return room + 12;
}

std::string waiting_text(const Run& run) {
  return run.mode == "dp" ? "waiting for the last replica" : "waiting for the last rank";
}

TimeBars::TimeBars(const std::string& title, double rows, double names, double right, double longest,
                   const std::string& unit)
    : svg(kChartWidth, legend_height(names) + rows + kAxis, title), legend_(legend_height(names)), left_(names) {
  double x_at = left_, y = 12;
  for (const std::string& name : legend_names()) {
    if (x_at + entry_width(name) > kChartWidth) {
      x_at = left_;
      y += kLine;
    }
    svg.rect(x_at, y - 9, 11, 11, "part-" + name, "");
    svg.text(x_at + 16, y + 1, name, "start");
    x_at += entry_width(name);
  }
  const double height = legend_ + rows + kAxis;
  const std::vector<double> marks = ticks(longest, 6);
  scale_ = (kChartWidth - left_ - right) / marks.back();
  for (const double mark : marks) {
    svg.line(x(mark), legend_ - 4, x(mark), height - 26, "grid");
    svg.text(x(mark), height - 10, grouped(std::llround(mark)), "middle");
  }
  svg.text(left_ - 24, height - 10, unit, "end");
}

void TimeBars::bar(double row, double begin_us, double end_us, const std::string& part, const std::string& what) {
  svg.rect(x(begin_us), row, std::max(0.5, (end_us - begin_us) * scale_), kBar, "part-" + part,
           concat(what, " ", grouped(std::llround(end_us - begin_us)), " us"));
}

void TimeBars::name(double row, const std::string& text) { svg.text(left_ - 8, row + 14, text, "end"); }

}  // namespace duet::cli
