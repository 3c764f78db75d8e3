#include "cli/compare_batches.h"

#include <cstdint>

#include "cli/system/files.h"
#include "cli/system/terminal.h"
#include "report/batches.h"

namespace duet::cli {

std::vector<CompareOptions> options_of_batches(const CompareOptions& options) {
  if (options.batches.size() == 1) return {options};
  std::vector<CompareOptions> all;
  for (const std::int64_t batch : options.batches) {
    CompareOptions& one = all.emplace_back(options);
    one.batch = batch;
    one.batches = {batch};
    one.time_budget_s = options.time_budget_s / static_cast<double>(options.batches.size());
    one.out = options.out + "/" + batch_folder(batch);
  }
  return all;
}

void report_batches(const CompareOptions& options, const std::vector<Results>& batches, bool partial,
                    const std::string& command_line, std::FILE* out) {
  const TerminalStyle style = terminal_style(out, options.quiet);
  if (const std::string table = batch_table(batches, style); !table.empty()) std::fprintf(out, "\n%s", table.c_str());
  for (const std::string& sentence : batch_findings(batches)) std::fprintf(out, "  %s\n", sentence.c_str());
  const std::string json = batches_json(batches, partial);
  write_output(options.out + "/results.json", json);
  write_output(options.out + "/index.html", batches_page(batches, partial, command_line));
  std::fprintf(out, "\nreport %s/index.html · data %s/results.json\n", options.out.c_str(), options.out.c_str());
  write_json(options.json, json);
}

}  // namespace duet::cli
