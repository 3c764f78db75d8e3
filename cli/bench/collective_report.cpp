// The rows of duet bench COLLECTIVE as JSON and as a page with pictures.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/bench/collective_rows.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "lib/error.h"
#include "report/page/page.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

// Those of the page's colours that differ most.
constexpr const char* kColours[] = {"dp", "averaging", "ddp", "single"};

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
std::optional<T> optional_from(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<T>());
}

Json json_of(const CollectiveRow& row) {
  return {{"backend", row.backend},
          {"algorithm", row.algorithm},
          {"ranks", row.ranks},
          {"size_bytes", row.bytes},
          {"count", row.count},
          {"time_us", row.time_us},
          {"min_us", or_null(row.min_us)},
          {"max_us", or_null(row.max_us)},
          {"algbw_gb_s", row.algorithm_gb_s},
          {"busbw_gb_s", row.bus_gb_s},
          {"wrong", or_null(row.wrong)}};
}

std::string size_text(double bytes) {
  for (const char* unit : {"B", "KiB", "MiB"}) {
    if (bytes < 1024) return shortest(bytes) + " " + unit;
    bytes /= 1024;
  }
  return shortest(bytes) + " GiB";
}

std::string curve_of(const CollectiveRow& row) {
  return row.algorithm == "library" ? row.backend : row.algorithm + ", " + row.backend;
}

/// `value` of every row over its size, both in logarithms.
Chart log_chart(const std::vector<CollectiveRow>& rows, const std::string& id, const std::string& title,
                const std::string& unit, const std::string& caption,
                const std::function<double(const CollectiveRow&)>& value) {
  Chart chart{.id = id, .title = title, .unit = unit, .log_x = true, .log_y = true, .caption = caption};
  if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return !(value(row) > 0); })) return chart;
  std::set<std::int64_t> sizes;
  for (const CollectiveRow& row : rows) {
    sizes.insert(row.bytes);
    const char* const colour = kColours[chart.series.size() % std::size(kColours)];
    const std::string curve = curve_of(row);
    chart.series_of(curve, colour, "line")
        .add(static_cast<double>(row.bytes), value(row),
             concat(curve, ": ", grouped(row.bytes), " bytes, ", fixed(value(row), 2), " ", unit));
  }
  const std::size_t step = sizes.size() / 8 + 1;
  std::size_t at = 0;
  for (const std::int64_t size : sizes)
    if (at++ % step == 0 || at == sizes.size())
      chart.marks.emplace_back(static_cast<double>(size), size_text(static_cast<double>(size)));
  return chart;
}

}  // namespace

std::string row_json(const CollectiveRow& row) { return json_of(row).dump(); }

CollectiveRow parse_row(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return {json.at("backend"),
            json.at("algorithm"),
            json.at("ranks"),
            json.at("size_bytes"),
            json.at("count"),
            json.at("time_us"),
            optional_from<double>(json.at("min_us")),
            optional_from<double>(json.at("max_us")),
            json.at("algbw_gb_s"),
            json.at("busbw_gb_s"),
            optional_from<std::int64_t>(json.at("wrong"))};
  } catch (const Json::exception& error) {
    throw DataError(concat("not a row of duet bench: '", text, "': ", error.what()));
  }
}

std::string rows_json(const CollectiveOptions& options, const std::vector<CollectiveRow>& rows) {
  const Machine machine = this_machine();
  Json list = Json::array();
  for (const CollectiveRow& row : rows) list.push_back(json_of(row));
  const Json out = {{"duet", DUET_VERSION},
                    {"collective", options.collective},
                    {"type", name(options.dtype)},
                    {"device", kind_title(options.device)},
                    {"iterations", options.iterations},
                    {"warm_up", options.warm_up},
                    {"cpu", machine.cpu},
                    {"cores", machine.cores},
                    {"rows", list}};
  return out.dump(1) + "\n";
}

std::string rows_html(const CollectiveOptions& options, const std::vector<CollectiveRow>& rows,
                      const std::string& command_line) {
  const Machine machine = this_machine();
  const std::string ranks = concat(options.devices, options.devices == 1 ? " rank" : " ranks");
  Page page("duet bench " + options.collective,
            concat(options.collective, " of ", options.dtype, " among ", ranks, " on ",
                   options.device == DeviceKind::cpu ? machine.cpu : kind_title(options.device)));
  const std::string time = page.picture(
      log_chart(rows, "time", "Time of one call against size", "us",
                "Mean over the calls and ranks, against the bytes of a rank's longer buffer; both in logarithms.",
                [](const auto& row) { return row.time_us; }));
  const std::string bandwidth =
      page.picture(log_chart(rows, "bandwidth", "Bus bandwidth against size", "GB/s",
                             concat("As nccl-tests define it: bytes over time, times ",
                                    shortest(bus_factor(options.collective, options.devices)), " for ", ranks, "."),
                             [](const auto& row) { return row.bus_gb_s; }));
  page.add("<div class=\"first\">\n" + time + bandwidth + "</div>\n");
  page.section("What was run",
               "<dl>\n" + page_entry("command line", command_line) +
                   page_entry("machine", concat(machine.cpu, ", ", machine.cores, " cores, ", machine.kernel)) +
                   page_entry("calls", concat(options.iterations, " timed after ", options.warm_up)) + "</dl>\n");
  page.data(rows_json(options, rows));
  return page.html();
}

}  // namespace duet::cli
