// The rows of duet bench COLLECTIVE as JSON and as a page with pictures.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/collective_rows.h"
#include "cli/report/report.h"
#include "cli/report/svg.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kWidth = 760, kHeight = 380, kLeft = 70, kRight = 200, kTop = 30, kBottom = 46;
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

/// One axis in powers of ten or two.
struct LogAxis {
  double low, high;  // logarithms
  double begin, end;
  double operator()(double value) const { return begin + (end - begin) * (std::log2(value) - low) / (high - low); }
};

LogAxis axis_over(const std::vector<CollectiveRow>& rows, double base, double begin, double end,
                  const std::function<double(const CollectiveRow&)>& value) {
  double low = 1e300, high = 0;
  for (const CollectiveRow& row : rows) {
    low = std::min(low, value(row));
    high = std::max(high, value(row));
  }
  const double unit = std::log2(base);
  LogAxis axis{std::floor(std::log2(low) / unit) * unit, std::ceil(std::log2(high) / unit) * unit, begin, end};
  if (axis.high <= axis.low) axis.high = axis.low + unit;
  return axis;
}

/// `value` of every row over its size, both in logarithms.
std::string log_chart(const std::vector<CollectiveRow>& rows, const std::string& title, const std::string& unit,
                      const std::function<double(const CollectiveRow&)>& value) {
  if (rows.empty() || std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return !(value(row) > 0); }))
    return "";
  Svg svg(kWidth, kHeight, title);
  const LogAxis x = axis_over(rows, 2, kLeft, kWidth - kRight,
                              [](const CollectiveRow& row) { return static_cast<double>(row.bytes); });
  const LogAxis y = axis_over(rows, 10, kHeight - kBottom, kTop, value);
  for (double mark = std::exp2(y.low); mark <= std::exp2(y.high) * 1.001; mark *= 10) {
    svg.line(kLeft, y(mark), kWidth - kRight, y(mark), "grid");
    svg.text(kLeft - 8, y(mark) + 4, shortest(std::round(mark * 1e6) / 1e6), "end");
  }
  svg.text(kLeft - 8, kTop - 16, unit, "end");
  const int step = std::max(1, static_cast<int>(std::ceil((x.high - x.low) / 7)));
  for (double power = x.low; power <= x.high; power += step)
    svg.text(x(std::exp2(power)), kHeight - kBottom + 20, size_text(std::exp2(power)), "middle");
  double label = kTop + 4;
  std::size_t colour = 0;
  for (auto row = rows.begin(); row != rows.end(); label += 18, ++colour) {
    const std::string curve = curve_of(*row), css = kColours[colour % std::size(kColours)];
    const bool dashed = colour >= std::size(kColours);
    std::vector<std::pair<double, double>> points;
    std::vector<std::string> tips;
    for (; row != rows.end() && curve_of(*row) == curve; ++row) {
      points.emplace_back(x(static_cast<double>(row->bytes)), y(value(*row)));
      tips.push_back(concat(curve, ": ", grouped(row->bytes), " bytes, ", fixed(value(*row), 2), " ", unit));
    }
    svg.path(points, (dashed ? "curve dashed stroke-" : "curve stroke-") + css);
    for (std::size_t i = 0; i < points.size(); ++i) svg.dot(points[i].first, points[i].second, "fill-" + css, tips[i]);
    svg.text(kWidth - kRight + 14, label, (dashed ? "- - " : "") + curve, "start", "label ink-" + css);
  }
  return svg.str();
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
  return html_page(
      "duet bench " + options.collective,
      concat(options.collective, " of ", options.dtype, " among ", ranks, " on ",
             options.device == DeviceKind::cpu ? machine.cpu : kind_title(options.device)),
      page_section("Time of one call",
                   log_chart(rows, "Time of one call against size", "us", [](const auto& row) { return row.time_us; }),
                   "Mean over the calls and ranks, against the bytes of a rank's longer buffer; both in logarithms.") +
          page_section(
              "Bus bandwidth",
              log_chart(rows, "Bus bandwidth against size", "GB/s", [](const auto& row) { return row.bus_gb_s; }),
              concat("As nccl-tests define it: bytes over time, times ",
                     shortest(bus_factor(options.collective, options.devices)), " for ", ranks, ".")) +
          page_section("What was run",
                       "<dl>\n" + page_entry("command line", command_line) +
                           page_entry("machine", concat(machine.cpu, ", ", machine.cores, " cores, ", machine.kernel)) +
                           page_entry("calls", concat(options.iterations, " timed after ", options.warm_up)) +
                           "</dl>\n"));
}

}  // namespace duet::cli
