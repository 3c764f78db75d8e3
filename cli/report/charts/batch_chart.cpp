// The picture of several batches.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/batches.h"
#include "cli/report/charts/axes.h"
#include "cli/report/interval.h"
#include "cli/report/speed.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

/// On one device there is nothing to gain: only where no mode has more is it drawn.
std::vector<BatchSeries> drawn_series(const std::vector<Results>& batches) {
  std::vector<BatchSeries> series = batch_series(batches);
  const int least = std::min(2, most_devices(series));
  series.erase(std::remove_if(series.begin(), series.end(), [&](const auto& one) { return one.devices < least; }),
               series.end());
  return series;
}

Interval interval_to_draw(const Run& run) {
  return speedup_interval(run).value_or(Interval{*run.speedup, *run.speedup, *run.speedup});
}

std::string tip_of(const BatchSeries& series, const BatchPoint& point) {
  return concat(series.name, " on ", series.devices, ", batch ", grouped(point.batch), ": ", speedup_text(*point.run));
}

}  // namespace

std::string batch_chart(const std::vector<Results>& batches) {
  const std::vector<BatchSeries> all = drawn_series(batches);
  if (all.empty()) return "";
  std::set<std::int64_t> counts;
  double largest = 1;
  for (const BatchSeries& series : all)
    for (const BatchPoint& point : series.points) {
      counts.insert(point.batch);
      largest = std::max(largest, interval_to_draw(*point.run).high);
    }
  Axes axes("Speed-up against batch", 380, largest, "speed-up");
  const auto x = [&](std::int64_t batch) {
    const auto place = [&](std::int64_t rows) {
      return std::log(static_cast<double>(rows) / static_cast<double>(*counts.begin()));
    };
    return axes.x(counts.size() < 2 ? 0.5 : place(batch) / place(*counts.rbegin()), 40);
  };
  std::vector<std::pair<double, std::string>> marks;
  for (const std::int64_t batch : counts) marks.emplace_back(x(batch), grouped(batch));
  axes.mark_x(marks, batches.front().weak ? "batch of each" : "batch");
  const Points single = {{axes.x(0), axes.y(1)}, {axes.x(1), axes.y(1)}};
  axes.curve(single, "curve ideal");
  double shift = -2.0 * static_cast<double>(all.size() - 1);  // so that bars do not cover each other
  std::set<std::string> drawn;
  std::vector<Points> curves;
  for (const BatchSeries& series : all) {
    Points& points = curves.emplace_back();
    for (const BatchPoint& point : series.points) {
      const Interval speedup = interval_to_draw(*point.run);
      points.emplace_back(x(point.batch) + shift, axes.y(speedup.middle));
      axes.range(points.back().first, axes.y(std::max(0.0, speedup.low)), axes.y(speedup.high),
                 "range stroke-" + series.mode);
      axes.dot(points.back().first, points.back().second, "fill-" + series.mode, tip_of(series, point));
    }
    axes.curve(points, concat("curve ", drawn.insert(series.mode).second ? "" : "dashed ", "stroke-", series.mode));
    shift += 4;
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    axes.name(curves[i].back(), concat(all[i].name, " ", all[i].devices), "label ink-" + all[i].mode);
  axes.name(single.back(), "single", "label ink-ideal");
  return axes.str();
}

std::string batch_caption(const std::vector<Results>& batches) {
  bool intervals = false;
  const std::vector<BatchSeries> all = drawn_series(batches);
  for (const BatchSeries& series : all)
    for (const BatchPoint& point : series.points) intervals = intervals || speedup_interval(*point.run);
  return concat("How many times single's samples a second",
                all.empty() || all.front().devices < 2 ? "" : ", for every mode and number of devices above 1",
                "; the batch is logarithmic.", intervals ? " Thick bars are 95 % intervals." : "",
                batches.front().weak ? " Weak scaling: N devices train N batches a step." : "");
}

}  // namespace duet::cli
