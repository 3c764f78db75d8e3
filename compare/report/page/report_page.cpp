// index.html.
#include <algorithm>
#include <cstddef>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/evidence.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "lib/error.h"
#include "train/system/display.h"
#include "train/system/machine.h"

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
  const auto speedup = std::find(rows[0].begin(), rows[0].end(), "speed-up");
  const auto place = speedup - rows[0].begin();
  std::rotate(rows[0].begin() + 1, speedup, speedup + 1);  // second, so that it's in sight on a telephone
  for (const Run& run : results.runs) {
    std::vector<std::string>& row = rows.emplace_back(table_row(results, run));
    for (std::size_t c = 1; c + 1 < row.size(); ++c) row[c] = unbroken(row[c]);
    if (run.ok)
      std::rotate(row.begin() + 1, row.begin() + place, row.begin() + place + 1);
    else
      row = {row_label(results, run), "failed: " + run.error};
  }
  return page_table(rows);
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
  const std::string scaling = results.weak ? " (weak scaling)" : " (global)";
  return page_entries(
      {{"command line", command_line},
       {"machine", concat(machine.cpu, ", ", machine.cores, " cores, ", machine.isa, ", ", fixed(machine.memory_gb, 1),
                          " GB, ", machine.kernel)},
       {"GPUs", gpus},
       {"versions", versions},
       {"date", utc_now()},
       {"network", network_text(settings.model, results.parameters)},
       {"data", concat(settings.data, ", ", grouped(settings.train_images), " training images")},
       {"settings", concat(batch_text(results), scaling, ", epochs ", settings.epochs, ", ", settings.optimizer,
                           ", lr ", shortest(settings.lr), of_optimizer, ", seed ", settings.seed, ", ",
                           name(settings.precision), ", time budget ", shortest(time_budget_s), " s")},
       {"parameters of single, sha256", single ? single->parameters_sha256 : ""}});
}

/// What stands in place of overhead_chart(): its title, and in one sentence why there is no picture.
std::string undrawn_losses(const Results& results, const Chart& chart) {
  std::string why = "no mode was timed on several devices with cores of their own";
  const std::vector<const Run*> runs = runs_with_overhead(results);
  if (load_of(results)) {
    why = "other programs disturbed most rounds";
  } else if (!runs.empty() && runs.back()->rounds_us.empty()) {
    why = "the steps weren't timed in rounds (--time-budget)";
  } else if (!runs.empty()) {
    const double rest_us = overhead_of(results, *runs.back())->unexplained_us();
    why = concat("of ", row_label(results, *runs.back()), "'s step ",
                 rest_us < 0
                     ? concat("the parts, measured apart, exceed the whole by ", us_text(-rest_us))
                     : concat(us_text(rest_us), " are unexplained in ", runs.back()->rounds_us.size(), " rounds"));
  }
  return concat("<div><p><b>", escaped(chart.title), "</b></p>\n",
                page_note(concat("The parts of a step aren't drawn: ", why, ".")), "</div>\n");
}

/// Words that the template explains, each with a text where it occurs in the comparison.
std::map<std::string, std::string> occurring(const Results& results) {
  std::map<std::string, std::string> values;
  const auto add = [&](const std::string& name, const auto& holds) {
    values[name] = any_run(results, holds) ? name : "";
  };
  for (const char* const mode : {"single", "averaging", "dp", "ddp"})
    add(mode, [&](const Run& run) { return run.mode == mode; });
  for (const PartName& part : kStepParts) add(part.name, [&](const Run& run) { return run.step_us.*part.member > 0; });
  add("words", [](const Run&) { return true; });
  add("all cores", [&](const Run& run) { return all_cores_row(results, run); });
  add("waiting", [](const Run& run) { return run.step_waiting_us.has_value(); });
  return values;
}

/// What the columns of runs on GPUs are of; empty for CPU.
void add_gpu(const Results& results, std::map<std::string, std::string>& values) {
  for (const char* const name : {"gpu", "eager", "asynchronous"}) values[name] = "";
  const auto run = std::find_if(results.runs.begin(), results.runs.end(), [](const Run& one) { return !one.on_cpu(); });
  if (run == results.runs.end()) return;
  values["gpu"] = escaped(run->device + ", precision " + run->precision);
  values[run->eager_parts ? "eager" : "asynchronous"] = "yes";
}

/// prediction_lines(), with a model's pictures for 1 to 64 devices of one host.
void add_prediction(const Results& results, Page& page, std::map<std::string, std::string>& values) {
  values["prediction"] = page_list(prediction_lines(results));
  values["efficiency"] = values["bounds"] = "";
  if (!prediction_error(results)) return;
  const std::vector<ScalingRow> rows = scaling_rows(results, {.weak = results.weak});
  Chart efficiency = efficiency_chart(rows);
  efficiency.caption =
      "Computed from the step's cost over batch sizes, the slow-down of devices next to each other and the time of "
      "all-reduces, never from the rows themselves; for devices that one host would have. duet predict computes other "
      "links, hosts and batches.";
  values["efficiency"] = page.picture(efficiency);
  values["bounds"] = page.picture(bounds_chart(rows));
}

}  // namespace

std::string to_html(const Results& results, const std::string& command_line, double time_budget_s) {
  Page page("duet compare", answer(results));
  page.data(to_json(results));
  page.add(page_note(concat(setting_line(results), " · ", utc_now())));
  std::map<std::string, std::string> values = occurring(results);
  values["partial"] = results.partial ? concat(kPartial, ".") : "";
  values["weak"] = results.weak ? "yes" : "";
  values["notes"] = "";
  for (const std::string& sentence : without_a_result(results)) values["notes"] += page_note(sentence);
  if (const std::string note = base_note(results); !note.empty()) values["notes"] += page_note(note);
  const Chart overhead = overhead_chart(results);
  values["speedups"] = page.picture(speedup_chart(results));
  values["losses"] = overhead.empty() ? undrawn_losses(results, overhead) : page.picture(overhead);
  values["table"] = html_table(results);
  add_gpu(results, values);
  values["findings"] = page_list(findings(results));
  values["parts"] = page.picture(parts_chart(results));
  values["step"] = page.picture(step_chart(results));
  const std::string lines = execution_lines(results);
  values["epochs"] = page.picture(epoch_chart(results));
  if (!lines.empty()) values["epochs"] += "<pre>" + escaped(lines.substr(0, lines.size() - 1)) + "</pre>\n";
  values["memory"] = page.picture(memory_chart(results));
  values["device memory"] = page.picture(device_memory_chart(results));
  values["loss curves"] = page.picture(loss_chart(results));
  add_prediction(results, page, values);
  values["run"] = provenance_list(results, command_line, time_budget_s);
  page.add(filled(page_file("compare.html"), values));
  return page.html();
}

}  // namespace duet::cli
