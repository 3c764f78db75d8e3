// What duet compare prints: the answer, a picture of it in characters, where the rest of the ideal went, and what more
// devices would give.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

using Lines = std::vector<std::string>;

constexpr std::size_t kIndent = 2, kWidestPicture = 34, kNarrowestPicture = 14;

/// Lower is shown first where not all rows have a line. dp, ddp and averaging on one device are single's own code.
int priority(const Results& results, const Run& run, int devices) {
  if (!run.ok || run.mode == "single" || &run == base_of(results)) return 0;
  if (&run == best_torch(results)) return 1;
  if (run.is_torch()) return run.threads() == devices ? 2 : 3;
  if (run.devices == 1) return 4;
  if (run.devices == devices) return wraps(run) ? 1 : 2;
  return wraps(run) && !oversubscribed(results, run) ? 2 : 3;
}

std::vector<const Run*> rows_for(const Results& results, std::size_t lines) {
  const Run* const best = best_wrapped(results);
  const int devices = best ? best->devices : largest_fair(results);
  std::vector<const Run*> rows;
  for (const int shown : {0, 1, 2, 3})
    for (const Run& run : results.runs)
      if (priority(results, run, devices) == shown && (shown == 0 || rows.size() < lines)) rows.push_back(&run);
  std::sort(rows.begin(), rows.end());  // as the runs are
  return rows;
}

/// "yes", "no", or that the mode does not compute what single does.
std::string bits_text(const Results& results, const Run& run) {
  const std::string same = same_result(results, run);
  return same == "yes" || same == "-" ? same : same.starts_with("no") ? "no" : "by design";
}

/// From where to where the speed-ups of all rows lie, and the ideal; at most twice the ideal.
struct Axis {
  double low = 1, high = 1;
  std::size_t columns = kNarrowestPicture;

  std::size_t at(double value) const {
    const double share = (value - low) / (high - low);
    return static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(columns - 1)));
  }
};

Axis axis_of(const Results& results, const std::vector<const Run*>& rows, std::size_t columns) {
  Axis axis{.columns = columns};
  const Run* const base = base_of(results);
  double ideal = 1;
  for (const Run* run : rows) {
    if (!base || !run->speedup || !above_limit(results, *run).empty()) continue;
    ideal = std::max(ideal, oversubscribed(results, *run) ? 1 : run->threads() / base->threads_per_device);
    axis.high = std::max({axis.high, ideal, run->speedup_high.value_or(*run->speedup)});
    axis.low = std::min(axis.low, run->speedup_low.value_or(*run->speedup));
  }
  axis.high = std::min(axis.high, 2 * ideal);
  if (axis.high <= axis.low) axis.high = axis.low + 1;
  return axis;
}

/// "     [---+---]    |".
std::string picture(const Results& results, const Run& run, const Axis& axis) {
  std::string text(axis.columns, ' ');
  text[axis.at(1)] = '|';
  if (!run.speedup || !above_limit(results, run).empty()) return text;
  if (const std::optional<Interval> interval = speedup_interval(run)) {
    const std::size_t low = axis.at(interval->low), high = axis.at(interval->high);
    for (std::size_t i = low; i <= high; ++i) text[i] = '-';
    text[low] = '[';
    text[high] = interval->high > axis.high ? '>' : ']';
  }
  text[axis.at(*run.speedup)] = *run.speedup > axis.high ? '>' : '+';
  return text;
}

std::string axis_line(const Axis& axis) {
  std::string text(axis.columns, '.');
  const std::string one = "1x", ideal = concat(fixed(axis.high, axis.high == std::floor(axis.high) ? 0 : 1), "x");
  text.replace(std::min(axis.at(1), axis.columns - one.size()), one.size(), one);
  if (axis.at(1) + one.size() + ideal.size() < axis.columns)
    text.replace(axis.columns - ideal.size(), ideal.size(), ideal);
  return text;
}

