// The pictures of other numbers of devices, from the cost model.
#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "report/page/chart.h"
#include "report/scaling.h"

namespace duet::cli {
namespace {

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

bool drawable(const std::vector<ScalingRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const ScalingRow& row) { return row.devices > 1; });
}

/// A value of every row against devices; each mode's line begins at single's row.
Chart over_devices(const std::vector<ScalingRow>& rows, Chart chart,
                   const std::function<double(const ScalingRow&)>& value) {
  if (!drawable(rows)) return chart;
  chart.log_x = true;
  std::set<int> counts;
  for (const ScalingRow& row : rows) {
    counts.insert(row.devices);
    ChartSeries& line = chart.series_of(name(row.mode), name(row.mode), "line");
    const auto point = [&](const ScalingRow& at) {
      return ChartPoint{static_cast<double>(at.devices), value(at), value(at), value(at), tip_of(at), !at.measured};
    };
    if (line.points.empty() && row.devices > rows.front().devices) line.points.push_back(point(rows.front()));
    line.points.push_back(point(row));
  }
  for (const int count : counts) chart.marks.emplace_back(count, count_text(count, "device", "devices"));
  return chart;
}

struct Loss {
  const char *name, *colour;
  double SimulatedStep::*part;
};
constexpr Loss kLosses[] = {{"divided", "forward", &SimulatedStep::ideal_us},
                            {"smaller batch", "backward", &SimulatedStep::smaller_batch_us},
                            {"slow-down", "update", &SimulatedStep::slowdown_us},
                            {"uneven devices", "replicate", &SimulatedStep::uneven_us},
                            {"communication", "communication", &SimulatedStep::communication_us},
                            {"scatter", "input", &SimulatedStep::scatter_us},
                            {"replicate", "averaging", &SimulatedStep::replicate_us},
                            {"gather", "gather", &SimulatedStep::gather_us},
                            {"reduce", "scatter", &SimulatedStep::reduce_us},
                            {"wrapper", "dp", &SimulatedStep::overhead_us},
                            {"input", "single", &SimulatedStep::undivided_us}};

}  // namespace

Chart efficiency_chart(const std::vector<ScalingRow>& rows) {
  return over_devices(rows, {.id = "efficiency", .title = "Efficiency against devices", .unit = "%"},
                      [](const ScalingRow& row) { return 100 * row.efficiency(); });
}

Chart step_time_chart(const std::vector<ScalingRow>& rows) {
  return over_devices(rows, {.id = "step-time", .title = "Time of a step against devices", .unit = "us", .log_y = true},
                      [](const ScalingRow& row) { return row.step_us; });
}

Chart bounds_chart(const std::vector<ScalingRow>& rows) {
  Chart chart{.id = "bounds", .title = "Parts of a computed step", .unit = "% of the step"};
  if (!drawable(rows)) return chart;
  for (const ScalingRow& row : rows) {
    const auto at = static_cast<double>(chart.rows.size());
    chart.rows.push_back(concat(name(row.mode), " ", grouped(row.devices)));
    double sum = 0, from = 0;  // a smaller batch can also be a gain, which has no bar
    for (const Loss& loss : kLosses) sum += std::max(0.0, row.computed.*loss.part);
    for (const Loss& loss : kLosses) {
      const double us = row.computed.*loss.part;
      if (us <= 0) continue;
      const double to = from + 100 * us / sum;
      chart.series_of(loss.name, loss.colour, "bar")
          .points.push_back(
              {at, to - from, from, to, concat(tip_of(row), "; ", loss.name, " ", grouped(std::llround(us)), " us")});
      from = to;
    }
  }
  return chart;
}

}  // namespace duet::cli
