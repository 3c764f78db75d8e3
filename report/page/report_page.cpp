// index.html.
#include <cstddef>
#include <ctime>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "cli/system/display.h"
#include "cli/system/machine.h"
#include "lib/error.h"
#include "report/evidence.h"
#include "report/page/page.h"
#include "report/report.h"
#include "report/scaling.h"

namespace duet::cli {
namespace {

/// A number and its unit stay on one line; a range in brackets may go to the next.
std::string unbroken(std::string text) {
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 1))
    if (text.compare(at, 2, " (") != 0) text.replace(at, 1, "\u00a0");
  return text;
}

std::string html_table(const Results& results) {
  std::vector<std::vector<std::string>> rows = {table_columns(results)};
  for (const Run& run : results.runs) {
    std::vector<std::string>& row = rows.emplace_back(table_row(results, run));
    for (std::size_t c = 1; c + 1 < row.size(); ++c) row[c] = unbroken(row[c]);
    if (!run.ok) row.push_back("failed: " + run.error);
  }
  return page_table(rows);
}

/// What the columns of runs on GPUs say; empty for CPU.
std::string gpu_note(const Results& results) {
  for (const Run& run : results.runs)
    if (!run.on_cpu())
      return page_note(
          "Devices are " + run.device + ", precision " + run.precision +
          ". per device: the most that tensors and workspaces took on one of them. moved/step: bytes copied to and "
          "from the busiest of them in a training step, without what NCCL sends. " +
          (run.eager_parts ? "Parts of a step are shares of steps without CUDA graphs that waited for the GPU after "
                             "each part."
                           : "Parts of a step are the host's times; update holds its wait for the GPU, and all of "
                             "a step that is replayed as a CUDA graph."));
  return "";
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

/// The table with what its columns mean.
std::string table_section(const Results& results) {
  return html_table(results) +
         page_note(
             concat("start: from exec to the end of the first step, less a median step. epoch: training only, median "
                    "(min..max). waiting and moving: shares of a step in which computing stands still, for the last "
                    "rank or replica, and for moving and adding. memory: processes times the largest. same result: "
                    "whether all parameters equal single's, ",
                    results.weak ? "of ddp dp's on as many devices, " : "", "bit for bit.")) +
         gpu_note(results);
}

/// The words that occur, and what they mean.
std::string words(const Results& results) {
  const auto mode = [&](const char* name) {
    return any_run(results, [&](const Run& run) { return run.mode == name; });
  };
  const auto part = [&](double StepParts::*member) {
    return any_run(results, [&](const Run& run) { return run.step_us.*member > 0; });
  };
  const bool all_cores = any_run(results, [&](const Run& run) { return all_cores_row(results, run); });
  const bool waiting = any_run(results, [](const Run& run) { return run.step_waiting_us.has_value(); });
  std::string out;
  for (const auto& [occurs, word, meaning] : std::initializer_list<std::tuple<bool, const char*, const char*>>{
           {mode("single"), "single", "the plain training loop on one device"},
           {all_cores, "single, all cores", "the same on one device that has a thread for each core"},
           {mode("averaging"), "averaging",
            "the tutorial's loop: each rank trains on its own part of the data and, after backward, averages the "
            "gradients with the other ranks, one parameter after the other"},
           {mode("dp"), "dp", "DataParallel: one process, a thread for each device"},
           {mode("ddp"), "ddp",
            "DistributedDataParallel: a process for each rank; gradients are added up while backward still runs"},
           {part(&StepParts::scatter), "scatter", "dp gives each device its part of the batch"},
           {part(&StepParts::replicate), "replicate", "dp brings the parameters of the other devices up to date"},
           {part(&StepParts::gather), "gather", "dp collects the outputs of all devices on the first"},
           {part(&StepParts::communication), "communication",
            "gradients are moved between ranks or devices and added up, as far as computing stands still for it"},
           {waiting, "waiting", "computing stands still because another rank or replica is not as far"},
           {part(&StepParts::update), "update", "the optimizer changes the parameters"}})
    if (occurs) out += page_entry(word, meaning);
  return out.empty() ? "" : "<dl class=\"words\">\n" + out + "</dl>\n";
}

/// prediction_lines(), with a model's pictures for 1 to 64 devices of one host.
void add_prediction(const Results& results, Page& page) {
  page.section("Predicted from its parts", page_list(prediction_lines(results)));
  if (!results.model) return;
  const std::vector<ScalingRow> rows = scaling_rows(results, {.weak = results.weak});
  Chart efficiency = efficiency_chart(rows);
  efficiency.caption =
      "Computed from the step's cost over batch sizes, the slow-down of devices next to each other and the time of "
      "all-reduces, never from the cells themselves; for devices that one host would have. duet predict computes other "
      "links, hosts and batches.";
  page.section("Predicted efficiency", page.picture(efficiency));
  page.section("What bounds predicted steps", page.picture(bounds_chart(rows)));
}

}  // namespace

std::string to_html(const Results& results, const std::string& command_line, double time_budget_s) {
  Page page("duet compare", answer(results));
  page.data(to_json(results));
  if (results.partial) page.add(page_note(concat(kPartial, ".")));
  for (const std::string& sentence : without_a_result(results)) page.add(page_note(sentence));
  const Chart overhead = overhead_chart(results);
  const std::string speedups = page.picture(speedup_chart(results));
  page.add("<div class=\"first\">\n" + speedups +
           (overhead.empty() ? page_note(overhead.caption) : page.picture(overhead)) + "</div>\n");
  page.section("Table", table_section(results));
  page.section("Findings", page_list(findings(results)));
  page.section("Where a step's time goes", page.picture(parts_chart(results)));
  page.section("One step, as it ran", page.picture(step_chart(results)));
  const std::string lines = execution_lines(results);
  page.section("Time of an epoch against devices",
               page.picture(epoch_chart(results)) +
                   (lines.empty() ? "" : "<pre>" + escaped(lines.substr(0, lines.size() - 1)) + "</pre>\n"));
  page.section("Memory of every process", page.picture(memory_chart(results)));
  page.section("Memory of every device", page.picture(device_memory_chart(results)));
  page.section("Training loss", page.picture(loss_chart(results)));
  page.section("Words", words(results));
  add_prediction(results, page);
  page.section("What was run", provenance_list(results, command_line, time_budget_s));
  return page.html();
}

}  // namespace duet::cli
