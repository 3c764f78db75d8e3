// The report of a comparison: its table, its findings, and the page with its pictures. `Results` must have gone through
// compare_with_single().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/report/results.h"
#include "cli/system/terminal.h"

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
/// "single, all cores", else the mode.
std::string row_name(const Results& results, const Run& run);
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
/// What ranks and replicas on `devices` devices wait for each other, and move: a sentence per mode, and per backend.
void add_waiting_findings(const Results& results, int devices, std::vector<std::string>& out);
/// Whether dp, ddp or single is the fastest here, by how much, and whether the bits agree.
std::string headline(const Results& results);

// Pictures, each a whole <svg>; empty text where there is nothing to draw.
/// Time of an epoch against devices: a line per mode, bars from min to max, the ideal line dashed.
std::string epoch_chart(const Results& results);
/// Where a step's time goes: a stacked bar per run.
std::string parts_chart(const Results& results);
/// One step, as it ran: a lane for every device and rank, of single, and of dp above ddp on as many devices as both
/// have.
std::string step_chart(const Results& results);
/// Loss of all runs over training.
std::string loss_chart(const Results& results);
/// Peak memory: a bar per process; and on GPUs: a bar per device.
std::string memory_chart(const Results& results);
std::string device_memory_chart(const Results& results);

// What stands under them, and the page's list of words with their meanings: only what the data show.
std::string epoch_caption(const Results& results);
std::string parts_caption(const Results& results);
std::string step_caption(const Results& results);
std::string loss_caption(const Results& results);
std::vector<std::pair<std::string, std::string>> words(const Results& results);
/// Two sentences on why averaging gains little from more devices, from its figures; empty where it does not.
std::string averaging_note(const Results& results);

/// The style sheet of all pages.
std::string page_style();
/// One page in the style of all reports; `title` and `heading` are text, `body` is HTML.
std::string html_page(const std::string& title, const std::string& heading, const std::string& body);
/// A headline, something below it and a note; empty where that is empty.
std::string page_section(const std::string& title, const std::string& body, const std::string& note = "");
/// An entry of a <dl>; empty for an empty value.
std::string page_entry(const std::string& name, const std::string& value);

/// index.html: one file that needs no network, with what repeating the run needs beyond results.json.
std::string to_html(const Results& results, const std::string& command_line, double time_budget_s);

}  // namespace duet::cli
