#include "cli/report/charts.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "cli/report/svg.h"
#include "cli/report/table.h"
#include "cli/system/number_text.h"

namespace duet::cli {
namespace {

constexpr double kWidth = 760, kLeft = 70, kRight = 130, kTop = 30, kBottom = 46;

/// A picture with a value axis on the left from 0 to at least `top`.
struct Axes {
  Svg svg;
  double height;
  double top = 1;
  Axes(const std::string& title, double picture_height, double largest, const std::string& unit)
      : svg(kWidth, picture_height, title), height(picture_height) {
    const auto marks = ticks(largest, 5);
    top = marks.back();
    for (double mark : marks) {
      svg.line(kLeft, y(mark), kWidth - kRight, y(mark), "grid");
      svg.text(kLeft - 8, y(mark) + 4, shortest(std::round(mark * 1e6) / 1e6), "end");
    }
    svg.text(kLeft - 8, kTop - 16, unit, "end");
  }
  double y(double value) const { return kTop + (height - kTop - kBottom) * (1 - value / top); }
};

double low(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double high(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

std::string row_label(const Results& results, const Run& run) {
  const std::string count = sharing(run).empty() ? std::to_string(run.devices) : sharing(run);
  return row_name(results, run) + (run.mode == "single" ? "" : " " + count);
}

/// Name labels at the right ends of lines, moved apart where they would cover each other, and up where they would leave
/// the picture.
void end_labels(Axes& axes, std::vector<std::pair<double, std::string>> labels) {
  constexpr double kPitch = 15;
  std::sort(labels.begin(), labels.end());
  double lowest = axes.height - kBottom;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label, lowest -= kPitch)
    label->first = std::min(label->first, lowest);
  double last = -100;
  for (const auto& [y, name] : labels) {
    const double at = std::max(y, last + kPitch);
    axes.svg.text(kWidth - kRight + 12, at + 4, name, "start", "label ink-" + name);
    last = at;
  }
}

}  // namespace

std::string epoch_chart(const Results& results) {
  std::set<int> counts;
  double largest = 0;
  for (const Run& run : results.runs) {
    // Shared GPUs show what sharing costs; in a picture of scaling they would mislead.
    if (!run.ok || run.epoch_s.empty() || all_cores_row(results, run) || !sharing(run).empty()) continue;
    counts.insert(run.devices);
    largest = std::max(largest, high(run.epoch_s));
  }
  if (counts.empty() || largest <= 0) return "";
  Axes axes("Time of an epoch against devices", 360, largest, "seconds");
  const std::vector<int> columns(counts.begin(), counts.end());
  const double room = kWidth - kRight - kLeft - 60;
  const auto x = [&](int devices) {
    const auto at = std::find(columns.begin(), columns.end(), devices) - columns.begin();
    const double share = columns.size() < 2 ? 0.5 : static_cast<double>(at) / static_cast<double>(columns.size() - 1);
    return kLeft + 30 + room * share;
  };
  for (int devices : columns)
    axes.svg.text(x(devices), axes.height - kBottom + 20,
                  std::to_string(devices) + (devices == 1 ? " device" : " devices"), "middle");
  std::vector<std::pair<double, std::string>> labels;
  if (const Run* single = find_run(results, "single", 1); single && !single->epoch_s.empty()) {
    std::vector<std::pair<double, double>> ideal;
    for (int devices : columns) ideal.emplace_back(x(devices), axes.y(median(single->epoch_s) / devices));
    axes.svg.path(ideal, "curve ideal");
    labels.emplace_back(ideal.back().second, "ideal");
  }
  int shift = 0;
  for (const char* mode : {"single", "averaging", "dp", "ddp"}) {
    std::vector<std::pair<double, double>> points;
    for (int devices : columns) {
      const Run* run = find_run(results, mode, devices);
      if (!run || run->epoch_s.empty() || !sharing(*run).empty()) continue;
      // A few pixels apart, so that the min..max bars of two modes do not cover each other.
      const double at = x(devices) + 4 * (shift - 1);
      points.emplace_back(at, axes.y(median(run->epoch_s)));
      const std::string css = std::string("stroke-") + mode;
      axes.svg.line(at, axes.y(low(run->epoch_s)), at, axes.y(high(run->epoch_s)), "range " + css);
      axes.svg.dot(at, points.back().second, std::string("fill-") + mode,
                   std::string(mode) + " on " + std::to_string(devices) + ": " + seconds(median(run->epoch_s)) +
                       " s (" + seconds(low(run->epoch_s)) + ".." + seconds(high(run->epoch_s)) + ")");
    }
    axes.svg.path(points, std::string("curve stroke-") + mode);
    if (!points.empty() && std::string(mode) != "single") labels.emplace_back(points.back().second, mode);
    if (!points.empty() && std::string(mode) == "single")
      axes.svg.text(points.back().first + 10, points.back().second - 8, mode, "start", "label ink-single");
    ++shift;
  }
  end_labels(axes, labels);
  return axes.svg.str();
}

void draw_legend(Svg& svg, double left, double right) {
  double x = left, y = 12;
  for (const PartName& part : step_part_names()) {
    const double size = 24 + 8.0 * static_cast<double>(std::string(part.name).size());
    if (x + size > right) {
      x = left;
      y += 18;
    }
    svg.rect(x, y - 9, 11, 11, std::string("part-") + part.name, "");
    svg.text(x + 16, y + 1, part.name, "start");
    x += size;
  }
}

std::string parts_chart(const Results& results) {
  double largest = 0;
  int rows = 0;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    largest = std::max(largest, run.step_us.sum());
    ++rows;
  }
  if (largest <= 0) return "";
  const double name_width = 130, bar = 20, pitch = 28, legend = 44;
  const double height = legend + rows * pitch + 30;
  Svg svg(kWidth, height, "Where a step's time goes");
  draw_legend(svg, name_width, kWidth);
  const auto marks = ticks(largest, 6);
  const double scale = (kWidth - name_width - 80) / marks.back();
  for (double mark : marks) {
    svg.line(name_width + mark * scale, legend - 6, name_width + mark * scale, height - 26, "grid");
    svg.text(name_width + mark * scale, height - 10, grouped(std::llround(mark)), "middle");
  }
  svg.text(kWidth, height - 10, "us a step", "end");
  double row = legend;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    svg.text(name_width - 8, row + 14, row_label(results, run), "end");
    double at = name_width;
    for (const PartName& part : step_part_names()) {
      const double value = run.step_us.*part.member;
      if (value <= 0) continue;
      svg.rect(at, row, value * scale, bar, std::string("part-") + part.name,
               row_label(results, run) + ": " + part.name + " " + grouped(std::llround(value)) + " us");
      at += value * scale;
    }
    svg.text(at + 6, row + 14, grouped(std::llround(run.step_us.sum())), "start");
    row += pitch;
  }
  return svg.str();
}

