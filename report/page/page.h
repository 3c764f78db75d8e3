// What all pages share: one HTML file that needs no network, with a heading, sections that fold out, and pictures.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/page/chart.h"

namespace duet::cli {

/// `text` with &, <, > and quotes made safe for HTML.
std::string escaped(const std::string& text);
/// An entry of a <dl>; empty for an empty value.
std::string page_entry(const std::string& name, const std::string& value);
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

/// A file that the build put into the program: "page.html", "report.css", "report.js", and "chart.js", empty where it
/// found none.
std::string page_file(const std::string& name);

}  // namespace duet::cli