Lines rows_block(const Results& results, const std::vector<const Run*>& rows, std::size_t columns,
                 TerminalStyle style) {
  std::size_t name = 4;
  for (const Run* run : rows) name = std::max(name, width(row_label(results, *run)));
  constexpr std::size_t kSpeed = 10, kStep = 10, kSamples = 12, kBits = 11;
  name = std::min(name, columns - kIndent - 2 - kSpeed);
  std::size_t fixed_columns = kIndent + name + 2 + kSpeed;
  const bool draws = fixed_columns + kNarrowestPicture <= columns;
  const bool says_bits = fixed_columns + kBits + (draws ? kNarrowestPicture : 0) <= columns;
  if (says_bits) fixed_columns += kBits;
  const bool steps = says_bits && fixed_columns + kStep + kNarrowestPicture <= columns;
  if (steps) fixed_columns += kStep;
  const bool samples = fixed_columns + kSamples + kNarrowestPicture + 8 <= columns;
  if (samples) fixed_columns += kSamples;
  const std::size_t space = columns > fixed_columns ? columns - fixed_columns : 0;
  const Axis axis = axis_of(results, rows, std::clamp(space, kNarrowestPicture, kWidestPicture));
  const std::string indent(kIndent, ' ');
  const auto line = [&](const std::string& title, const std::string& drawn, const std::string& speed,
                        const std::string& step, const std::string& rate, const std::string& bits) {
    return indent + flush_left(title, name) + "  " + (draws ? flush_left(drawn, axis.columns) : "") +
           flush_right(speed, kSpeed) + (steps ? flush_right(step, kStep) : "") +
           (samples ? flush_right(rate, kSamples) : "") + (says_bits ? "  " + bits : "");
  };
  Lines lines = {
      bold(cut(line("mode", axis_line(axis), "speed-up", "step", "samples/s", "same bits"), columns), style)};
  double least_us = HUGE_VAL;
  for (const Run* run : rows) least_us = std::min(least_us, run->ok && run->timed() ? step_us(*run) : HUGE_VAL);
  const Unit unit = unit_of(least_us);
  for (const Run* run : rows) {
    const std::string title = cut(row_label(results, *run), name);
    if (!run->ok) {
      lines.push_back(red(cut(concat(indent, flush_left(title, name), "  failed: ", run->error), columns), style));
      continue;
    }
    const std::string mark = above_limit(results, *run).empty() ? " " : "!";
    const std::string speed = run->speedup ? fixed(*run->speedup, 2) + mark : "- ";
    const std::string step = run->timed() ? unit.text(step_us(*run)) : "-";
    const std::string rate = run->timed() ? rate_text(run->samples_per_s) : "-";
    lines.push_back(
        cut(line(title, picture(results, *run, axis), speed, step, rate, bits_text(results, *run)), columns));
  }
  return lines;
}

/// The causes of the loss, the largest first, and what they leave.
Lines parts_of(const Results& results, const Run& run, const std::vector<OverheadPart>& causes, double lost_us,
               const Unit& unit) {
  double rest = lost_us;
  for (const OverheadPart& part : causes) rest -= *part.us;
  std::size_t widest = width(unit.text(rest));
  for (const OverheadPart& part : causes) widest = std::max(widest, width(unit.text(*part.us)));
  Lines lines;
  const auto add = [&](double us, const std::string& interval, const std::string& text) {
    lines.push_back(concat("     ", flush_right(unit.text(us), widest), flush_left(interval, 14), "  ", text));
  };
  for (const OverheadPart& part : causes) {
    const std::optional<Interval> range = part.interval();
    add(*part.us, range ? concat(" (", unit.number(range->low), "..", unit.number(range->high), ")") : "",
        part_text(results, run, part));
  }
  if (unit.number(std::abs(rest)) != unit.number(0))
    add(rest, "", rest < 0 ? "the parts, measured apart, exceed the whole" : "not explained");
  return lines;
}

Lines why_block(const Results& results, std::size_t columns) {
  const Run* const run = best_wrapped(results);
  const std::optional<Overhead> overhead = run ? overhead_of(results, *run) : std::nullopt;
  if (!overhead) return {};
  const Unit unit = unit_of(overhead->step_us);
  const std::string times = concat(
      "a step of ", row_name(results, *run), " on ", run->devices, " devices takes ", unit.text(overhead->step_us),
      ", ", results.weak ? "single's on as many rows " : concat("single's divided by ", run->devices, " is "),
      unit.text(overhead->ideal_us()), ".");
  constexpr double kSmallLoss = 0.05;  // share of the ideal
  if (overhead->lost_us() < kSmallLoss * overhead->ideal_us())
    return wrapped(concat("Nearly ideal: ", times), columns, kIndent);
  const std::string why = concat("Why not ", run->devices, "x: ", times, " Of the ", unit.text(overhead->lost_us()));
  const std::vector<OverheadPart> causes = causes_of(results, *run, *overhead);
  if (causes.empty())
    return wrapped(concat(why, " no cause stands out of the noise of ", run->rounds_us.size(), " rounds."), columns,
                   kIndent);
  Lines lines = wrapped(why + ":", columns, kIndent);
  for (const std::string& part : parts_of(results, *run, causes, overhead->lost_us(), unit))
    lines.push_back(cut(part, columns));
  return lines;
}

Lines more_devices_block(const Results& results, std::size_t columns) {
  if (load_of(results) || largest_fair(results) == 0) return {};
  std::string why;
  const std::optional<double> error = prediction_error(results, &why);
  if (!error) return why.empty() ? Lines() : wrapped(concat("Nothing is predicted: ", why, "."), columns, kIndent);
  const int measured = largest_fair(results);
  int shown = 0;
  std::string text = concat("Predicted for more ", base_of(results)->on_cpu() ? "cores:" : "GPUs:");
  for (const int devices : {4, 8, 16}) {
    if (devices <= measured || shown == 2) continue;
    std::string modes;
    for (const ScalingRow& row : scaling_rows(results, {.devices = {devices}, .weak = results.weak}))
      if ((row.mode == Mode::dp || row.mode == Mode::ddp) && row.devices == devices)
        modes += concat(modes.empty() ? " " : ", ", name(row.mode), " ", speedup_range(row, *error, 1));
    if (!modes.empty()) text += concat(shown++ > 0 ? "; on " : " on ", devices, " devices", modes);
  }
  return shown > 0 ? wrapped(text + ".", columns, kIndent) : Lines();
}

