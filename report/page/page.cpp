#include "report/page/page.h"

#include <cstddef>
#include <map>

#include "lib/error.h"

namespace duet::cli {
namespace {

/// JSON within a <script> must not hold what ends it.
std::string in_script(std::string json) {
  for (std::size_t at = json.find("</"); at != std::string::npos; at = json.find("</", at + 3))
    json.insert(at + 1, "\\");
  return json;
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

void Page::section(const std::string& title, const std::string& html) {
  if (html.empty()) return;
  const bool drawn = html.find("<figure") != std::string::npos;
  add(concat("<details", drawn ? " class=\"drawn\"" : "", ">\n<summary>", escaped(title), "</summary>\n", html,
             "</details>\n"));
}

std::string Page::picture(const Chart& chart, const std::string& note) {
  if (chart.empty() || page_file("chart.js").empty()) return "";
  charts_.push_back(chart);
  return concat("<figure data-chart=\"", chart.id, "\"><figcaption>", escaped(chart.title),
                "</figcaption><div class=\"canvas\" ", "style=\"--rows: ", chart.rows.empty() ? 10 : chart.rows.size(),
                "\"><canvas role=\"img\" aria-label=\"", escaped(chart.title), "\"></canvas></div>", page_note(note),
                "</figure>\n");
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
