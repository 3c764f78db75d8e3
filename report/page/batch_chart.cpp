// The picture of several batches.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/batches.h"
#include "report/page/chart.h"
#include "report/speed.h"

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

std::string tip_of(const BatchSeries& series, const BatchPoint& point) {
  return concat(series.name, " on ", series.devices, ", batch ", grouped(point.batch), ": ", speedup_text(*point.run));
}

}  // namespace

Chart batch_chart(const std::vector<Results>& batches) {
  Chart chart{.id = "batches", .title = "Speed-up against batch", .unit = "speed-up", .log_x = true};
  std::set<std::int64_t> counts;
  for (const BatchSeries& series : drawn_series(batches)) {
    ChartSeries& line = chart.series_of(concat(series.name, " ", series.devices), series.mode, "line");
    for (const BatchPoint& point : series.points) {
      counts.insert(point.batch);
      const Interval speedup = drawn_speedup(*point.run);
      line.points.push_back(
          {static_cast<double>(point.batch), speedup.middle, speedup.low, speedup.high, tip_of(series, point)});
    }
  }
  for (const std::int64_t batch : counts) {
    const auto at = static_cast<double>(batch);
    chart.marks.emplace_back(at, concat(batches.front().weak ? "batch of each " : "batch ", grouped(batch)));
    chart.series_of("single", "single", "dashed").points.push_back({at, 1, 1, 1, "single: 1x"});
  }
  return chart;
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