/// What single's own code under other names reads: how far a speed-up may be off. Steps of a mode without graphs are
/// other code than a replayed one of single.
std::string noise_note(const Results& results) {
  if (load_of(results)) return "";
  const Run* const base = base_of(results);
  std::vector<double> speedups;
  for (const Run& run : results.runs)
    if (run.ok && run.devices == 1 && &run != base && run.mode != "single" && !run.is_torch() && run.speedup &&
        (base == nullptr || run.graph == base->graph))
      speedups.push_back(*run.speedup);
  if (speedups.empty()) return "";
  const auto [low, high] = std::minmax_element(speedups.begin(), speedups.end());
  return concat("Noise: other modes on 1 device run single's own code, and read ", times_range({*low, *low, *high}),
                ".");
}

/// Tells which timings are left out.
std::string disturbed_note(const Results& results) {
  if (load_of(results)) return "";
  std::vector<std::string> items;
  std::int64_t few = 0;
  std::size_t of = 0;
  for (const Run& run : results.runs) {
    if (run.ok && run.mostly_busy())
      items.push_back("most timings of " + row_label(results, run));
    else if (run.ok)
      few += run.disturbed_rounds(), of += run.rounds_us.size();
  }
  if (few > 0) items.push_back(concat(few, " of ", of, items.empty() ? " timings" : " other timings"));
  if (items.empty()) return "";
  return concat("Left out, as other programs used the cores: ", listed(items), ".");
}

}  // namespace

std::string setting_line(const Results& results) {
  const Machine& machine = results.machine;
  const double millions = static_cast<double>(results.parameters) / 1e6;
  const std::string parameters =
      millions < 0.1 ? grouped(results.parameters) : fixed(millions, millions < 10 ? 2 : 0) + " M";
  const std::string precision =
      results.settings.precision == Precision::fp32 ? "" : concat(" · ", name(results.settings.precision));
  return concat("duet ", results.version, " · ", machine.cpu, ", ", count_text(machine.cores, "core"), ", ",
                gpus_text(machine), precision, " · ", results.settings.model, ", ", parameters, " parameters · ",
                batch_text(results), " · ", results.settings.data);
}

std::string first_screen(const Results& results, const ScreenOptions& options) {
  const auto columns = static_cast<std::size_t>(std::clamp(options.columns, kNarrowestScreen, kScreenColumns));
  Lines above = {cut(setting_line(results), columns), ""};
  for (const std::string& line : wrapped(answer(results), columns, kIndent)) above.push_back(bold(line, options.style));
  for (const std::string& line : wrapped(against_torch(results), columns, kIndent)) above.push_back(line);
  for (const std::string& sentence : without_a_result(results))
    for (const std::string& line : wrapped(sentence, columns, kIndent)) above.push_back(red(line, options.style));
  above.emplace_back();
  Lines foot;
  for (const std::string& line : wrapped(results.partial ? kPartial : "", columns, kIndent))
    foot.push_back(red(line, options.style));
  const std::string files = concat("All ", results.runs.size(), " rows and columns: --wide · report ", options.out,
                                   "/index.html · other links and hosts: duet predict ", options.out, "/results.json");
  for (const std::string& line : wrapped(options.out.empty() ? "" : files, columns, kIndent)) foot.push_back(line);
  Lines below = why_block(results, columns);
  if (!below.empty()) below.insert(below.begin(), "");
  // What is least wanted has a place where rows leave one.
  const auto has_room_for = [&](const Lines& more) {
    constexpr std::size_t kHeaderAndRows = 5;
    return !more.empty() &&
           above.size() + kHeaderAndRows + below.size() + more.size() + 1 + foot.size() <= kScreenLines;
  };
  if (const Lines more = more_devices_block(results, columns); has_room_for(more)) {
    below.emplace_back();
    below.insert(below.end(), more.begin(), more.end());
  }
  const Lines base = wrapped(base_note(results), columns, kIndent);
  below.insert(below.begin(), base.begin(), base.end());
  for (const std::string& note : {disturbed_note(results), noise_note(results)})
    if (const Lines lines = wrapped(note, columns, kIndent); has_room_for(lines))
      below.insert(below.begin(), lines.begin(), lines.end());
  below.insert(below.end(), foot.begin(), foot.end());
  const std::size_t used = above.size() + below.size() + 1;
  constexpr std::size_t kFewColumns = 60, kFewestRows = 4;  // sentences of a narrow terminal fill more lines
  const std::size_t lines = std::max<std::size_t>(kScreenLines, used + (columns < kFewColumns ? kFewestRows : 0));
  const std::vector<const Run*> rows = rows_for(results, lines - used);
  std::string text;
  for (const Lines& block : {above, rows_block(results, rows, columns, options.style), below})
    for (const std::string& line : block) text += line + "\n";
  return text;
}

}  // namespace duet::cli
