#include "cli/show.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "cli/share.h"
#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "lib/base/text.h"
#include "lib/io/folder.h"
#include "train/options/options.h"
#include "train/system/files.h"

namespace duet::cli {
namespace {

/// Control characters that others have sent become text.
void clean(Results& results) {
  change_texts(results, [](const std::string& text) { return printable(text); });
}

/// The folder of such a file, if duet compare's page lies in it, too; else empty.
std::string report_folder(const std::string& file) {
  const std::string folder = folder_of(file);
  std::error_code ignored;
  const bool whole =
      file.ends_with("results.json") && std::filesystem::is_regular_file(folder + "/index.html", ignored);
  return whole ? folder : "";
}

/// Prints again what duet compare printed.
void show_again(const ShowOptions& options, TerminalStyle style, std::FILE* out) {
  const std::string file = results_file(options.a);
  Results results = read_results(file);
  clean(results);
  const ShowSettings settings{
      .wide = options.wide, .tutorial = options.tutorial, .style = style, .out = report_folder(file)};
  print_results(results, settings, out);
}

void print_execution_times(const Results& results, std::FILE* out) {
  if (const std::string lines = execution_lines(results); !lines.empty()) std::fprintf(out, "\n%s", lines.c_str());
}

/// All rows and columns, and all sentences.
void print_wide(const Results& results, TerminalStyle style, std::FILE* out) {
  std::fprintf(out, "\n%s", table(results, style).c_str());
  print_execution_times(results, out);
  const auto print = [&](const char* title, const std::vector<std::string>& lines) {
    if (!lines.empty()) std::fprintf(out, "\n%s\n", bold(title, style).c_str());
    for (const std::string& line : lines) std::fprintf(out, "  %s\n", line.c_str());
  };
  print("Findings", findings(results));
  print("What a step loses", overhead_lines(results));
  print("Predicted from its parts", prediction_lines(results));
}

}  // namespace

void print_results(const Results& results, const ShowSettings& settings, std::FILE* out) {
  if (settings.wide) {
    print_wide(results, settings.style, out);
    const char* const folder = settings.out.c_str();
    if (!settings.out.empty())
      std::fprintf(out, "\nreport %s/index.html · data %s/results.json, %s/results.csv\n", folder, folder, folder);
    return;
  }
  const ScreenOptions screen{
      .columns = terminal_columns(out, kScreenColumns), .style = settings.style, .out = settings.out};
  std::fprintf(out, "\n%s", first_screen(results, screen).c_str());
  if (settings.tutorial) print_execution_times(results, out);
}

int run(const ShowOptions& options, const std::string&) {
  require_json_output(options.json);
  std::FILE* const out = text_stream(options.json);
  const TerminalStyle style = terminal_style(out, false);
  if (options.b.empty()) {
    show_again(options, style, out);
    return 0;
  }
  Results a = read_results(results_file(options.a)), b = read_results(results_file(options.b));
  clean(a);
  clean(b);
  std::fputs(side_by_side(a, b, terminal_columns(out, kScreenColumns), style).c_str(), out);
  write_json(options.json, side_by_side_json(a, b));
  return 0;
}

}  // namespace duet::cli