std::string loss_chart(const Results& results) {
  double largest = 0;
  std::size_t most = 0;
  for (const Run& run : results.runs)
    for (double loss : run.train_loss)
      if (run.ok && std::isfinite(loss)) {
        largest = std::max(largest, loss);
        most = std::max(most, run.train_loss.size());
      }
  if (most < 2 || largest <= 0) return "";
  Axes axes("Training loss", 320, largest, "loss");
  const double room = kWidth - kRight - kLeft;
  for (int epoch = 0; epoch <= results.settings.epochs; ++epoch) {
    if (results.settings.epochs > 10 && epoch % (results.settings.epochs / 5) != 0) continue;
    axes.svg.text(kLeft + room * epoch / results.settings.epochs, axes.height - kBottom + 20,
                  epoch == 0 ? "start" : "epoch " + std::to_string(epoch), "middle");
  }
  std::vector<std::pair<double, std::string>> labels;
  std::set<std::string> labelled;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    std::vector<std::pair<double, double>> points;
    for (std::size_t i = 0; i < run.train_loss.size(); ++i)
      if (std::isfinite(run.train_loss[i]))
        points.emplace_back(kLeft + room * (static_cast<double>(i) + 0.5) / static_cast<double>(run.train_loss.size()),
                            axes.y(run.train_loss[i]));
    // Curves of runs with the same bits coincide: wider strokes below, so that all of them show.
    axes.svg.path(points, "curve over-" + run.mode + " stroke-" + run.mode);
    if (!points.empty() && labelled.insert(run.mode).second) labels.emplace_back(points.back().second, run.mode);
  }
  end_labels(axes, labels);
  return axes.svg.str();
}

namespace {

/// A row per run, in it a bar per process or device, in MB.
std::string memory_bars(const Results& results, std::vector<double> Run::*memory, const std::string& owner) {
  double largest = 0;
  std::size_t bars = 0;
  for (const Run& run : results.runs) {
    if (!run.ok || (run.*memory).empty()) continue;
    largest = std::max(largest, high((run.*memory)));
    bars += (run.*memory).size();
  }
  if (bars == 0 || largest <= 0) return "";
  const double name_width = 130, pitch = 28;
  std::size_t rows = 0;
  for (const Run& run : results.runs) rows += run.ok && !(run.*memory).empty();
  Svg svg(kWidth, static_cast<double>(rows) * pitch + 8, "Peak memory of every " + owner);
  const double scale = (kWidth - name_width - 90) / largest;
  double row = 4;
  for (const Run& run : results.runs) {
    if (!run.ok || (run.*memory).empty()) continue;
    svg.text(name_width - 8, row + 14, row_label(results, run), "end");
    const double bar = 20.0 / static_cast<double>((run.*memory).size());
    double at = row;
    for (std::size_t p = 0; p < (run.*memory).size(); ++p, at += bar)
      svg.rect(
          name_width, at, (run.*memory)[p] * scale, std::max(1.0, bar - 1), "fill-" + run.mode,
          row_label(results, run) + ", " + owner + " " + std::to_string(p) + ": " + fixed((run.*memory)[p], 0) + " MB");
    const std::string each = (run.*memory).size() > 1 ? " x " + std::to_string((run.*memory).size()) : "";
    svg.text(name_width + high((run.*memory)) * scale + 6, row + 14, fixed(high((run.*memory)), 0) + " MB" + each,
             "start");
    row += pitch;
  }
  return svg.str();
}

}  // namespace

std::string memory_chart(const Results& results) { return memory_bars(results, &Run::peak_memory_mb, "process"); }

std::string device_memory_chart(const Results& results) {
  return memory_bars(results, &Run::device_memory_mb, "device");
}

}  // namespace duet::cli
