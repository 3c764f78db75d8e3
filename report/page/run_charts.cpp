// Pictures with a value for each run: times of epochs, losses and memory.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/page/chart.h"
#include "report/report.h"

namespace duet::cli {
namespace {

double low(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double high(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

Chart memory_bars(const Results& results, std::vector<double> Run::*memory, const std::string& owner) {
  Chart chart{.id = "memory-" + owner, .title = "Peak memory of every " + owner, .unit = "MB"};
  for (const Run& run : results.runs) {
    const std::vector<double>& mb = run.*memory;
    if (!run.ok || mb.empty()) continue;
    const auto row = static_cast<double>(chart.rows.size());
    chart.rows.push_back(row_label(results, run));
    std::string tip = concat(chart.rows.back(), ", ", owner);
    for (std::size_t i = 0; i < mb.size(); ++i) tip += concat(i > 0 ? ", " : " ", i, ": ", fixed(mb[i], 0), " MB");
    chart.series_of(run.mode, run.mode, "bar").points.push_back({row, high(mb), 0, high(mb), tip});
  }
  return chart;
}

}  // namespace

Chart epoch_chart(const Results& results) {
  Chart chart{.id = "epochs", .title = "Time of an epoch against devices", .unit = "seconds", .log_x = true};
  std::set<int> counts;
  for (const Run& run : results.runs) {
    // Shared GPUs show what sharing costs; in a picture of scaling they would mislead.
    if (!run.ok || run.epoch_s.empty() || all_cores_row(results, run) || !sharing(run).empty()) continue;
    counts.insert(run.devices);
    const std::string name = row_name(results, run);
    const double middle = median(run.epoch_s);
    std::vector<ChartPoint>& points = chart.series_of(name, run.mode, "line").points;
    points.push_back({static_cast<double>(run.devices), middle, low(run.epoch_s), high(run.epoch_s),
                      concat(name, " on ", run.devices, ": ", seconds(middle), " s (", seconds(low(run.epoch_s)), "..",
                             seconds(high(run.epoch_s)), ")")});
    std::stable_sort(points.begin(), points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.at < b.at; });
  }
  const Run* const single = find_run(results, "single", 1);
  for (const int devices : counts) {
    chart.marks.emplace_back(devices, concat(devices, devices == 1 ? " device" : " devices"));
    if (!single || single->epoch_s.empty() || counts.size() < 2) continue;
    const double ideal = median(single->epoch_s) / devices;
    chart.series_of("ideal", "ideal", "dashed")
        .points.push_back({static_cast<double>(devices), ideal, ideal, ideal,
                           concat("ideal on ", devices, ": ", seconds(ideal), " s")});
  }
  return chart;
}

Chart loss_chart(const Results& results) {
  Chart chart{.id = "loss", .title = "Training loss", .unit = "loss"};
  const int epochs = results.settings.epochs;
  for (const Run& run : results.runs) {
    if (!run.ok || run.train_loss.size() < 2) continue;
    const std::string label = row_label(results, run);
    ChartSeries& line = chart.series_of(label, run.mode, "line");
    const auto size = static_cast<double>(run.train_loss.size());
    for (std::size_t i = 0; i < run.train_loss.size(); ++i) {
      const double loss = run.train_loss[i];
      if (std::isfinite(loss))
        line.points.push_back(
            {epochs * (static_cast<double>(i) + 0.5) / size, loss, loss, loss, concat(label, ": ", fixed(loss, 4))});
    }
  }
  for (int epoch = 0; epoch <= epochs && !chart.empty(); ++epoch)
    if (epochs <= 10 || epoch % (epochs / 5) == 0)
      chart.marks.emplace_back(epoch, epoch == 0 ? "start" : concat("epoch ", epoch));
  return chart;
}

Chart memory_chart(const Results& results) { return memory_bars(results, &Run::peak_memory_mb, "process"); }

Chart device_memory_chart(const Results& results) { return memory_bars(results, &Run::device_memory_mb, "device"); }

}  // namespace duet::cli
