#include "report/batches.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/system/display.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/evidence.h"
#include "report/page/page.h"
#include "report/report.h"

namespace duet::cli {
namespace {

std::vector<const Results*> by_batch(const std::vector<Results>& batches) {
  std::vector<const Results*> sorted;
  for (const Results& results : batches) sorted.push_back(&results);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Results* a, const Results* b) { return a->settings.batch < b->settings.batch; });
  return sorted;
}

bool shares_devices(const BatchPoint& point) {
  return oversubscribed(*point.results, *point.run) || !sharing(*point.run).empty();
}

/// Those on most_devices().
std::vector<BatchSeries> on_most_devices(const std::vector<Results>& batches) {
  std::vector<BatchSeries> series = batch_series(batches);
  std::erase_if(series, [devices = most_devices(series)](const auto& one) { return one.devices != devices; });
  return series;
}

/// On one device there is nothing to gain: only where no mode has more is it drawn.
std::vector<BatchSeries> drawn_series(const std::vector<Results>& batches) {
  std::vector<BatchSeries> series = batch_series(batches);
  std::erase_if(series, [least = std::min(2, most_devices(series))](const auto& one) { return one.devices < least; });
  return series;
}

/// The speed-up with its interval and the table's mark where devices or cores cannot explain it; "-" where it was not
/// measured.
std::string cell_text(const BatchSeries& series, std::int64_t batch) {
  for (const BatchPoint& point : series.points)
    if (point.results->settings.batch == batch)
      return speedup_text(*point.run) + (above_limit(*point.results, *point.run).empty() ? "" : " !");
  return "-";
}

/// With its header; empty without speed-ups.
std::vector<std::vector<std::string>> rows_of(const std::vector<Results>& batches) {
  const std::vector<BatchSeries> series = on_most_devices(batches);
  if (series.empty()) return {};
  std::vector<std::vector<std::string>> rows = {{"batch"}};
  for (const BatchSeries& one : series) rows[0].push_back(one.name);
  for (const Results* results : by_batch(batches)) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(grouped(results->settings.batch));
    for (const BatchSeries& one : series) row.push_back(cell_text(one, results->settings.batch));
  }
  return rows;
}

std::string title_of(const std::vector<Results>& batches) {
  const int devices = most_devices(batch_series(batches));
  return concat("Speed-up over single on ", count_text(devices),
                batches.front().weak ? ", in samples a second (weak scaling: a batch of each device)" : "");
}

}  // namespace

std::vector<CompareOptions> options_of_batches(const CompareOptions& options) {
  if (options.batches.size() == 1) return {options};
  std::vector<CompareOptions> all;
  for (const std::int64_t batch : options.batches) {
    CompareOptions& one = all.emplace_back(options);
    one.batch = batch;
    one.batches = {batch};
    one.time_budget_s = options.time_budget_s / static_cast<double>(options.batches.size());
    one.out = options.out + "/" + batch_folder(batch);
  }
  return all;
}

std::vector<BatchSeries> batch_series(const std::vector<Results>& batches) {
  std::vector<BatchSeries> all;
  for (const Results* results : by_batch(batches))
    for (const Run& run : results->runs) {
      if (!run.ok || !run.speedup || run.mode == "single" || run.mode == "copies") continue;
      const std::string name = row_name(*results, run);
      auto same = std::find_if(all.begin(), all.end(), [&](const BatchSeries& series) {
        return series.name == name && series.devices == run.devices;
      });
      if (same == all.end()) same = all.insert(all.end(), {name, run.mode, run.devices});
      same->points.push_back({results, &run});
    }
  return all;
}

int most_devices(const std::vector<BatchSeries>& series) {
  int own = 0, any = 0;
  for (const BatchSeries& one : series) {
    any = std::max(any, one.devices);
    if (std::none_of(one.points.begin(), one.points.end(), shares_devices)) own = std::max(own, one.devices);
  }
  return own > 1 ? own : any;
}

