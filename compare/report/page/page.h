// What all pages share: one HTML file that needs no network, with a heading, sections that fold out, and pictures as
// data that report.js draws with Chart.js.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/measure/statistics.h"

namespace duet::cli {

/// One value. Of bars, `at` is the row, and the bar runs from `low` to `high`; else `at` is the place on the x axis,
/// the point lies at `value` and its error bar, if any, runs from `low` to `high`.
struct ChartPoint {
  double at = 0, value = 0, low = 0, high = 0;
  std::string tip;        // shown while the mouse is over it
  bool computed = false;  // not measured: lines to it are dashed
};

/// The legend shows and hides each.
struct ChartSeries {
  std::string name, colour;  // a colour of report.css without its dashes: "dp", "communication"
  std::string shape;         // "bar", "mark" (a point in a row of bars), "line" or "dashed"
  std::vector<ChartPoint> points{};

  void add(double at, const Interval& value, const std::string& tip) {
    points.push_back({at, value.middle, value.low, value.high, tip});
  }
  void add(double at, double value, const std::string& tip) { add(at, {value, value, value}, tip); }
};

struct Chart {
  std::string id, title, unit;
  std::vector<std::string> rows{};  // labels of the rows of horizontal bars; none: lines over x
  bool side_by_side = false;        // bars of several series in one row do not cover each other
  bool log_x = false, log_y = false;
  std::vector<std::pair<double, std::string>> marks{};  // on the x axis of lines; none: round numbers
  std::vector<ChartSeries> series{};
  std::string caption{};  // what stands under it

  /// The series of this name, a new one where there is none.
  ChartSeries& series_of(const std::string& name, const std::string& colour, const std::string& shape) {
    for (ChartSeries& one : series)
      if (one.name == name) return one;
    return series.emplace_back(ChartSeries{name, colour, shape});
  }
  ChartSeries& bar(const std::string& name) { return series_of(name, name, "bar"); }
  /// A new row; its number.
  double add_row(const std::string& label) {
    rows.push_back(label);
    return static_cast<double>(rows.size() - 1);
  }
  bool empty() const {
    return std::all_of(series.begin(), series.end(), [](const ChartSeries& one) { return one.points.empty(); });
  }
};

/// Describes a picture for readers who don't see it: title, unit, the values of its points if there are few, caption.
std::string alternative_text(const Chart& chart);
/// Draws horizontal bars as SVG with alternative_text(). Throws DataError for a picture without any.
std::string to_svg(const Chart& chart);

/// JSON for report.js; numbers that are not finite are null.
std::string to_json(const std::vector<Chart>& charts);

/// A template with its {{names}} replaced by their texts; from {{#name}} to {{/name}} it is left out where the name has
/// none.
std::string filled(std::string_view text, const std::map<std::string, std::string>& values);
/// `text` with &, <, > and quotes made safe for HTML.
std::string escaped(const std::string& text);
/// A <dl> of names and values, but for those whose value is empty; empty without any.
std::string page_entries(const std::vector<std::pair<std::string, std::string>>& entries, const std::string& css = "");
/// A note below a picture or a table; empty for an empty text.
std::string page_note(const std::string& text);
/// A <ul> of texts; empty without any.
std::string page_list(const std::vector<std::string>& texts);
/// A table of a header and rows; empty without any. The last cell of a row that is shorter says why; "yes" and "no..."
/// in the last column have colours of their own.
std::string page_table(const std::vector<std::vector<std::string>>& rows, const std::string& css = "");

class Page {
 public:
  Page(std::string title, std::string heading) : title_(std::move(title)), heading_(std::move(heading)) {}

  /// HTML that is always in sight.
  void add(const std::string& html) { body_ += html; }
  /// HTML that folds out below its title; nothing where it is empty.
  void section(const std::string& title, const std::string& html);
  /// The place of a picture and what stands under it: HTML to add or to put in a section. Empty without data or without
  /// Chart.js.
  std::string picture(const Chart& chart);
  /// The text of the JSON file that the page shows.
  void data(const std::string& json) { data_ = json; }
  std::string html() const;

 private:
  std::string title_, heading_, body_, data_;
  std::vector<Chart> charts_;
};

/// A file that the build put into the program: "page.html", "compare.html", "report.css", "report.js", and "chart.js",
/// empty where it found none.
std::string page_file(const std::string& name);

}  // namespace duet::cli
