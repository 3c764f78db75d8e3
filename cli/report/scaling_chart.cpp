// The pictures of other numbers of devices, from the cost model.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/scaling.h"
#include "cli/report/svg.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr double kWidth = 760, kLeft = 76, kRight = 110, kPanel = 250, kTop = 34, kBetween = 70;

std::string count_text(int count, const char* one, const char* several) {
  return concat(count, " ", count == 1 ? one : several);
}

std::string tip_of(const ScalingRow& row) {
  const std::string hosts = row.hosts > 1 ? concat(" of ", row.hosts, " hosts") : "";
  return concat(name(row.mode), " on ", count_text(row.devices, "device", "devices"), hosts, ", batch ",
                grouped(row.batch), ": ", grouped(std::llround(row.step_us)), " us, ", fixed(row.speedup, 2), "x, ",
                fixed(100 * row.efficiency(), 0), " %, bounded by ", row.computed.bounded_by(),
                row.measured ? ", measured" : ", computed");
}

/// One panel: a value of every row against devices, which stand at equal distances.
class Panel {
 public:
  Panel(Svg& svg, const std::vector<ScalingRow>& rows, double top) : svg_(svg), rows_(rows), top_(top) {
    for (const ScalingRow& row : rows) counts_.insert(row.devices);
    for (const int count : counts_) svg_.text(x(count), top_ + kPanel + 20, grouped(count), "middle");
    svg_.text(kWidth - kRight + 12, top_ + kPanel + 20, "devices", "start");
  }

  void title(const std::string& text) { svg_.text(kLeft, top_ - 14, text, "start"); }
  /// `place` from 0, the lowest, to 1.
  void grid(double place, const std::string& label) {
    svg_.line(kLeft, y(place), kWidth - kRight, y(place), "grid");
    svg_.text(kLeft - 8, y(place) + 4, label, "end");
  }
  void curves(const std::function<double(const ScalingRow&)>& place) {
    std::vector<std::pair<double, std::string>> labels;  // at the right, where most lines end
    std::set<Mode> modes;
    for (const ScalingRow& row : rows_) {
      if (row.devices < 2 || !modes.insert(row.mode).second) continue;
      const ScalingRow& end = curve(row.mode, place);
      const std::string label = name(row.mode);
      if (end.devices == *counts_.rbegin())
        labels.emplace_back(y(place(end)), label);
      else
        svg_.text(x(end.devices), y(place(end)) + (highest(end, place) ? -10 : 18), label, "middle",
                  "label ink-" + label);
    }
    std::sort(labels.begin(), labels.end());
    double above = -100, below = top_ + kPanel + 15;  // where the axis has its name
    for (auto& [at, label] : labels) above = at = std::max(at, above + 15);
    std::for_each(labels.rbegin(), labels.rend(),
                  [&](auto& label) { below = label.first = std::min(label.first, below - 15); });
    for (const auto& [at, label] : labels)
      svg_.text(kWidth - kRight + 12, at + 4, label, "start", "label ink-" + label);
  }

 private:
  double x(int devices) const {
    const auto at = static_cast<double>(std::distance(counts_.begin(), counts_.find(devices)));
    const double last = std::max<double>(1, static_cast<double>(counts_.size()) - 1);
    return kLeft + 20 + (kWidth - kRight - kLeft - 30) * at / last;
  }
  double y(double place) const { return top_ + kPanel * (1 - place); }

  bool highest(const ScalingRow& end, const std::function<double(const ScalingRow&)>& place) const {
    return std::none_of(rows_.begin(), rows_.end(),
                        [&](const ScalingRow& row) { return row.devices == end.devices && place(row) > place(end); });
  }

  /// Solid between measured points, dashed to computed ones; gives its end.
  const ScalingRow& curve(Mode mode, const std::function<double(const ScalingRow&)>& place) {
    const ScalingRow* last = &rows_.front();
    for (const ScalingRow& row : rows_) {
      if (row.mode != mode && &row != last) continue;
      const double at = x(row.devices), height = y(place(row));
      const std::string dashed = last->measured && row.measured ? "" : "dashed ";
      if (&row != last)
        svg_.path({{x(last->devices), y(place(*last))}, {at, height}}, concat("curve ", dashed, "stroke-", name(mode)));
      svg_.dot(at, height, concat("fill-", name(row.mode)), tip_of(row));
      last = &row;
    }
    return *last;
  }

  Svg& svg_;
  const std::vector<ScalingRow>& rows_;
  double top_;
  std::set<int> counts_;
};

/// 1, 2 and 5 times powers of ten, from below `low` to above `high`.
std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(low))); power <= 15; ++power)
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double tick = digit * std::pow(10, power);
      if (tick <= low) ticks.clear();
      ticks.push_back(tick);
      if (tick >= high && ticks.size() > 1) return ticks;
    }
  return ticks;
}

bool drawable(const std::vector<ScalingRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const ScalingRow& row) { return row.devices > 1; });
}

