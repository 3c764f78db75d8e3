// The report of a comparison: its table, its findings, and the page with its pictures. `Results` must have gone through
// compare_with_single().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/system/terminal.h"
#include "compare/results.h"
#include "report/page/chart.h"

namespace duet::cli {

/// One run as text, one entry per column of table_columns(); a failed run's second part is empty.
std::vector<std::string> table_row(const Results& results, const Run& run);
/// With two more, memory and moved bytes of the fullest and the busiest device, where a run was on GPUs.
std::vector<std::string> table_columns(const Results& results);
/// The run whose parameters those of `run` should equal: single's, under weak scaling where single trained another
/// batch dp's on as many devices; null where there is none.
const Run* reference_of(const Results& results, const Run& run);
/// Whether the parameters equal those of reference_of(): "yes", "no: differs from step 17", "own data split", "-"; on
/// GPUs, where equal bits are not promised, also "loss within 0.1 %".
std::string same_result(const Results& results, const Run& run);
/// "single, all cores", "torch, 2 threads", else the mode.
std::string row_name(const Results& results, const Run& run);
/// "8,204", and "4.6" of a network whose step takes seconds.
std::string rate_text(double per_s);
/// Whether ranks of ddp were run over more than one backend.
bool several_backends(const Results& results);
/// Said below the table of an interrupted comparison.
inline constexpr const char* kPartial =
    "partial: interrupted, only cells that had ended are listed, with the rounds so far";
/// The whole table with its header, a line per run. Failed runs say why in place of numbers; parts of a comparison say
/// that they are.
std::string table(const Results& results, TerminalStyle style);

/// Each sentence is left out where its evidence is too thin: no rounds, an interval that holds "none", or runs that are
/// missing.
std::vector<std::string> findings(const Results& results);
/// "2 logical devices on 1 GPU: this measures overhead, not scaling.", "4 devices share 2 cores: ...": a sentence for
/// each number of devices that outnumber cores or GPUs.
std::vector<std::string> crowded(const Results& results);
/// That no step was timed, and which losses are not finite.
std::vector<std::string> without_a_result(const Results& results);
/// What ranks and replicas on `devices` devices wait for each other, and move: a sentence per mode, and per backend.
void add_waiting_findings(const Results& results, int devices, std::vector<std::string>& out);
/// Whether dp, ddp or single is the fastest here, by how much, and whether the bits agree.
std::string headline(const Results& results);

// Pictures as data; empty() where there is nothing to draw.
/// Speed-up over single with its interval: a bar per run, in it marks for the ideal and for what copies reach.
Chart speedup_chart(const Results& results);
/// What a step takes beyond the ideal, part by part: bars for each of runs_with_losses(). And what stands under it.
Chart losses_chart(const Results& results);
std::string losses_caption(const Results& results);
/// Time of an epoch against devices: a line per mode, bars from min to max, the ideal line dashed.
Chart epoch_chart(const Results& results);
/// Where a step's time goes: a stacked bar per run.
Chart parts_chart(const Results& results);
/// One step, as it ran: a lane for every device and rank, of single, and of dp above ddp on as many devices as both
/// have.
Chart step_chart(const Results& results);
/// Loss of all runs over training.
Chart loss_chart(const Results& results);
/// Peak memory of the largest process; and on GPUs: of the fullest device.
Chart memory_chart(const Results& results);
Chart device_memory_chart(const Results& results);
/// What a picture calls a run: "single, all cores", "ddp 2".
std::string row_label(const Results& results, const Run& run);

// What stands under them, and the page's list of words with their meanings: only what the data show.
std::string epoch_caption(const Results& results);
std::string parts_caption(const Results& results);
std::string step_caption(const Results& results);
std::string loss_caption(const Results& results);
std::vector<std::pair<std::string, std::string>> words(const Results& results);
/// Two sentences on why averaging gains little from more devices, from its figures; empty where it does not.
std::string averaging_note(const Results& results);

/// index.html: one file that needs no network, with what repeating the run needs beyond results.json.
std::string to_html(const Results& results, const std::string& command_line, double time_budget_s);

}  // namespace duet::cli
