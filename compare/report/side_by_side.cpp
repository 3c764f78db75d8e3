// What duet show prints of two comparisons: both machines, what makes them hard to compare, and how fast each mode is
// on either.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "train/measure/json_fields.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr std::size_t kLead = 2;
constexpr const char* kNote =
    "B/A: samples a second of B for each of A, above 1 where B is faster. Its 95 % interval is that of two independent "
    "medians over rounds, on their logarithms.";

/// A mode on a number of devices of both comparisons.
struct Pair {
  std::string label;
  const Run *a = nullptr, *b = nullptr;
  std::optional<double> speed{};  // of b over a's
  std::optional<Interval> interval{};
};

/// What a run has in common with one of another machine, on which it may have graphs, or threads as ranks.
std::string label_of(const Results& results, const Run& run) {
  Run plain;
  plain.mode = run.mode;
  plain.devices = run.devices;
  plain.threads_per_device = run.threads_per_device;
  plain.backend = run.backend;
  return row_label(results, plain);
}

const Run* find_labelled(const Results& results, const std::string& label) {
  const auto found = std::find_if(results.runs.begin(), results.runs.end(),
                                  [&](const Run& run) { return label_of(results, run) == label; });
  return found == results.runs.end() ? nullptr : &*found;
}

/// Time of a row of the batch in each round that other programs left alone.
std::vector<double> row_times(const Run& run) {
  std::vector<double> times;
  for (const std::size_t round : common_rounds(run, run))
    times.push_back(run.rounds_us[round] / static_cast<double>(run.batch));
  return times;
}

/// The median step of the rounds that row_times() counts, else of all steps.
double median_step_us(const Run& run) {
  return run.rounds_us.empty() ? step_us(run) : median(row_times(run)) * static_cast<double>(run.batch);
}

std::vector<Pair> pairs_of(const Results& a, const Results& b) {
  std::vector<Pair> pairs;
  for (const Run& run : a.runs) {
    Pair pair{.label = label_of(a, run), .a = &run, .b = find_labelled(b, label_of(a, run))};
    if (!pair.b) continue;
    if (run.ok && pair.b->ok && run.timed() && pair.b->timed()) {
      if (!load_of(a) && !load_of(b)) pair.interval = ratio_of_medians(row_times(run), row_times(*pair.b));
      const double rows = static_cast<double>(pair.b->batch) / static_cast<double>(run.batch);
      pair.speed = pair.interval ? pair.interval->middle : rows * median_step_us(run) / median_step_us(*pair.b);
    }
    pairs.push_back(pair);
  }
  return pairs;
}

/// Labels of the runs of `results` that `other` has not.
std::vector<std::string> only_in(const Results& results, const Results& other) {
  std::vector<std::string> labels;
  for (const Run& run : results.runs)
    if (!find_labelled(other, label_of(results, run))) labels.push_back(label_of(results, run));
  return labels;
}

/// A setting that decides what a step takes, in both comparisons.
struct ComparedSetting {
  const char* name;
  std::string a, b;
};

std::vector<ComparedSetting> compared_settings(const Results& a, const Results& b) {
  std::vector<ComparedSetting> all;
  const auto add = [&](const char* name, const auto& text_of) { all.push_back({name, text_of(a), text_of(b)}); };
  add("network", [](const Results& results) {
    return concat(results.settings.model, ", ", grouped(results.parameters), " parameters");
  });
  add("batch",
      [](const Results& results) { return concat(results.settings.batch, results.weak ? " of each device" : ""); });
  add("precision", [](const Results& results) { return std::string(name(results.settings.precision)); });
  add("images", [](const Results& results) {
    return concat(results.settings.data, ", ", grouped(results.settings.train_images));
  });
  add("optimizer", [](const Results& results) { return results.settings.optimizer; });
  add("threads per device", [](const Results& results) {
    const Run* const single = find_run(results, "single", 1);
    return single ? std::to_string(single->threads_per_device) : "not known";
  });
  return all;
}

std::string machine_text(const Results& results) {
  const Machine& machine = results.machine;
  return concat("duet ", results.version, " · ", machine.cpu, ", ", count_text(machine.cores, "core"),
                machine.sockets > 1 ? concat(" on ", machine.sockets, " sockets") : "", ", ", machine.isa, " · ",
                gpus_text(machine), " · ", fixed(machine.memory_gb, 1), " GB · ", machine.kernel,
                results.runs.empty() ? "" : concat(" · runs on ", results.runs[0].device));
}

std::string step_text(const Run& run) {
  return run.ok && run.timed() ? unit_of(median_step_us(run)).text(median_step_us(run)) : "-";
}

std::string speed_text(const Pair& pair) {
  if (!pair.a->ok || !pair.b->ok) return pair.b->ok ? "failed in A" : pair.a->ok ? "failed in B" : "failed in both";
  if (!pair.speed) return "-";
  return pair.interval ? times_text(*pair.interval) : fixed(*pair.speed, 2) + "x";
}

/// With a header, as many columns as fit: without steps, then without speed-ups where they do not.
std::vector<std::vector<std::string>> table_within(const Results& a, const Results& b, const std::vector<Pair>& pairs,
                                                   std::size_t columns) {
  const std::vector<std::vector<std::size_t>> choices = {{0, 1, 2, 3, 4, 5}, {0, 3, 4, 5}, {0, 5}};
  std::vector<std::vector<std::string>> rows;
  for (const std::vector<std::size_t>& choice : choices) {
    rows.clear();
    const auto add = [&](const std::vector<std::string>& cells) {
      std::vector<std::string>& row = rows.emplace_back();
      for (const std::size_t i : choice) row.push_back(cells[i]);
    };
    add({"mode", "step A", "step B", "speed-up A", "speed-up B", "B/A"});
    for (const Pair& pair : pairs)
      add({pair.label, step_text(*pair.a), step_text(*pair.b), marked_speedup(a, *pair.a), marked_speedup(b, *pair.b),
           speed_text(pair)});
    rows = aligned(rows, {0});
    if (width(table_line(rows[0])) + 1 <= columns) break;
  }
  return rows;
}

