// Comparisons of the same cells with several batches, read together.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compare/report/evidence.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "train/measure/json_fields.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

struct BatchPoint {
  const Results* results = nullptr;
  const Run* run = nullptr;
};

/// The runs of a mode, over one backend, on one number of devices, by batch.
struct BatchSeries {
  std::string name, mode;
  int devices = 1;
  std::map<std::int64_t, BatchPoint> points{};
};

std::vector<const Results*> by_batch(const std::vector<Results>& batches) {
  std::vector<const Results*> sorted;
  for (const Results& results : batches) sorted.push_back(&results);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Results* a, const Results* b) { return a->settings.batch < b->settings.batch; });
  return sorted;
}

/// The series with a speed-up, in the order of the first comparison's table, copies and single aside.
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
      same->points.emplace(results->settings.batch, BatchPoint{results, &run});
    }
  return all;
}

/// The most devices on which a mode has a speed-up, those that share cores or GPUs only where all do; 0: none has.
int most_devices(const std::vector<BatchSeries>& series) {
  const auto shares_devices = [](const auto& point) {
    const auto& [results, run] = point.second;
    return oversubscribed(*results, *run) || !sharing(*run).empty();
  };
  int own = 0, any = 0;
  for (const BatchSeries& one : series) {
    any = std::max(any, one.devices);
    if (std::none_of(one.points.begin(), one.points.end(), shares_devices)) own = std::max(own, one.devices);
  }
  return own > 1 ? own : any;
}

std::vector<BatchSeries> on_most_devices(const std::vector<Results>& batches) {
  std::vector<BatchSeries> series = batch_series(batches);
  std::erase_if(series, [most = most_devices(series)](const BatchSeries& one) { return one.devices != most; });
  return series;
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
    for (const BatchSeries& one : series) {
      const auto point = one.points.find(results->settings.batch);
      row.push_back(point == one.points.end() ? "-" : marked_speedup(*results, *point->second.run));
    }
  }
  return rows;
}

std::string title_of(const std::vector<Results>& batches) {
  return concat("Speed-up over ", base_text(batches.front()), " on ", count_text(most_devices(batch_series(batches))),
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
  const std::string base = batches.empty() ? "" : base_text(batches.front());
  for (const BatchSeries& series : on_most_devices(batches)) {
    std::map<Side, std::vector<std::string>> at;
    for (const auto& [batch, point] : series.points)
      if (const std::optional<Interval> speedup = speedup_interval(*point.run);
          speedup && above_limit(*point.results, *point.run).empty())
        at[side_of(speedup, 1)].push_back(grouped(batch));
    if (at.empty()) continue;
    std::string text;
    const auto add = [&](Side side, const char* begin, const char* next, const std::string& what) {
      if (at.count(side) > 0) text += concat(text.empty() ? begin : next, what, " at batch ", listed(at[side]));
    };
    add(Side::above, " is ", "", "faster than " + base);
    add(Side::below, " is ", ", ", text.empty() ? "slower than " + base : "slower");
    add(Side::open, ": ", "; ",
        text.empty() ? concat("no difference from ", base, " was measured") : "no difference was measured");
    out.push_back(concat(series.name, " on ", count_text(series.devices), text, "."));
  }
  return out;
}

Chart batch_chart(const std::vector<Results>& batches) {
  const std::string base = base_text(batches.front());
  Chart chart{.id = "batches", .title = "Speed-up against batch", .unit = "speed-up", .log_x = true};
  std::set<std::int64_t> drawn;
  bool intervals = false;
  const std::vector<BatchSeries> all = batch_series(batches);
  // On one device there is nothing to gain: only where no mode has more is it drawn.
  const int least = std::min(2, most_devices(all));
  for (const BatchSeries& series : all) {
    if (series.devices < least) continue;
    ChartSeries& line = chart.series_of(concat(series.name, " ", series.devices), series.mode, "line");
    for (const auto& [batch, point] : series.points) {
      drawn.insert(batch);
      intervals = intervals || speedup_interval(*point.run);
      line.add(static_cast<double>(batch), drawn_speedup(*point.run),
               concat(series.name, " on ", series.devices, ", batch ", grouped(batch), ": ", speedup_text(*point.run)));
    }
  }
  for (const std::int64_t batch : drawn) {
    const auto at = static_cast<double>(batch);
    chart.marks.emplace_back(at, concat(batches.front().weak ? "batch of each " : "batch ", grouped(batch)));
    chart.series_of(base, "single", "dashed").add(at, 1, base + ": 1x");
  }
  if (!all.empty())
    chart.caption = concat("How many times ", base, "'s samples a second",
                           least < 2 ? "" : ", for every mode and number of devices above 1",
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
  page.section("What was run", page_entries({{"command line", command_line}}));
  return page.html();
}

std::string batches_json(const std::vector<Results>& batches, bool partial) {
  Json list = Json::array();
  for (const Results& results : batches) list.push_back(Json::parse(to_json(results)));
  return text_of(Json{{"duet", DUET_VERSION}, {"partial", partial}, {"batches", list}});
}

}  // namespace duet::cli
