// index.html, and the style of all pages.
#include <cstddef>
#include <ctime>
#include <string>
#include <vector>

#include "cli/report/report.h"
#include "cli/report/svg.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1c1c1a; --soft: #6b6a64; --grid: #e3e2dd; --bad: #b3261e; --good: #1b7f3b;
  --single: #52514e; --averaging: #c26a00; --dp: #2a78d6; --ddp: #0f8a63;
  --input: #8f8d86; --scatter: #f6c66b; --replicate: #eda100; --forward: #86b6ef; --gather: #d98a00; --loss: #5598e7;
  --backward: #2a66bd; --communication: #d03b3b; --update: #5fae8b; }
@media (prefers-color-scheme: dark) { :root { --page: #191918; --ink: #f1f0ec; --soft: #a3a199; --grid: #383733; --bad: #ff8a80; --good: #6fcf97;
  --single: #c3c2b7; --averaging: #f0a24a; --dp: #6aa9f2; --ddp: #3fc79a;
  --input: #7d7b75; --scatter: #c98f1c; --replicate: #eda100; --forward: #86b6ef; --gather: #b36f00; --loss: #5598e7;
  --backward: #2f6fc9; --communication: #e66767; --update: #4d9a78; } }
@media print { :root { color-scheme: light; } section { break-inside: avoid; } body { max-width: none; } }
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } p.note, footer, caption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; width: 100%; }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child, th:last-child, td:last-child, td.why { text-align: left; } td.why { color: var(--bad); white-space: normal; }
td.yes { color: var(--good); } td.no { color: var(--bad); } dt { color: var(--soft); } dd { margin: 0 0 .5rem 0; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; max-width: 760px; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.grid { stroke: var(--grid); } .curve { fill: none; stroke-width: 2; } .range { stroke-width: 5; opacity: .45; }
.dashed { stroke-dasharray: 6 4; } .ideal { stroke: var(--soft); stroke-dasharray: 5 5; } svg text.ink-ideal { fill: var(--soft); }
.over-single { stroke-width: 8; opacity: .35; } .over-dp { stroke-width: 4; } .over-ddp { stroke-width: 1.5; }
)";

std::string mode_styles() {
  std::string out;
  for (const char* const mode : {"single", "averaging", "dp", "ddp"})
    out += concat(".stroke-", mode, " { stroke: var(--", mode, "); } .fill-", mode, " { fill: var(--", mode,
                  "); } svg text.ink-", mode, " { fill: var(--", mode, "); }\n");
  for (const PartName& part : kStepParts) out += concat(".part-", part.name, " { fill: var(--", part.name, "); }\n");
  return out;
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
      out += concat("<td", css, ">", escaped(row[c]), "</td>");
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
             "from the busiest of them in a training step, without what NCCL sends. Parts of a step are the host's "
             "times; update holds its "
             "wait for the GPU, and all of a step that is replayed as a CUDA graph.</p>\n";
  return "";
}

std::string sentences(const Results& results) {
  std::string out;
  for (const std::string& sentence : findings(results)) out += "<li>" + escaped(sentence) + "</li>\n";
  return out.empty() ? "" : "<ul>\n" + out + "</ul>\n";
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
         page_entry("data", concat(settings.data, ", ", grouped(settings.train_images), " training images")) +
         page_entry("settings",
                    concat("batch ", settings.batch, " (global), epochs ", settings.epochs, ", ", settings.optimizer,
                           ", lr ", shortest(settings.lr), of_optimizer, ", seed ", settings.seed, ", ",
                           name(settings.precision), ", time budget ", shortest(time_budget_s), " s")) +
         page_entry("parameters of single, sha256", single ? single->parameters_sha256 : "") + "</dl>\n";
}

}  // namespace

std::string page_section(const std::string& title, const std::string& body, const std::string& note) {
  if (body.empty()) return "";
  return "<section>\n<h2>" + escaped(title) + "</h2>\n" + body +
         (note.empty() ? "" : "<p class=\"note\">" + escaped(note) + "</p>\n") + "</section>\n";
}

std::string page_entry(const std::string& name, const std::string& value) {
  return value.empty() ? "" : "<dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd>\n";
}

std::string html_page(const std::string& title, const std::string& heading, const std::string& body) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<title>" +
         escaped(title) + "</title>\n<style>" + std::string(kStyle) + mode_styles() +
         "</style>\n</head>\n<body>\n<h1>" + escaped(heading) + "</h1>\n" + body +
         "<footer>duet " DUET_VERSION "</footer>\n</body>\n</html>\n";
}

std::string to_html(const Results& results, const std::string& command_line, double time_budget_s) {
  return html_page(
      "duet compare", headline(results),
      html_table(results) + (results.partial ? "<p class=\"note\">" + std::string(kPartial) + ".</p>\n" : "") +
          "<p class=\"note\">start: from exec to the end of the first step, less a median step. epoch: training only, "
          "median (min..max). waiting: share of a step in which compute waits for communication. memory: the "
          "largest process. same result: whether all parameters equal single's, bit for bit.</p>\n" +
          gpu_note(results) + page_section("Findings", sentences(results)) +
          page_section(
              "Time of an epoch against devices", epoch_chart(results),
              "The picture that tutorials on data-parallel training draw. The dashed line is single's time divided by "
              "the number of devices; thick bars run from the fastest to the slowest epoch. A curve that turns up "
              "again has more devices than cores, or more communication than there was time to save.") +
          page_section(
              "Where a step's time goes", parts_chart(results),
              "Means over the epoch, along the critical path. Communication that is hidden behind backward is not in "
              "it.") +
          page_section(
              "One step, as it ran", step_chart(results),
              "The step of median time, from the trace that every run records. A block that lies in another one is a "
              "part of it. Ranks of one machine share the clock.") +
          page_section("Memory of every process", memory_chart(results)) +
          page_section("Memory of every device", device_memory_chart(results),
                       "The most that tensors and workspaces took on each, without CUDA's own and its libraries'.") +
          page_section("Training loss", loss_chart(results),
                       "Runs that learn the same bits lie on one line; averaging trains every rank on its own part of "
                       "the data.") +
          page_section("What was run", provenance_list(results, command_line, time_budget_s)));
}

}  // namespace duet::cli
