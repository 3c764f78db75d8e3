#include "report/page/page.h"

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>

#include "lib/error.h"

namespace duet::cli {
namespace {

/// JSON in which no text begins what a <script> would take for a tag or a comment.
std::string in_script(const std::string& json) {
  std::string out;
  for (const char c : json)
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  return out;
}

/// The template with its {{names}} replaced.
std::string filled(const std::string& text, const std::map<std::string, std::string>& values) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t at = text.find("{{"); at != std::string::npos; at = text.find("{{", from)) {
    const std::size_t end = text.find("}}", at);
    out += text.substr(from, at - from) + values.at(text.substr(at + 2, end - at - 2));
    from = end + 2;
  }
  return out + text.substr(from);
}

}  // namespace

std::string to_json(const std::vector<Chart>& charts) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Chart& chart : charts) {
    Json all = Json::array();
    for (const ChartSeries& series : chart.series) {
      Json points = Json::array();
      for (const ChartPoint& point : series.points)
        points.push_back({{"at", point.at},
                          {"value", point.value},
                          {"low", point.low},
                          {"high", point.high},
                          {"tip", point.tip},
                          {"computed", point.computed}});
      all.push_back({{"name", series.name}, {"colour", series.colour}, {"shape", series.shape}, {"points", points}});
    }
    Json marks = Json::array();
    for (const auto& [at, label] : chart.marks) marks.push_back({{"at", at}, {"label", label}});
    list.push_back({{"id", chart.id},
                    {"title", chart.title},
                    {"unit", chart.unit},
                    {"rows", chart.rows},
                    {"side_by_side", chart.side_by_side},
                    {"log_x", chart.log_x},
                    {"log_y", chart.log_y},
                    {"marks", marks},
                    {"series", all}});
  }
  return list.dump();
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

std::string page_entry(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd>\n";
}

std::string page_note(const std::string& text) {
  return text.empty() ? "" : "<p class=\"note\">" + escaped(text) + "</p>\n";
}

std::string page_list(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += "<li>" + escaped(text) + "</li>\n";
  return out.empty() ? "" : "<ul>\n" + out + "</ul>\n";
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
  const std::string kind = css.empty() ? "" : " class=\"" + css + "\"";
  return out.empty() ? "" : concat("<div class=\"wide\"><table", kind, ">\n", out, "</table></div>\n");
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
  return concat("<figure data-chart=\"", chart.id, "\"><figcaption>", escaped(chart.title),
                "</figcaption><div class=\"canvas\" ", "style=\"--rows: ", chart.rows.empty() ? 10 : chart.rows.size(),
                "\"><canvas role=\"img\" aria-label=\"", escaped(chart.title), "\"></canvas></div>",
                page_note(chart.caption), "</figure>\n");
}

std::string Page::html() const {
  const bool drawn = !page_file("chart.js").empty();
  return filled(
      page_file("page.html"),
      {{"title", escaped(title_)},
       {"heading", escaped(heading_)},
       {"style", page_file("report.css")},
       {"body", (drawn ? "<noscript><p class=\"note\">The pictures are drawn by a script.</p></noscript>\n"
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
