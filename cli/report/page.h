// index.html: the whole comparison as one file that needs no network.
#pragma once

#include <string>

#include "cli/report/results.h"

namespace duet::cli {

/// What repeating the run needs beyond results.json.
struct Provenance {
  std::string command_line;
  std::string versions;  // of the libraries
  std::string date;      // UTC
  int repeats = 1;
};

/// One page in the style of all reports; `title` and `heading` are text, `body` is HTML.
std::string html_page(const std::string& title, const std::string& heading, const std::string& body);
/// A headline, something below it and a note; empty where that is empty.
std::string page_section(const std::string& title, const std::string& body, const std::string& note);
/// An entry of a <dl>; empty for an empty value.
std::string page_entry(const std::string& name, const std::string& value);

std::string to_html(const Results& results, const Provenance& provenance);

}  // namespace duet::cli
