// Pictures with a curve for each mode: times and losses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/charts/axes.h"
#include "cli/report/report.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

double low(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double high(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

struct Name {
  std::pair<double, double> end;
  std::string text, css;
};

/// The runs of one curve of the epoch chart: a mode, over one backend, kind of workers and steps.
struct Series {
  std::string name, mode;
  std::vector<const Run*> runs{};
};

/// In the order of the table. Shared GPUs show what sharing costs; in a picture of scaling they would mislead.
std::vector<Series> series_of(const Results& results) {
  std::vector<Series> all;
  for (const Run& run : results.runs) {
    if (!run.ok || run.epoch_s.empty() || all_cores_row(results, run) || !sharing(run).empty()) continue;
    const std::string name = row_name(results, run);
    auto same = std::find_if(all.begin(), all.end(), [&](const Series& series) { return series.name == name; });
    if (same == all.end()) same = all.insert(all.end(), {name, run.mode});
    same->runs.push_back(&run);
  }
  for (Series& series : all)
    std::stable_sort(series.runs.begin(), series.runs.end(),
                     [](const Run* a, const Run* b) { return a->devices < b->devices; });
  return all;
}

}  // namespace

std::string epoch_chart(const Results& results) {
  std::set<int> counts;
  double largest = 0;
  const std::vector<Series> all = series_of(results);
  for (const Series& series : all)
    for (const Run* run : series.runs) {
      counts.insert(run->devices);
      largest = std::max(largest, high(run->epoch_s));
    }
  if (largest <= 0) return "";
  Axes axes("Time of an epoch against devices", 360, largest, "seconds");
  const auto x = [&](int devices) {
    const auto at = static_cast<double>(std::distance(counts.begin(), counts.find(devices)));
    const double share = counts.size() < 2 ? 0.5 : at / static_cast<double>(counts.size() - 1);
    return axes.x(share, 30);
  };
  std::vector<std::pair<double, std::string>> marks;
  for (const int devices : counts)
    marks.emplace_back(x(devices), concat(devices, devices == 1 ? " device" : " devices"));
  axes.mark_x(marks);
  std::vector<Name> names;
  const Run* const single = find_run(results, "single", 1);
  if (single && !single->epoch_s.empty() && counts.size() > 1) {
    Points ideal;
    for (const int devices : counts) ideal.emplace_back(x(devices), axes.y(median(single->epoch_s) / devices));
    axes.curve(ideal, "curve ideal");
    names.push_back({ideal.back(), "ideal", "label ink-ideal"});
  }
  double shift = -2.0 * static_cast<double>(all.size() - 1);
  std::set<std::string> drawn;
  for (const Series& series : all) {
    Points points;
    for (const Run* run : series.runs) {
      // A few pixels apart, so that the min..max bars of two modes do not cover each other.
      const double at = x(run->devices) + shift;
      points.emplace_back(at, axes.y(median(run->epoch_s)));
      axes.range(at, axes.y(low(run->epoch_s)), axes.y(high(run->epoch_s)), "range stroke-" + series.mode);
      axes.dot(at, points.back().second, "fill-" + series.mode,
               concat(series.name, " on ", run->devices, ": ", seconds(median(run->epoch_s)), " s (",
                      seconds(low(run->epoch_s)), "..", seconds(high(run->epoch_s)), ")"));
    }
    const bool another = !drawn.insert(series.mode).second;
    axes.curve(points, concat("curve ", another ? "dashed " : "", "stroke-", series.mode));
    names.push_back({points.back(), series.name, "label ink-" + series.mode});
    shift += 4;
  }
  for (const Name& name : names) axes.name(name.end, name.text, name.css);
  return axes.str();
}

std::string loss_chart(const Results& results) {
  const int epochs = results.settings.epochs;
  double largest = 0;
  std::size_t most = 0;
  int devices = 1;
  for (const Run& run : results.runs) devices = std::max(devices, run.devices);
  for (const Run& run : results.runs)
    for (const double loss : run.ok ? run.train_loss : std::vector<double>())
      if (std::isfinite(loss)) {
        largest = std::max(largest, loss);
        most = std::max(most, run.train_loss.size());
      }
  if (most < 2 || largest <= 0) return "";
  Axes axes("Training loss", 320, largest, "loss");
  std::vector<std::pair<double, std::string>> marks;
  for (int epoch = 0; epoch <= epochs; ++epoch)
    if (epochs <= 10 || epoch % (epochs / 5) == 0)
      marks.emplace_back(axes.x(static_cast<double>(epoch) / epochs), epoch == 0 ? "start" : concat("epoch ", epoch));
  axes.mark_x(marks);
  std::vector<Name> names;
  std::set<std::string> named;
  for (const Run& run : results.runs) {
    if (!run.ok) continue;
    Points points;
    const auto size = static_cast<double>(run.train_loss.size());
    for (std::size_t i = 0; i < run.train_loss.size(); ++i)
      if (std::isfinite(run.train_loss[i]))
        points.emplace_back(axes.x((static_cast<double>(i) + 0.5) / size), axes.y(run.train_loss[i]));
    // Curves of runs with the same bits coincide: wider strokes below, so that all of them show.
    axes.curve(points, concat("curve over-", run.mode, " stroke-", run.mode));
    // Under weak scaling each number of devices has batches, and so a curve, of its own; the outermost have names.
    const bool own_curve = results.weak && run.devices > 1;
    const std::string label = own_curve ? concat(run.mode, " ", run.devices) : run.mode;
    if (points.empty() || (own_curve && run.devices < devices) || !named.insert(label).second) continue;
    // Curves that end at the same place share a name.
    const auto same = std::find_if(names.begin(), names.end(), [&](const Name& name) {
      return std::fabs(name.end.second - points.back().second) < 0.5 && name.end.first == points.back().first;
    });
    if (same == names.end()) {
      names.push_back({points.back(), label, "label ink-" + run.mode});
    } else {
      same->text += ", " + label;
      same->css = "label";
    }
  }
  for (const Name& name : names) axes.name(name.end, name.text, name.css);
  return axes.str();
}

}  // namespace duet::cli
