#include "cli/fault_runs.h"

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <set>
#include <utility>

#include "cli/system/display.h"
#include "compare/results.h"
#include "lib/error.h"
#include "measure/json_fields.h"
#include "measure/statistics.h"
#include "report/page/page.h"

namespace duet::cli {
namespace {

double seconds_since(std::int64_t begin_ns, std::int64_t ns) { return static_cast<double>(ns - begin_ns) / 1e9; }

/// The first rank's completion of each step, in each attempt. Another rank's may come when the first is dead already.
std::vector<FaultEvent> first_completions(const std::vector<FaultEvent>& events) {
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::vector<FaultEvent> first;
  for (const FaultEvent& event : events)
    if (!event.killed && seen.emplace(event.attempt, event.step).second) first.push_back(event);
  return first;
}

const FaultRun& undisturbed_before(const FaultResults& results, std::size_t at) {
  while (at > 0 && !results.runs[at].mode.ends_with("undisturbed")) --at;
  return results.runs[at];
}

std::string times(double value) { return fixed(value, 2); }

std::vector<std::string> cells_of(const FaultRun& run) {
  if (!run.ok) return {run.mode, run.error};
  const std::vector<double> lost(run.lost_steps.begin(), run.lost_steps.end());
  const bool killed = run.kills > 0;
  return {run.mode,
          seconds(median(run.time_s)) + " s",
          run.slowdown ? times(*run.slowdown) + "x" : "-",
          std::to_string(run.kills),
          killed ? shortest(median(lost)) : "-",
          killed ? seconds(median(run.recovery_s)) + " s" : "-",
          killed ? seconds(*std::max_element(run.recovery_s.begin(), run.recovery_s.end())) + " s" : "-",
          run.same_bits ? (*run.same_bits ? "yes" : "no") : "-"};
}

/// The steps of the first round over time. Of many, those are left out that lie between two others as a step does.
void add_progress(Chart& chart, const FaultRun& run) {
  constexpr std::size_t kPoints = 200;
  const std::size_t count = run.progress_s.size(), stride = count / kPoints + 1;
  ChartSeries& line = chart.series_of(run.mode, run.colour, "line");
  line.add(0, 0, run.mode + ": starts");
  const auto breaks = [&](std::size_t from) {  // between this point and the next
    return run.progress_step[from + 1] != run.progress_step[from] + 1 ||
           std::any_of(run.kills_s.begin(), run.kills_s.end(),
                       [&](double s) { return run.progress_s[from] <= s && s <= run.progress_s[from + 1]; });
  };
  for (std::size_t i = 0; i < count; ++i)
    if (i % stride == 0 || i + 1 == count || breaks(i) || breaks(i - 1))
      line.add(run.progress_s[i], static_cast<double>(run.progress_step[i]),
               concat(run.mode, ": step ", run.progress_step[i], " complete after ", seconds(run.progress_s[i]), " s"));
}

Chart progress_chart(const FaultResults& results) {
  Chart chart{.id = "progress",
              .title = "Steps that are complete, over seconds",
              .unit = "step",
              .caption =
                  "From the start of the program on. A line falls where a job starts again from its checkpoint. Of "
                  "several rounds, the first."};
  for (const FaultRun& run : results.runs)
    if (run.ok) add_progress(chart, run);
  for (const FaultRun& run : results.runs)
    for (std::size_t i = 0; run.ok && i < run.kills_s.size(); ++i) {
      const RankKill& kill = results.kills.at(i);
      chart.series_of("a rank is killed", "bad", "points")
          .add(run.kills_s[i], static_cast<double>(kill.step - 1),
               concat(run.mode, ": rank ", kill.rank, " is killed in step ", kill.step));
    }
  return chart;
}

}  // namespace

void add_round(FaultRun& run, const std::vector<FaultEvent>& events, std::int64_t started_ns, std::int64_t steps) {
  const std::vector<FaultEvent> completed = first_completions(events);
  const bool is_first = run.time_s.empty();
  std::int64_t lost = 0, kills = 0;
  for (const FaultEvent& kill : events) {
    if (!kill.killed) continue;
    const auto next =
        std::find_if(completed.begin(), completed.end(), [&](const FaultEvent& event) { return event.ns > kill.ns; });
    require<DataError>(next != completed.end(), "no step was complete after the kill in step ", kill.step);
    run.recovery_s.push_back(seconds_since(kill.ns, next->ns));
    lost += kill.step - next->step + 1;
    ++kills;
    if (is_first) run.kills_s.push_back(seconds_since(started_ns, kill.ns));
  }
  const auto last =
      std::find_if(completed.begin(), completed.end(), [&](const FaultEvent& event) { return event.step == steps; });
  require<DataError>(last != completed.end(), "the training has ended before step ", steps);
  for (const FaultEvent& event : completed) {
    if (!is_first) break;
    run.progress_step.push_back(event.step);
    run.progress_s.push_back(seconds_since(started_ns, event.ns));
  }
  run.time_s.push_back(seconds_since(started_ns, last->ns));
  run.lost_steps.push_back(lost);
  run.kills = kills;
}

void compare_with_undisturbed(FaultResults& results) {
  for (std::size_t i = 0; i < results.runs.size(); ++i) {
    FaultRun& run = results.runs[i];
    const FaultRun& other = undisturbed_before(results, i);
    if (!run.ok || !other.ok || &run == &other) continue;
    run.slowdown = median(ratios_of(run.time_s, other.time_s));
    run.same_bits = std::all_of(run.hashes.begin(), run.hashes.end(), [&](const std::string& hash) {
      return std::count(other.hashes.begin(), other.hashes.end(), hash) == std::ssize(other.hashes);
    });
  }
}

bool all_survive(const FaultResults& results) {
  return std::all_of(results.runs.begin(), results.runs.end(), [](const FaultRun& run) {
    return run.ok && (run.same_bits.value_or(true) || run.mode.starts_with("torch "));
  });
}

std::vector<std::vector<std::string>> fault_table(const FaultResults& results) {
  std::vector<std::vector<std::string>> rows = {{"training", concat(results.settings.steps, " steps"), "ratio", "kills",
                                                 "lost steps", "recovery", "worst", "same bits"}};
  for (const FaultRun& run : results.runs) rows.push_back(cells_of(run));
  return rows;
}

std::string fault_verdict(const FaultResults& results) {
  std::vector<std::string> costs;
  const FaultRun* last = nullptr;  // to which the one before was compared
  for (std::size_t i = 0; i < results.runs.size(); ++i) {
    const FaultRun &run = results.runs[i], &other = undisturbed_before(results, i);
    if (!run.slowdown) continue;
    const bool again = std::exchange(last, &other) == &other;
    costs.push_back(concat(run.mode, again ? " " : " takes ", times(*run.slowdown), " times",
                           again ? "" : " as long as " + other.mode));
  }
  const std::size_t kills = results.kills.size();
  const std::string what = concat(kills, kills == 1 ? " kill in " : " kills in ", results.settings.steps, " steps");
  return costs.empty() ? what : concat(what, ": ", listed(costs), ".");
}

std::string kills_text(const FaultResults& results) {
  std::vector<std::string> kills;
  for (const RankKill& kill : results.kills) kills.push_back(concat("rank ", kill.rank, " in step ", kill.step));
  return listed(kills);
}

void fields(auto& io, RankKill& kill) {
  io("step", kill.step);
  io("rank", kill.rank);
}

void fields(auto& io, FaultOptions& settings) {
  io("network", settings.model);
  io("batch", settings.batch);
  io("steps", settings.steps);
  io("kills", settings.kills);
  io("seed", settings.seed);
  io("checkpoint_every", settings.checkpoint_every);
  io("rounds", settings.rounds);
  io("data", settings.data);
}

void fields(auto& io, FaultRun& run) {
  io("mode", run.mode);
  io("devices", run.devices);
  io("ok", run.ok);
  io("error", run.error);
  io("time_s", run.time_s);
  io("slowdown", run.slowdown);
  io("kills", run.kills);
  io("lost_steps", run.lost_steps);
  io("recovery_s", run.recovery_s);
  io("parameters_sha256", run.parameters_sha256);
  io("same_bits", run.same_bits);
  io("progress_step", run.progress_step);
  io("progress_s", run.progress_s);
  io("kills_s", run.kills_s);
}

void fields(auto& io, FaultResults& results) {
  io("duet", results.version);
  io("machine", results.machine);
  io("settings", results.settings);
  io("kills", results.kills);
  io("runs", results.runs);
  io("torch_notes", results.torch_notes);
}

std::string to_json(const FaultResults& results) { return text_of(JsonWriter::json_of(results)); }

std::string to_csv(const FaultResults& results) {
  std::string text;
  for (const FaultRun& run : results.runs) {
    std::string names, values;
    const Json all = JsonWriter::json_of(run);
    for (const auto& [name, value] : all.items()) {
      if (name.starts_with("progress") || name == "kills_s") continue;
      names += name + ",";
      values += (name == "error" ? concat(std::quoted(run.error, '"', '"')) : csv_text(value)) + ",";
    }
    names.back() = values.back() = '\n';
    text += (text.empty() ? names : "") + values;
  }
  return text;
}

std::string to_html(const FaultResults& results, const std::string& command_line) {
  const FaultOptions& settings = results.settings;
  const Machine& machine = results.machine;
  Page page("duet bench faults", fault_verdict(results));
  page.add(page.picture(progress_chart(results)));
  page.add(page_table(fault_table(results)));
  for (const std::string& note : results.torch_notes) page.add(page_note(note));
  page.section("What was run",
               page_entries({{"command line", command_line},
                             {"training", concat(settings.model, ", batch ", settings.batch, ", ", settings.devices,
                                                 settings.devices == 1 ? " rank" : " ranks", ", ", settings.data)},
                             {"SIGKILL, between forward and backward", kills_text(results)},
                             {"checkpoints of trainings that start again",
                              concat("after every ", settings.checkpoint_every, " steps")},
                             {"rounds", std::to_string(settings.rounds)},
                             {"machine", concat(machine.cpu, ", ", machine.cores, " cores, ", machine.kernel)}}));
  page.data(to_json(results));
  return page.html();
}

}  // namespace duet::cli
