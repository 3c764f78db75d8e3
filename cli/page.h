// index.html: the whole comparison as one file that needs no network.
#pragma once

#include <string>

#include "cli/results.h"

namespace duet::cli {

/// What results.json does not say, but someone who wants to repeat the run needs.
struct Provenance {
  std::string command_line;
  std::string versions;  // of the libraries
  std::string date;      // UTC
  int repeats = 1;
};

std::string to_html(const Results& results, const Provenance& provenance);

}  // namespace duet::cli
