// index.html.
#include <cstddef>
#include <ctime>
#include <string>
#include <vector>

#include "cli/report/losses.h"
#include "cli/report/report.h"
#include "cli/report/scaling.h"
#include "cli/report/svg.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

/// A number and its unit stay on one line; a range in brackets may go to the next.
std::string unbroken(std::string text) {
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 1))
    if (text.compare(at, 2, " (") != 0) text.replace(at, 1, "\u00a0");
  return text;
}

std::string html_table(const Results& results) {
  const std::vector<std::string> columns = table_columns(results);
  std::string out = "<div class=\"wide\"><table>\n<tr>";
  for (const std::string& column : columns) out += "<th>" + escaped(column) + "</th>";
  out += "</tr>\n";
  for (const Run& run : results.runs) {
    const std::vector<std::string> row = table_row(results, run);
    out += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool last = c + 1 == columns.size();
      const char* css = last && row[c] == "yes"            ? " class=\"yes\""
                        : last && row[c].starts_with("no") ? " class=\"no\""
                                                           : "";
      out += concat("<td", css, ">", escaped(last || c == 0 ? row[c] : unbroken(row[c])), "</td>");
    }
    if (!run.ok)
      out += concat("<td class=\"why\" colspan=\"", columns.size() - row.size(), "\">failed: ", escaped(run.error),
                    "</td>");
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

/// What the columns of runs on GPUs say; empty for CPU.
std::string gpu_note(const Results& results) {
  for (const Run& run : results.runs)
    if (!run.on_cpu())
      return "<p class=\"note\">Devices are " + escaped(run.device) + ", precision " + escaped(run.precision) +
             ". per device: the most that tensors and workspaces took on one of them. moved/step: bytes copied to and "
             "from the busiest of them in a training step, without what NCCL sends. " +
             (run.eager_parts ? "Parts of a step are shares of steps without CUDA graphs that waited for the GPU after "
                                "each part."
                              : "Parts of a step are the host's times; update holds its wait for the GPU, and all of "
                                "a step that is replayed as a CUDA graph.") +
             "</p>\n";
  return "";
}

std::string sentences(const Results& results) {
  std::string out;
  for (const std::string& sentence : findings(results)) out += "<li>" + escaped(sentence) + "</li>\n";
  return out.empty() ? "" : "<ul>\n" + out + "</ul>\n";
}

/// The tutorials' lines; empty where averaging did not run.
std::string execution_times(const Results& results) {
  std::string lines;
  for (const Run& run : results.runs)
    if (run.ok && run.mode == "averaging" && run.execution_s > 0)
      lines += concat(lines.empty() ? "" : "\n", execution_line(run.devices, !run.on_cpu(), run.execution_s));
  return lines;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts)};
}

std::string provenance_list(const Results& results, const std::string& command_line, double time_budget_s) {
  const Machine& machine = results.machine;
  const Training& settings = results.settings;
  std::string gpus;
  for (const std::string& gpu : machine.gpus) gpus += (gpus.empty() ? "" : ", ") + gpu;
  std::string versions;
  for (const Library& library : libraries())
    if (library.present) versions += concat(versions.empty() ? "" : " · ", library.name, " ", library.version);
  const Run* const single = find_run(results, "single", 1);
  const std::string of_optimizer = (settings.optimizer == "sgd" ? ", momentum " + shortest(settings.momentum) : "") +
                                   (settings.weight_decay ? ", weight decay " + shortest(*settings.weight_decay) : "");
  return "<dl>\n" + page_entry("command line", command_line) +
         page_entry("machine", concat(machine.cpu, ", ", machine.cores, " cores, ", machine.isa, ", ",
                                      fixed(machine.memory_gb, 1), " GB, ", machine.kernel)) +
         page_entry("GPUs", gpus) + page_entry("versions", versions) + page_entry("date", utc_now()) +
         page_entry("network", network_text(settings.model, results.parameters)) +
         page_entry("data", concat(settings.data, ", ", grouped(settings.train_images), " training images")) +
         page_entry("settings", concat(batch_text(results), results.weak ? " (weak scaling)" : " (global)", ", epochs ",
                                       settings.epochs, ", ", settings.optimizer, ", lr ", shortest(settings.lr),
                                       of_optimizer, ", seed ", settings.seed, ", ", name(settings.precision),
                                       ", time budget ", shortest(time_budget_s), " s")) +
         page_entry("parameters of single, sha256", single ? single->parameters_sha256 : "") + "</dl>\n";
}

}  // namespace

std::string page_section(const std::string& title, const std::string& body, const std::string& note) {
  if (body.empty()) return "";
  // A picture keeps its letters readable, and scrolls, where the page is narrow.
  const std::string shown = body.starts_with("<svg") ? "<div class=\"wide\">\n" + body + "</div>\n" : body;
  return "<section>\n<h2>" + escaped(title) + "</h2>\n" + shown +
         (note.empty() ? "" : "<p class=\"note\">" + escaped(note) + "</p>\n") + "</section>\n";
}

std::string page_entry(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd>\n";
}

std::string html_page(const std::string& title, const std::string& heading, const std::string& body) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<title>" +
         escaped(title) + "</title>\n<style>" + page_style() + "</style>\n</head>\n<body>\n<h1>" + escaped(heading) +
         "</h1>\n" + body + "<footer>duet " DUET_VERSION "</footer>\n</body>\n</html>\n";
}

std::string to_html(const Results& results, const std::string& command_line, double time_budget_s) {
  std::string explained;
  for (const auto& [word, meaning] : words(results)) explained += page_entry(word, meaning);
  const std::string flattens = averaging_note(results), lines = execution_times(results);
  return html_page(
      "duet compare", headline(results),
      html_table(results) + (results.partial ? "<p class=\"note\">" + std::string(kPartial) + ".</p>\n" : "") +
          "<p class=\"note\">start: from exec to the end of the first step, less a median step. epoch: training only, "
          "median (min..max). waiting and moving: shares of a step in which computing stands still, for the last rank "
          "or replica, and for moving and adding. memory: processes times the largest. same result: whether all "
          "parameters equal single's, " +
          std::string(results.weak ? "of ddp dp's on as many devices, " : "") + "bit for bit.</p>\n" +
          gpu_note(results) + page_section("Findings", sentences(results)) +
          page_section("Time of an epoch against devices", epoch_chart(results),
                       epoch_caption(results) + (flattens.empty() ? "" : " " + flattens)) +
          (lines.empty() ? "" : "<pre>" + escaped(lines) + "</pre>\n") +
          page_section("Where a step's time goes", parts_chart(results), parts_caption(results)) +
          page_section("One step, as it ran", step_chart(results), step_caption(results)) +
          page_section("What a step loses", loss_waterfall(results), waterfall_caption(results)) +
          page_section("Memory of every process", memory_chart(results),
                       "Peak of each. A row with several processes shows a bar for each, and their number times the "
                       "largest.") +
          page_section("Memory of every device", device_memory_chart(results),
                       "The most that tensors and workspaces took on each, without CUDA's own and its libraries'.") +
          page_section("Training loss", loss_chart(results), loss_caption(results)) +
          page_section("Words", explained.empty() ? "" : "<dl class=\"words\">\n" + explained + "</dl>\n") +
          prediction_section(results) +
          page_section("What was run", provenance_list(results, command_line, time_budget_s)));
}

}  // namespace duet::cli
