// duet predict: other numbers of devices, batches and links, from a comparison's cost model.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "cli/share.h"
#include "compare/report/evidence.h"
#include "compare/report/page/page.h"
#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "train/options/options.h"
#include "train/system/display.h"
#include "train/system/files.h"

namespace duet::cli {
namespace {

constexpr const char* kCaveat =
    "Rows named measured are the comparison's own. Its model computes all others, without congestion, costs of a "
    "message beyond the link's latency, and more slow-down than the most devices had that were measured side by side.";

std::string rate_text(const TransferCost& hop) {
  const double gbit = hop.bytes_per_us * 8 / 1000;
  return concat(std::isinf(gbit) ? "unlimited" : fixed(gbit, gbit < 10 ? 2 : 0), " Gbit/s, ", shortest(hop.latency_us),
                " us a message");
}

/// Reads results.json, or that of a folder, which must hold a cost model. Errors name the file.
Results with_model(const std::string& place) {
  const std::string file = results_file(place);
  Results results = read_results(file);
  with_prefix([&] { return file + ": "; }, [&] { model_of(results); });
  return results;
}

void print_links(const PredictOptions& options, std::FILE* out) {
  const auto print = [&](const std::string& called, const std::string& what, const Link& link,
                         const std::string& source) {
    std::fprintf(out, "%s  %s: %s, %s\n         %s\n", flush_left(called, 7).c_str(), printable(what).c_str(),
                 rate_text(link.hop).c_str(), name(link.algorithm), source.c_str());
  };
  for (const NamedLink& link : named_links()) print(link.name, link.title, link.link, link.source);
  if (options.results.empty()) return;
  const Results results = with_model(options.results);
  for (const MeasuredLink& link : model_of(results).links)
    print("-", link.backend, link_of(link),
          concat("all-reduces measured among ", link.ranks, " ranks: ", options.results));
}

ScalingPlan plan_of(const PredictOptions& options) {
  ScalingPlan plan{.modes = options.modes,
                   .devices = options.devices,
                   .hosts = options.hosts,
                   .batch = options.batch,
                   .weak = options.scaling == "weak"};
  if (!options.link.empty()) plan.link = named_link(options.link).link;
  if (options.gbit)
    plan.link = Link{.hop = {.latency_us = options.latency_us.value_or(0), .bytes_per_us = *options.gbit * 1000 / 8}};
  for (const Algorithm algorithm : kAlgorithms)
    if (plan.link && options.algorithm == name(algorithm)) plan.link->algorithm = algorithm;
  return plan;
}

/// What connects the devices, and the hosts.
std::string link_line(const PredictOptions& options, const ScalingPlan& plan, const CostModel& model) {
  const bool network = options.hosts.back() > 1;
  std::string text;
  if (!plan.link || network)
    text = model.links.empty() ? "no link measured"
                               : concat(model.links.front().backend, model.links.front().backend.empty() ? "" : ", ",
                                        "measured among ", model.links.front().ranks, " ranks");
  if (!plan.link) return text;
  const std::string given = concat(options.link.empty() ? "a link of " : named_link(options.link).title + ", ",
                                   rate_text(plan.link->hop), ", ", name(plan.link->algorithm));
  return network ? concat(text, " within a host; between hosts ", given) : given;
}

std::string source_of(const ScalingRow& row) {
  if (!row.measured) return row.slowdown_known ? "computed" : "computed, slow-down unknown";
  return concat("measured (model ", row.error() < 0 ? "" : "+", fixed(100 * row.error(), 1), " %)");
}

/// A measured value, or a range if `error` is the share by which the model may be off.
std::string range_text(const ScalingRow& row, double value, double error, const char* unit) {
  const auto text = [](double number) { return grouped(std::llround(number)); };
  if (row.measured || text(value * (1 - error)) == text(value * (1 + error))) return text(value) + unit;
  return concat(text(value * (1 - error)), " to ", text(value * (1 + error)), unit);
}

std::vector<std::string> cells_of(const ScalingRow& row, const std::optional<double>& known) {
  const double error = known.value_or(0);
  return {name(row.mode),
          grouped(row.devices),
          grouped(row.hosts),
          grouped(row.batch),
          range_text(row, row.step_us, error, " us"),
          speedup_range(row, row.measured ? 0 : error, 2),
          fixed(100 * row.efficiency(), 0) + " %",
          row.devices == 1 || !known ? "-" : row.computed.bounded_by(),
          source_of(row)};
}

/// Why rows that were asked for are missing; empty where none is.
std::vector<std::string> missing_rows(const PredictOptions& options, const std::vector<ScalingRow>& rows) {
  std::vector<std::string> sentences;
  const std::int64_t batch = rows.front().batch, devices = options.devices.back(), hosts = options.hosts.back();
  if (options.scaling == "strong" && batch < devices * hosts)
    sentences.push_back(
        concat("A batch of ", batch, " has no sample for each of more devices: --batch gives another."));
  for (const Mode mode : {Mode::ddp, Mode::dp, Mode::averaging}) {
    const bool absent = std::none_of(rows.begin(), rows.end(), [&](const ScalingRow& row) { return row.mode == mode; });
    if (options.modes.empty() && absent && std::max(devices, hosts) > 1 && batch > 1)
      sentences.push_back(concat("No rows of ", name(mode), ": the model lacks what it sends or copies."));
  }
  return sentences;
}

/// With a header.
std::vector<std::vector<std::string>> table_of(const std::vector<ScalingRow>& rows,
                                               const std::optional<double>& error) {
  std::vector<std::vector<std::string>> lines = {
      {"mode", "devices", "hosts", "batch", "step", "speed-up", "efficiency", "bounded by", "source"}};
  for (const ScalingRow& row : rows) lines.push_back(cells_of(row, error));
  return lines;
}

std::string page_of(const std::vector<ScalingRow>& rows, const std::optional<double>& error, const std::string& why,
                    const std::string& link, const std::string& command_line) {
  Page page("duet predict", "What other numbers of devices would give");
  Chart efficiency = efficiency_chart(rows), bounds = bounds_chart(rows);
  efficiency.caption = "Solid lines join measured rows, dashed ones lead to computed rows.";
  bounds.caption =
      "Parts of every computed step, each as a share of it; divided is single's step over the number of devices.";
  const std::string left = page.picture(efficiency);
  page.add("<div class=\"first\">\n" + left + page.picture(step_time_chart(rows)) + "</div>\n");
  if (!why.empty()) page.add(page_note("Nothing is predicted: " + why + "."));
  page.add(page_table(table_of(rows, error)) + page_note(kCaveat));
  page.section("What bounds it", page.picture(bounds));
  page.section("What was computed", page_entries({{"command line", command_line}, {"link", link}}));
  page.data(to_json(rows));
  return page.html();
}

}  // namespace

int run(const PredictOptions& options, const std::string& command_line) {
  if (options.links) {
    print_links(options, stdout);
    return 0;
  }
  std::FILE* const out = text_stream(options.json);
  const ScalingPlan plan = plan_of(options);
  require_outputs({{.option = "--json", .path = to_stdout(options.json) ? "" : options.json},
                   {.option = "--out", .path = options.out}});
  const Results results = with_model(options.results);
  const Run* const base = base_of(results);
  const NamedLink* const named = options.link.empty() ? nullptr : &named_link(options.link);
  require<UsageError>(!named || !named->joins_gpus || !base || !base->on_cpu(), "--link is ", options.link,
                      ", which joins GPUs, but the comparison ran on CPU devices: name a network, or give "
                      "--latency-us and --gbit");
  std::vector<ScalingRow> rows = scaling_rows(results, plan);
  std::string why;
  const std::optional<double> known = prediction_error(results, &why);
  const std::vector<std::string> missing = missing_rows(options, rows);
  if (!known) std::erase_if(rows, [](const ScalingRow& row) { return !row.measured; });
  const std::string link = link_line(options, plan, model_of(results));
  const int columns = std::max(kNarrowestScreen, terminal_columns(out, kAnyWidth));
  const auto say = [&](const std::string& text) { std::fputs(wrapped_text(text, columns).c_str(), out); };
  if (base) {
    const bool cpu = base->on_cpu();
    const std::string device = cpu ? results.machine.cpu : base->device;
    const std::string detail = cpu                            ? count_text(base->threads_per_device, "thread")
                               : results.machine.gpus.empty() ? "a GPU"
                                                              : results.machine.gpus[0];
    say(concat("step: measured on ", printable(device), " (", printable(detail), ")"));
  }
  say(concat("link: ", link));
  if (!known) say(concat("\nwarning: nothing is predicted: ", why));
  constexpr int kModeAndDevices = 21;  // columns that each block has
  auto table = table_of(rows, known);
  for (auto& line : table)
    for (std::string& cell : line) cell = cut(cell, static_cast<std::size_t>(columns - kModeAndDevices));
  table = aligned(table, {0, 7, 8});
  const std::string lines = blocks_text(table, column_blocks(table, columns, 2));
  std::fprintf(out, "\n%s\n", for_locale(lines).c_str());
  for (const std::string& sentence : missing) say(sentence);
  say(kCaveat);
  for (const std::string& note : results.model_notes) say(concat("Of the model: ", printable(note), "."));
  if (!options.out.empty()) write_output(options.out, page_of(rows, known, why, link, command_line));
  write_json(options.json, to_json(rows));
  return 0;
}

}  // namespace duet::cli