std::string batch_table(const std::vector<Results>& batches, TerminalStyle style) {
  std::vector<std::vector<std::string>> rows = rows_of(batches);
  if (rows.empty()) return "";
  rows = aligned(rows, {});
  for (std::string& title : rows[0]) title = bold(title, style);
  std::string out = bold(title_of(batches), style) + "\n";
  for (const auto& row : rows) out += table_line(row) + "\n";
  return out;
}

std::vector<std::string> batch_findings(const std::vector<Results>& batches) {
  std::vector<std::string> out;
  for (const BatchSeries& series : on_most_devices(batches)) {
    std::map<Side, std::vector<std::string>> at;
    for (const BatchPoint& point : series.points)
      if (speedup_interval(*point.run) && above_limit(*point.results, *point.run).empty())
        at[side_of(speedup_interval(*point.run), 1)].push_back(grouped(point.results->settings.batch));
    if (at.empty()) continue;
    std::string text;
    const auto add = [&](Side side, const char* begin, const char* next, const char* what) {
      if (at.count(side) > 0) text += concat(text.empty() ? begin : next, what, " at batch ", listed(at[side]));
    };
    add(Side::above, " is ", "", "faster than single");
    add(Side::below, " is ", ", ", text.empty() ? "slower than single" : "slower");
    add(Side::open, ": ", "; ", text.empty() ? "no difference from single was measured" : "no difference was measured");
    out.push_back(concat(series.name, " on ", count_text(series.devices), text, "."));
  }
  return out;
}

Chart batch_chart(const std::vector<Results>& batches) {
  Chart chart{.id = "batches", .title = "Speed-up against batch", .unit = "speed-up", .log_x = true};
  std::set<std::int64_t> counts;
  bool intervals = false;
  const std::vector<BatchSeries> all = drawn_series(batches);
  for (const BatchSeries& series : all) {
    ChartSeries& line = chart.series_of(concat(series.name, " ", series.devices), series.mode, "line");
    for (const auto& [results, run] : series.points) {
      const std::int64_t batch = results->settings.batch;
      counts.insert(batch);
      intervals = intervals || speedup_interval(*run);
      line.add(static_cast<double>(batch), drawn_speedup(*run),
               concat(series.name, " on ", series.devices, ", batch ", grouped(batch), ": ", speedup_text(*run)));
    }
  }
  for (const std::int64_t batch : counts) {
    const auto at = static_cast<double>(batch);
    chart.marks.emplace_back(at, concat(batches.front().weak ? "batch of each " : "batch ", grouped(batch)));
    chart.series_of("single", "single", "dashed").add(at, 1, "single: 1x");
  }
  if (!all.empty())
    chart.caption = concat("How many times single's samples a second",
                           all.front().devices < 2 ? "" : ", for every mode and number of devices above 1",
                           "; the batch is logarithmic.", intervals ? " Thick bars are 95 % intervals." : "",
                           batches.front().weak ? " Weak scaling: N devices train N batches a step." : "");
  return chart;
}

std::string batches_page(const std::vector<Results>& batches, bool partial, const std::string& command_line) {
  std::vector<std::string> numbers;
  std::string links;
  for (const Results* results : by_batch(batches)) {
    const std::int64_t batch = results->settings.batch;
    numbers.push_back(grouped(batch));
    links += concat("<li><a href=\"", batch_folder(batch), "/index.html\">batch ", grouped(batch),
                    "</a>: ", escaped(answer(*results)), "</li>\n");
  }
  Page page("duet compare", concat("Batches of ", listed(numbers), " compared"));
  if (partial) page.add(page_note(concat(kPartial, ".")));
  page.add(page.picture(batch_chart(batches)));
  page.add("<ul>\n" + links + "</ul>\n");
  page.section(title_of(batches), page_table(rows_of(batches), "numbers"));
  page.section("Findings", page_list(batch_findings(batches)));
  page.section("What was run", "<dl>\n" + page_entry("command line", command_line) + "</dl>\n");
  return page.html();
}

std::string batches_json(const std::vector<Results>& batches, bool partial) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Results& results : batches) list.push_back(Json::parse(to_json(results)));
  return Json{{"duet", DUET_VERSION}, {"partial", partial}, {"batches", list}}.dump(1) + "\n";
}

}  // namespace duet::cli
