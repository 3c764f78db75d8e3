#include "compare/report/page/page.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "lib/error.h"

namespace duet::cli {
namespace {

/// JSON in which no text begins what a <script> would take for a tag or a comment.
std::string in_script(std::string json) {
  for (std::size_t at = json.find('<'); at != std::string::npos; at = json.find('<', at))
    json.replace(at, 1, "\\u003c");
  return json;
}

std::string with_class(const std::string& css) { return css.empty() ? "" : " class=\"" + css + "\""; }

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ChartPoint, at, value, low, high, tip, computed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ChartSeries, name, colour, shape, points)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Chart, id, title, unit, rows, side_by_side, log_x, log_y, marks, series)

std::string to_json(const std::vector<Chart>& charts) { return nlohmann::json(charts).dump(); }

std::string filled(std::string_view text, const std::map<std::string, std::string>& values) {
  std::string out;
  for (std::size_t begin = text.find("{{"); begin != std::string_view::npos; begin = text.find("{{")) {
    out += text.substr(0, begin);
    const std::size_t end = text.find("}}", begin);
    std::string name(text.substr(begin + 2, end - begin - 2));
    text.remove_prefix(end + 2);
    if (!name.starts_with('#')) {
      out += values.at(name);
      continue;
    }
    name.erase(0, 1);
    const std::string last = "{{/" + name + "}}";
    const std::size_t length = text.find(last);
    if (!values.at(name).empty()) out += filled(text.substr(0, length), values);
    text.remove_prefix(length + last.size());
  }
  return out.append(text);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

std::string page_entries(const std::vector<std::pair<std::string, std::string>>& entries, const std::string& css) {
  std::string out;
  for (const auto& [name, value] : entries)
    if (!value.empty()) out += "<dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd>\n";
  return out.empty() ? "" : concat("<dl", with_class(css), ">\n", out, "</dl>\n");
}

std::string page_note(const std::string& text) {
  return text.empty() ? "" : "<p class=\"note\">" + escaped(text) + "</p>\n";
}

std::string page_list(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += "<li>" + escaped(text) + "</li>\n";
  return out.empty() ? "" : "<ul>\n" + out + "</ul>\n";
}

std::string alternative_text(const Chart& chart) {
  constexpr std::size_t kMostTips = 40;  // lines of many steps are left to their captions
  std::string text = concat(chart.title, ", in ", chart.unit, ".");
  std::size_t tips = 0;
  for (const ChartSeries& series : chart.series) tips += series.points.size();
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& point : series.points)
      if (tips <= kMostTips) text += concat(" ", point.tip, ".");
  return concat(text, chart.caption.empty() ? "" : " ", chart.caption);
}

std::string page_table(const std::vector<std::vector<std::string>>& rows, const std::string& css) {
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    const std::string cell = out.empty() ? "th" : "td";
    const std::size_t missing = rows[0].size() - row.size();
    out += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool last = c + 1 == row.size();
      const std::string kind = !last                      ? ""
                               : missing > 0              ? concat(" class=\"why\" colspan=\"", missing + 1, "\"")
                               : row[c] == "yes"          ? " class=\"yes\""
                               : row[c].starts_with("no") ? " class=\"no\""
                                                          : "";
      out += concat("<", cell, kind, ">", escaped(row[c]), "</", cell, ">");
    }
    out += "</tr>\n";
  }
  return out.empty() ? "" : concat("<div class=\"wide\"><table", with_class(css), ">\n", out, "</table></div>\n");
}

void Page::section(const std::string& title, const std::string& html) {
  if (html.empty()) return;
  const bool drawn = html.find("<figure") != std::string::npos;
  add(concat("<details", drawn ? " class=\"drawn\"" : "", ">\n<summary>", escaped(title), "</summary>\n", html,
             "</details>\n"));
}

std::string Page::picture(const Chart& chart) {
  if (chart.empty() || page_file("chart.js").empty()) return "";
  charts_.push_back(chart);
  Chart still = chart;  // whose caption stands below
  still.caption.clear();
  std::string svg = chart.rows.empty() ? "" : to_svg(still);
  if (!svg.empty()) svg = "<noscript>" + svg.replace(0, svg.find(" role"), "<svg") + "</noscript>";
  return concat("<figure data-chart=\"", chart.id, "\"><figcaption>", escaped(chart.title),
                "</figcaption><div class=\"canvas\" ", "style=\"--rows: ", chart.rows.empty() ? 10 : chart.rows.size(),
                "\"><canvas role=\"img\" aria-label=\"", escaped(alternative_text(chart)), "\"></canvas></div>", svg,
                page_note(chart.caption), "</figure>\n");
}

std::string Page::html() const {
  const bool drawn = !page_file("chart.js").empty();
  return filled(
      page_file("page.html"),
      {{"title", escaped(title_)},
       {"heading", escaped(heading_)},
       {"style", page_file("report.css")},
       {"body", (drawn ? "<noscript><style>.canvas, figcaption { display: none; }</style>\n"
                         "<p class=\"note\">Pictures of curves need JavaScript.</p></noscript>\n"
                       : page_note("There are no pictures: duet was built without Chart.js, which Debian's package "
                                   "libjs-chart.js brings.")) +
                    body_},
       {"version", DUET_VERSION},
       {"charts", in_script(to_json(charts_))},
       {"data", in_script(data_.empty() ? "null" : data_)},
       {"chart.js", charts_.empty() ? "" : page_file("chart.js")},
       {"report.js", charts_.empty() ? "" : page_file("report.js")}});
}

}  // namespace duet::cli
