// The report of a comparison: the screen, all columns, all sentences, and the page with its pictures. `Results` must
// have gone through compare_with_single().
#pragma once

#include <string>
#include <vector>

#include "compare/report/page/page.h"
#include "compare/results.h"
#include "train/system/display.h"

namespace duet::cli {

/// One or two sentences: dp, ddp or one device on all cores, with the interval of its speed-up over single, or that no
/// gain was measured. A mode gains where its interval lies above 1; the one whose lower end is highest is named first,
/// and together with it those that are as fast within 5 %. Where nothing was timed in rounds on devices with cores of
/// their own, that nothing is concluded, and why.
std::string answer(const Results& results);
/// Returns PyTorch's fastest run on as many cores as duet's best mode; may be null.
const Run* best_torch(const Results& results);
/// How many times as fast duet's best mode is as PyTorch's best on as many cores; empty without both.
std::string against_torch(const Results& results);
/// The run of dp or ddp on several devices whose speed-up has the highest lower end; null where there is none.
const Run* best_wrapped(const Results& results);

/// "duet 0.1.0 · AMD EPYC, 2 cores, no GPU · simple_cnn, 0.42 M parameters · batch 128 · MNIST".
std::string setting_line(const Results& results);

inline constexpr int kScreenLines = 24, kScreenColumns = 100, kNarrowestScreen = 30;

struct ScreenOptions {
  int columns = kScreenColumns;  // from kNarrowestScreen to kScreenColumns; narrow screens have fewer columns
  TerminalStyle style{};
  std::string out = "out";  // the folder of the report; empty: that is not said
};
/// What duet compare prints: lines of at most `columns` characters, at most kScreenLines of them unless that many rows
/// failed or fewer than 60 columns need more.
std::string first_screen(const Results& results, const ScreenOptions& options);
/// Said below the table of an interrupted comparison.
inline constexpr const char* kPartial =
    "partial: interrupted, only runs that had ended are listed, with the rounds so far";

/// What duet show prints of two comparisons: lines of at most `columns` characters, limited as first_screen() does. The
/// machine of each, their settings, a warning for each setting that differs, and a row for each mode and number of
/// devices that both have.
std::string side_by_side(const Results& a, const Results& b, int columns, TerminalStyle style);
/// Returns as JSON what side_by_side() prints.
std::string side_by_side_json(const Results& a, const Results& b);

/// One run as text, one entry per column of table_columns(); a failed run's second part is empty.
std::vector<std::string> table_row(const Results& results, const Run& run);
/// With two more, memory and moved bytes of the fullest and the busiest device, where a run was on GPUs.
std::vector<std::string> table_columns(const Results& results);
/// The whole table with its header, a line per run. Failed runs say why in place of numbers; parts of a comparison say
/// that they are. If it's wider than `columns`, its columns come in several blocks, each with modes and devices.
std::string table(const Results& results, TerminalStyle style, int columns = kAnyWidth);
/// Returns the parts of a step of each run: as measured, and what they cost beyond the ideal; and the fitted cost of a
/// step. Tables wider than `columns` come in several blocks.
std::string parts_text(const Results& results, int columns);
/// What the tutorials' programs print of their runs; empty where averaging did not run.
std::string execution_lines(const Results& results);
/// The run whose parameters those of `run` should equal: single's, under weak scaling where single trained another
/// batch dp's on as many devices; null where there is none.
const Run* reference_of(const Results& results, const Run& run);
/// Whether the parameters equal those of reference_of(): "yes", "no: differs from step 17", "own data split", "-"; on
/// GPUs, where equal bits are not promised, also "loss within 0.1 %".
std::string same_result(const Results& results, const Run& run);
/// "8,204", and "4.6" of a network whose step takes seconds.
std::string rate_text(double per_s);

/// All sentences; each is left out where its evidence is too thin: no rounds, an interval that holds "none", or runs
/// that are missing.
std::vector<std::string> findings(const Results& results);
/// "2 logical devices on 1 GPU: this measures overhead, not scaling.", "4 devices share 2 cores: ...": a sentence for
/// each number of devices that outnumber cores or GPUs.
std::vector<std::string> crowded(const Results& results);
/// That no step was timed, and which losses are not finite.
std::vector<std::string> without_a_result(const Results& results);

// Pictures with what stands under them: only what the data show. empty() where there is nothing to draw.
/// Speed-up over single with its interval: a bar per run, in it marks for the ideal and for what copies reach.
Chart speedup_chart(const Results& results);
/// Shows the parts of a step beyond the ideal, of the runs on the most devices. Its caption says why some runs are
/// missing.
Chart overhead_chart(const Results& results);
/// Time of an epoch against devices: a line per mode, bars from min to max, the ideal line dashed.
Chart epoch_chart(const Results& results);
/// A stacked bar per run.
Chart parts_chart(const Results& results);
/// One step, as it ran: a lane for every device and rank, of single, and of dp above ddp on as many devices as both
/// have.
Chart step_chart(const Results& results);
Chart loss_chart(const Results& results);
/// Peak memory of the largest process; and on GPUs: of the fullest device.
Chart memory_chart(const Results& results);
Chart device_memory_chart(const Results& results);

/// index.html: one file that needs no network, with what repeating the run needs beyond results.json.
std::string to_html(const Results& results, const std::string& command_line, double time_budget_s);

}  // namespace duet::cli
