// The sentences on waiting and moving.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"
#include "report/interval_text.h"
#include "report/report.h"

namespace duet::cli {
namespace {

std::string us(double value) { return grouped(std::llround(value)) + " us"; }

/// "451 us (420..482)".
std::string with_interval(double value, const std::vector<double>& interval) {
  return us(value) + " " + us_range(interval.at(0), interval.at(1));
}

/// Whether an interval of a time excludes that there is none.
bool excludes_none(const std::vector<double>& interval) { return interval.size() == 2 && interval[0] > 0; }

/// What backward hides of the communication of ranks.
std::string hidden_text(const Run& run) {
  const double share = std::clamp(1 - run.step_us.communication / run.communication_us, 0.0, 1.0);
  const std::string percent = fixed(100 * share, 0);
  return percent == "0" ? "Nothing of it is hidden behind backward." : percent + " % of it is hidden behind backward.";
}

/// Names the rank that hardly waits while the others wait for it.
std::string last_rank(const Run& run) {
  constexpr double kLittle = 0.2;       // of what a rank waits on average
  constexpr double kNoteworthy = 0.05;  // of the step
  const auto least = std::min_element(run.rank_waiting_us.begin(), run.rank_waiting_us.end());
  if (least == run.rank_waiting_us.end() || *least > kLittle * *run.communication_waiting_us ||
      *run.communication_waiting_us < kNoteworthy * run.step_us.sum())
    return "";
  const auto others = static_cast<double>(run.rank_waiting_us.size() - 1);
  const double sum = *run.communication_waiting_us * (others + 1) - *least;
  return concat(run.mode == "dp" ? " Replica " : " Rank ", least - run.rank_waiting_us.begin(),
                " is the last: it waits for ", us(*least), ", ", others > 1 ? "each of the others" : "the other",
                " for ", us(sum / others), ".");
}

std::string of_ranks(const Run& run, const std::string& title) {
  const std::string moving = with_interval(*run.communication_moving_us, run.moving_interval_us);
  std::string text = concat("A step of ", title, " communicates for ",
                            us(*run.communication_waiting_us + *run.communication_moving_us), ": ");
  if (excludes_none(run.waiting_interval_us))
    text += with_interval(*run.communication_waiting_us, run.waiting_interval_us) + " is waiting for the last rank, ";
  return concat(text, moving, excludes_none(run.waiting_interval_us) ? "" : " of it is", " moving and adding. ",
                hidden_text(run), excludes_none(run.waiting_interval_us) ? last_rank(run) : "");
}

std::string of_replicas(const Run& run, const std::string& title) {
  std::string text = concat("A step of ", title);
  if (excludes_none(run.waiting_interval_us))
    text += concat(" waits for ", with_interval(*run.communication_waiting_us, run.waiting_interval_us),
                   " for the last replica, within forward and backward, and");
  return concat(text, " scatters, replicates, gathers and adds up gradients for ",
                with_interval(*run.communication_moving_us, run.moving_interval_us), ".",
                excludes_none(run.waiting_interval_us) ? last_rank(run) : "");
}

}  // namespace

void add_waiting_findings(const Results& results, int devices, std::vector<std::string>& out) {
  for (const char* const mode : {"averaging", "dp", "ddp"}) {
    for (const Run& run : results.runs) {
      if (!run.ok || run.mode != mode || run.devices != devices || devices < 2 || run.communication_us <= 0) continue;
      const std::string title = concat(row_name(results, run), " on ", devices, " devices");
      if (!run.communication_waiting_us) {
        if (run.mode == "ddp")
          out.push_back(concat("A step of ", title, " communicates for ", us(run.communication_us),
                               ", waiting for other ranks included. ", hidden_text(run)));
      } else if (excludes_none(run.moving_interval_us)) {
        out.push_back(run.mode == "dp" ? of_replicas(run, title) : of_ranks(run, title));
      }
    }
  }
}

}  // namespace duet::cli