/// "B is 1.08 times as fast as A (1.05 to 1.11), with ddp 2.", of A's fastest row that both have; or why nothing is
/// concluded.
std::string conclusion(const Results& a, const Results& b, const std::vector<Pair>& pairs, bool same_settings) {
  constexpr const char* kNothing = "Nothing is concluded: ";
  for (const auto& [name, results] : {std::pair{"A", &a}, std::pair{"B", &b}})
    if (load_of(*results)) return concat(kNothing, "other programs disturbed most rounds of ", name, ".");
  if (!same_settings) return concat(kNothing, "the settings differ.");
  const auto fair = [](const Results& results, const Run& run) {
    return above_limit(results, run).empty() && !oversubscribed(results, run);
  };
  const Pair* best = nullptr;
  for (const Pair& pair : pairs)
    if (pair.interval && !pair.a->is_torch() && pair.a->mode != "copies" && fair(a, *pair.a) && fair(b, *pair.b) &&
        (best == nullptr || pair.a->samples_per_s > best->a->samples_per_s))
      best = &pair;
  if (best == nullptr) return concat(kNothing, "no row of both was timed in rounds.");
  const Interval& speed = *best->interval;
  const bool open = side_of(speed, 1) == Side::open;
  if (open && !equal_speeds(speed)) return concat("B ", not_told_apart(speed, "A"), ", with ", best->label, ".");
  return concat("B is ", open ? "" : fixed(speed.middle, 2) + " times ", "as fast as A (", fixed(speed.low, 2), " to ",
                fixed(speed.high, 2), "), with ", best->label, ".");
}

}  // namespace

std::string side_by_side(const Results& a, const Results& b, int columns, TerminalStyle style) {
  const auto most = static_cast<std::size_t>(std::clamp(columns, kNarrowestScreen, kScreenColumns));
  std::string text;
  const auto say = [&](const std::string& sentence, bool warns = false) {
    for (const std::string& line : wrapped(sentence, most, kLead))
      text += (warns ? red(cut(line, most), style) : cut(line, most)) + "\n";
  };
  say("A: " + machine_text(a));
  say("B: " + machine_text(b));
  std::string both;
  std::vector<std::string> differences;
  for (const ComparedSetting& setting : compared_settings(a, b))
    if (setting.a == setting.b)
      both += concat(both.empty() ? "Both: " : " · ", setting.name, " ", setting.a);
    else
      differences.push_back(
          concat("Not comparable: ", setting.name, " is ", setting.a, " in A, ", setting.b, " in B."));
  say(both);
  for (const std::string& difference : differences) say(difference, true);
  if (a.partial) say(concat("A is ", kPartial, "."), true);
  if (b.partial) say(concat("B is ", kPartial, "."), true);
  const std::vector<Pair> pairs = pairs_of(a, b);
  if (pairs.empty()) {
    text += "\n";
    say("No mode on as many devices is in both.");
  } else {
    const std::vector<std::vector<std::string>> table = table_within(a, b, pairs, most);
    text += "\n" + bold(cut(" " + table_line(table[0]), most), style) + "\n";
    for (std::size_t i = 1; i < table.size(); ++i) text += cut(" " + table_line(table[i]), most) + "\n";
  }
  text += "\n";
  for (const auto& [side, labels] : {std::pair{"A", only_in(a, b)}, std::pair{"B", only_in(b, a)}})
    if (!labels.empty()) say(concat("Only in ", side, ": ", listed(labels), "."));
  say(kNote);
  say(conclusion(a, b, pairs, differences.empty()));
  return text;
}

std::string side_by_side_json(const Results& a, const Results& b) {
  const auto side = [](const Results& results) {
    const Machine& machine = results.machine;
    return Json{{"duet", results.version}, {"cpu", machine.cpu}, {"cores", machine.cores}, {"gpus", machine.gpus}};
  };
  const auto known = [](const std::optional<double>& number) { return number ? Json(*number) : Json(); };
  const auto run_of = [&](const Run& run) {
    return Json{{"ok", run.ok},
                {"step_us", run.ok && run.timed() ? Json(median_step_us(run)) : Json()},
                {"speedup", known(run.speedup)},
                {"speedup_low", known(run.speedup_low)},
                {"speedup_high", known(run.speedup_high)}};
  };
  Json out = {{"duet", DUET_VERSION}, {"a", side(a)}, {"b", side(b)}};
  Json differences = Json::array(), rows = Json::array();
  for (const ComparedSetting& setting : compared_settings(a, b))
    if (setting.a != setting.b) differences.push_back({{"field", setting.name}, {"a", setting.a}, {"b", setting.b}});
  for (const Pair& pair : pairs_of(a, b)) {
    Json& row = rows.emplace_back(Json{{"mode", pair.a->mode},
                                       {"devices", pair.a->devices},
                                       {"label", pair.label},
                                       {"a", run_of(*pair.a)},
                                       {"b", run_of(*pair.b)}});
    row["b_over_a"] = known(pair.speed);
    row["b_over_a_low"] = pair.interval ? Json(pair.interval->low) : Json();
    row["b_over_a_high"] = pair.interval ? Json(pair.interval->high) : Json();
  }
  out["differences"] = differences;
  out["rows"] = rows;
  return text_of(out);
}

}  // namespace duet::cli
