#include "cli/show.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "cli/share.h"
#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/folder.h"
#include "train/measure/json_fields.h"
#include "train/options/options.h"
#include "train/system/files.h"

namespace duet::cli {
namespace {

/// Prints in the characters that the terminal's locale has.
void put(std::FILE* out, const std::string& text) { std::fputs(for_locale(text).c_str(), out); }

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

/// Reads results.json, or the record of one run by duet train --result as results with this run only.
Results comparison_or_run(const std::string& file) {
  const std::string text = read_file(file);
  const Json json = parsed_json(text);
  if (!json.is_object() || !json.contains("step_us")) return read_results(file);
  Results results;
  results.runs.push_back(with_prefix([&] { return file + ": "; }, [&] { return run_from_json(text); }));
  return results;
}

/// Prints again what duet compare printed.
void show_again(const ShowOptions& options, TerminalStyle style, std::FILE* out) {
  const std::string file = results_file(options.a);
  Results results = options.parts ? comparison_or_run(file) : read_results(file);
  clean(results);
  if (!options.svg.empty()) {
    Chart chart = speedup_chart(results);
    chart.caption += concat(" ", setting_line(results), ".");
    return write_output(options.svg, with_prefix([&] { return file + ": "; }, [&] { return to_svg(chart); }));
  }
  if (options.parts) return put(out, parts_text(results, terminal_columns(out, kAnyWidth)));
  const ShowSettings settings{
      .wide = options.wide, .tutorial = options.tutorial, .style = style, .out = report_folder(file)};
  print_results(results, settings, out);
}

void print_execution_times(const Results& results, std::FILE* out) {
  if (const std::string lines = execution_lines(results); !lines.empty()) put(out, "\n" + lines);
}

/// All rows and columns, and all sentences.
void print_wide(const Results& results, TerminalStyle style, std::FILE* out) {
  const int columns = terminal_columns(out, kAnyWidth);
  put(out, "\n" + table(results, style, columns));
  print_execution_times(results, out);
  const auto print = [&](const char* title, const std::vector<std::string>& lines) {
    if (!lines.empty()) put(out, concat("\n", bold(title, style), "\n"));
    for (const std::string& line : lines) put(out, wrapped_text(line, columns, 2));
  };
  print("Findings", findings(results));
  print("Predicted from its parts", prediction_lines(results));
}

}  // namespace

void print_results(const Results& results, const ShowSettings& settings, std::FILE* out) {
  if (settings.wide) {
    print_wide(results, settings.style, out);
    const std::string& folder = settings.out;
    if (!folder.empty())
      put(out, concat("\nreport ", folder, "/index.html · data ", folder, "/results.json, ", folder, "/results.csv\n"));
    return;
  }
  const ScreenOptions screen{
      .columns = terminal_columns(out, kScreenColumns), .style = settings.style, .out = settings.out};
  put(out, "\n" + first_screen(results, screen));
  if (settings.tutorial) print_execution_times(results, out);
}

int run(const ShowOptions& options, const std::string&) {
  require_json_output(options.json);
  require_outputs({{.option = "--svg", .path = options.svg}});
  std::FILE* const out = text_stream(options.json);
  const TerminalStyle style = terminal_style(out, false);
  if (options.b.empty()) {
    show_again(options, style, out);
    return 0;
  }
  Results a = read_results(results_file(options.a)), b = read_results(results_file(options.b));
  clean(a);
  clean(b);
  put(out, side_by_side(a, b, terminal_columns(out, kScreenColumns), style));
  write_json(options.json, side_by_side_json(a, b));
  return 0;
}

}  // namespace duet::cli
