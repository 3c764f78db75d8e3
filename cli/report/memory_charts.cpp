// Memory: a row per run, in it a bar per process or device.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "cli/report/bar_charts.h"
#include "cli/report/report.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

std::string memory_bars(const Results& results, std::vector<double> Run::*memory, const std::string& owner) {
  std::vector<const Run*> runs;
  std::vector<std::string> labels, sizes;
  double largest = 0;
  for (const Run& run : results.runs) {
    const std::vector<double>& mb = run.*memory;
    if (!run.ok || mb.empty()) continue;
    const double most = *std::max_element(mb.begin(), mb.end());
    runs.push_back(&run);
    labels.push_back(row_label(results, run));
    sizes.push_back(concat(mb.size() > 1 ? concat(mb.size(), " x ") : "", fixed(most, 0), " MB"));
    largest = std::max(largest, most);
  }
  if (largest <= 0) return "";
  const double names = std::max(130.0, room_for(labels));
  Svg svg(kChartWidth, static_cast<double>(runs.size()) * kPitch + 8, "Peak memory of every " + owner);
  const double scale = (kChartWidth - names - room_for(sizes)) / largest;
  double row = 4;
  for (std::size_t r = 0; r < runs.size(); ++r, row += kPitch) {
    const std::vector<double>& mb = runs[r]->*memory;
    svg.text(names - 8, row + 14, labels[r], "end");
    const double bar = kBar / static_cast<double>(mb.size());
    for (std::size_t i = 0; i < mb.size(); ++i)
      svg.rect(names, row + static_cast<double>(i) * bar, mb[i] * scale, std::max(0.5, bar - 1),
               "fill-" + runs[r]->mode, concat(labels[r], ", ", owner, " ", i, ": ", fixed(mb[i], 0), " MB"));
    svg.text(names + *std::max_element(mb.begin(), mb.end()) * scale + 6, row + 14, sizes[r], "start");
  }
  return svg.str();
}

}  // namespace

std::string memory_chart(const Results& results) { return memory_bars(results, &Run::peak_memory_mb, "process"); }

std::string device_memory_chart(const Results& results) {
  return memory_bars(results, &Run::device_memory_mb, "device");
}

}  // namespace duet::cli