struct Loss {
  const char *name, *css;
  double SimulatedStep::*part;
};
constexpr Loss kLosses[] = {{"divided", "part-forward", &SimulatedStep::ideal_us},
                            {"smaller batch", "part-backward", &SimulatedStep::smaller_batch_us},
                            {"slow-down", "part-update", &SimulatedStep::slowdown_us},
                            {"uneven devices", "part-replicate", &SimulatedStep::uneven_us},
                            {"communication", "part-communication", &SimulatedStep::communication_us},
                            {"scatter", "part-input", &SimulatedStep::scatter_us},
                            {"replicate", "fill-averaging", &SimulatedStep::replicate_us},
                            {"gather", "part-gather", &SimulatedStep::gather_us},
                            {"reduce", "part-scatter", &SimulatedStep::reduce_us},
                            {"wrapper", "fill-dp", &SimulatedStep::overhead_us},
                            {"input", "fill-single", &SimulatedStep::undivided_us}};

}  // namespace

std::string scaling_chart(const std::vector<ScalingRow>& rows) {
  if (!drawable(rows)) return "";
  const double second = kTop + kPanel + kBetween;
  Svg svg(kWidth, second + kPanel + 30, "Efficiency and time of a step against devices");
  double most = 1, low = rows.front().step_us, high = low;
  for (const ScalingRow& row : rows) {
    most = std::max(most, row.efficiency());
    low = std::min(low, row.step_us);
    high = std::max(high, row.step_us);
  }
  Panel efficiency(svg, rows, kTop);
  efficiency.title("efficiency; solid lines join measured rows, dashed ones lead to computed rows");
  const std::vector<double> shares = ticks(most, 5), times = log_ticks(low, high);
  for (const double share : shares) efficiency.grid(share / shares.back(), fixed(100 * share, 0) + " %");
  efficiency.curves([&](const ScalingRow& row) { return row.efficiency() / shares.back(); });
  Panel time(svg, rows, second);
  time.title("us a step, logarithmic");
  const auto place = [&](double us) { return std::log(us / times.front()) / std::log(times.back() / times.front()); };
  for (const double tick : times) time.grid(place(tick), tick < 10 ? shortest(tick) : grouped(std::llround(tick)));
  time.curves([&](const ScalingRow& row) { return place(row.step_us); });
  return svg.str();
}

std::string losses_chart(const std::vector<ScalingRow>& rows) {
  if (!drawable(rows)) return "";
  constexpr double kNames = 150, kLegend = 48, kPitch = 24;
  Svg svg(kWidth, kLegend + static_cast<double>(rows.size()) * kPitch + 8, "Parts of a computed step");
  double x = kNames, y = 12;
  for (const Loss& loss : kLosses) {
    const bool present =
        std::any_of(rows.begin(), rows.end(), [&](const ScalingRow& row) { return row.computed.*loss.part > 0; });
    if (!present) continue;
    const std::string label = loss.name;
    const double size = 26 + 7.5 * static_cast<double>(label.size());
    if (x + size > kWidth) {
      x = kNames;
      y += 18;
    }
    svg.rect(x, y - 9, 11, 11, loss.css, "");
    svg.text(x + 16, y + 1, label, "start");
    x += size;
  }
  double top = kLegend;
  for (const ScalingRow& row : rows) {
    svg.text(kNames - 8, top + 13, concat(name(row.mode), " ", grouped(row.devices)), "end");
    double sum = 0, at = kNames;  // a smaller batch can also be a gain, which has no bar
    for (const Loss& loss : kLosses) sum += std::max(0.0, row.computed.*loss.part);
    for (const Loss& loss : kLosses) {
      const double us = std::max(0.0, row.computed.*loss.part), size = us / sum * (kWidth - kNames);
      if (us > 0)
        svg.rect(at, top, size, kPitch - 6, loss.css,
                 concat(tip_of(row), "; ", loss.name, " ", grouped(std::llround(us)), " us"));
      at += size;
    }
    top += kPitch;
  }
  return svg.str();
}

std::string scaling_svg(const std::vector<ScalingRow>& rows) {
  std::string svg = scaling_chart(rows);
  if (svg.empty()) return "";
  svg.insert(std::string("<svg ").size(), "xmlns=\"http://www.w3.org/2000/svg\" ");
  std::string style =
      "<style>text{font:12px sans-serif;fill:#1c1c1a}.grid{stroke:#e3e2dd}.curve{fill:none;stroke-width:2}"
      ".dashed{stroke-dasharray:6 4}";
  constexpr std::pair<const char*, const char*> kColours[] = {
      {"single", "#52514e"}, {"averaging", "#c26a00"}, {"dp", "#2a78d6"}, {"ddp", "#0f8a63"}};
  for (const auto& [mode, colour] : kColours)
    style += concat(".stroke-", mode, "{stroke:", colour, "}.fill-", mode, ",.ink-", mode, "{fill:", colour, "}");
  return svg.insert(svg.find('>') + 1, style + "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fcfcfb\"/>");
}

}  // namespace duet::cli
