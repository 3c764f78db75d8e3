// duet show: what a comparison found, or two of them side by side, from their results.json.
#include <cstdio>
#include <string>

#include "cli/options/options.h"
#include "cli/share.h"
#include "cli/system/display.h"
#include "cli/system/files.h"
#include "compare/results.h"
#include "lib/base/text.h"
#include "lib/io/folder.h"
#include "report/report.h"

namespace duet::cli {
namespace {

/// Reads a folder that duet compare has written, or its file. Control characters that others have sent become text.
Results sent(const std::string& place) {
  Results results = read_results(is_folder(place) ? place + "/results.json" : place);
  change_texts(results, [](const std::string& text) { return printable(text); });
  return results;
}

}  // namespace

int run(const ShowOptions& options, const std::string&) {
  require_json_output(options.json);
  std::FILE* const out = text_stream(options.json);
  const TerminalStyle style = terminal_style(out, false);
  const int columns = terminal_columns(out, kScreenColumns);
  const Results a = sent(options.a);
  if (options.b.empty()) {
    std::fputs(first_screen(a, {.columns = columns, .style = style, .out = ""}).c_str(), out);
    return 0;
  }
  const Results b = sent(options.b);
  std::fputs(side_by_side(a, b, columns, style).c_str(), out);
  write_json(options.json, side_by_side_json(a, b));
  return 0;
}

}  // namespace duet::cli
