#include "report/batches.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/page/page.h"
#include "report/report.h"
#include "report/speed.h"

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

std::vector<BatchSeries> on_most_devices(const std::vector<Results>& batches) {
  std::vector<BatchSeries> series = batch_series(batches);
  const int devices = most_devices(series);
  series.erase(std::remove_if(series.begin(), series.end(), [&](const auto& one) { return one.devices != devices; }),
               series.end());
  return series;
}

/// The speed-up with its interval and the table's mark where devices or cores cannot explain it; "-" where it was not
/// measured.
std::string cell_text(const BatchSeries& series, std::int64_t batch) {
  for (const BatchPoint& point : series.points)
    if (point.batch == batch)
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
  return concat("Speed-up over single on ", devices, devices == 1 ? " device" : " devices",
                batches.front().weak ? ", in samples a second (weak scaling: a batch of each device)" : "");
}

std::string html_table(const std::vector<Results>& batches) {
  std::string out;
  for (const std::vector<std::string>& row : rows_of(batches)) {
    const char* const cell = out.empty() ? "th" : "td";
    out += "<tr>";
    for (const std::string& text : row) out += concat("<", cell, ">", escaped(text), "</", cell, ">");
    out += "</tr>\n";
  }
  return out.empty() ? "" : "<div class=\"wide\"><table class=\"numbers\">\n" + out + "</table></div>\n";
}

}  // namespace

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
      same->points.push_back({results->settings.batch, results, &run});
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
  const std::vector<std::vector<std::string>> rows = rows_of(batches);
  if (rows.empty()) return "";
  std::vector<std::size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  std::string out = bold(title_of(batches), style) + "\n";
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string cell = flush_right(row[c], widths[c]);
      out += (c == 0 ? " " : "  ") + (&row == &rows[0] ? bold(cell, style) : cell);
    }
    out += "\n";
  }
  return out;
}

std::vector<std::string> batch_findings(const std::vector<Results>& batches) {
  std::vector<std::string> out;
  for (const BatchSeries& series : on_most_devices(batches)) {
    std::vector<std::string> faster, slower, neither;
    for (const BatchPoint& point : series.points) {
      const std::optional<Interval> speedup = speedup_interval(*point.run);
      if (!speedup || !above_limit(*point.results, *point.run).empty()) continue;
      (speedup->low > 1 ? faster : speedup->high < 1 ? slower : neither).push_back(grouped(point.batch));
    }
    std::string text;
    const auto add = [&](const char* what, const std::vector<std::string>& at) {
      if (!at.empty()) text += concat(text.empty() ? " is " : ", ", what, " at batch ", listed(at));
    };
    add("faster than single", faster);
    add(faster.empty() ? "slower than single" : "slower", slower);
    if (text.empty() && neither.empty()) continue;
    if (!neither.empty())
      text += concat(text.empty() ? ": no difference from single was measured at batch "
                                  : "; no difference was measured at batch ",
                     listed(neither));
    out.push_back(concat(series.name, " on ", series.devices, series.devices == 1 ? " device" : " devices", text, "."));
  }
  return out;
}

std::string batches_page(const std::vector<Results>& batches, bool partial, const std::string& command_line) {
  std::vector<std::string> numbers;
  std::string links;
  for (const Results* results : by_batch(batches)) {
    const std::int64_t batch = results->settings.batch;
    numbers.push_back(grouped(batch));
    links += concat("<li><a href=\"", batch_folder(batch), "/index.html\">batch ", grouped(batch),
                    "</a>: ", escaped(headline(*results)), "</li>\n");
  }
  Page page("duet compare", concat("Batches of ", listed(numbers), " compared"));
  if (partial) page.add(page_note(concat(kPartial, ".")));
  page.add(page.picture(batch_chart(batches), batch_caption(batches)));
  page.add("<ul>\n" + links + "</ul>\n");
  page.section(title_of(batches), html_table(batches));
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
