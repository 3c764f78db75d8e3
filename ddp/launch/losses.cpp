#include "ddp/launch/losses.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

namespace {

RankFile make_file(const std::string& kind, std::size_t bytes) {
  RankFile file = make_rank_file(kind);
  const bool made = !file.path.empty() && ::fchmod(file.memory.get(), 0600) == 0;
  const int failure = !made ? errno : bytes == 0 ? 0 : reserve(file.memory, 0, bytes);
  require<CommError>(made && failure == 0, "cannot make the memory file of an elastic job's ", kind, ": ",
                     errno_text(failure));
  return file;
}

}  // namespace

JobArbiter::Sizes sizes_of(const LaunchOptions& options) {
  const int ranks = options.nodes * options.ranks;
  return {ranks, options.min_ranks == 0 ? ranks : options.min_ranks, options.spares};
}

JobLosses::JobLosses(const JobArbiter::Sizes& sizes, int most, bool one_host)
    : sizes_(sizes),
      processes_(sizes.ranks + sizes.spares),
      most_(most),
      one_host_(one_host),
      last_(static_cast<std::size_t>(sizes.ranks + sizes.spares)) {
  begin();
}

void JobLosses::begin() {
  arbiter_.reset();
  if (job_ && !one_host_) {
    job_->clear();
  } else {
    memory_file_ = make_file("job", JobMemory::bytes());
    store_file_ = make_file("store", 0);
    job_ = std::make_unique<JobMemory>(memory_file_.path);
  }
  arbiter_.emplace(*job_, sizes_);
}

const char* JobLosses::consequence(Loss loss) {
  switch (loss) {
    case Loss::replaced: return "another process replaces it";
    case Loss::spared: return "a spare process replaces it";
    case Loss::left_out: return "the others continue, and another process is to join them";
    case Loss::outside: return "it waited to take part, and another process does that now";
    case Loss::begins:
    case Loss::ends_job: break;
  }
  return "";
}

JobLosses::Loss JobLosses::lose(int rank, const std::string& how, Phase phase, bool counts) {
  std::int64_t step = 0;
  for (int one = 0; one < processes_; ++one) step = std::max(step, job_->steps(one));
  losses_ = step - step_ >= kStepsBetween ? 1 : losses_ + counts;
  step_ = std::max(step_, step);
  const bool computes = (phase == Phase::forward || phase == Phase::backward) && !job_->recovers(rank);
  const bool was_member = job_->is_member(rank);
  LastLoss& last = last_[static_cast<std::size_t>(rank)];
  const LastLoss before = last;
  last.within = computes ? job_->steps(rank) + 1 : 0;
  last.how = how;
  if (last.within > 0 && before.within == last.within && before.how == how)
    return end(
        concat("step ", last.within, " has killed rank ", rank, " twice: its rows of the batch may be the cause"));
  if (losses_ > most_)
    return end(concat("more than ", most_, " failures without ", kStepsBetween, " steps between any two"));
  if (step_ == 0 && was_member && !job_->ended()) return Loss::begins;
  if (!arbiter_->lose(rank, step_)) return end("all ranks had ended their training");
  if (!was_member) return Loss::outside;
  admitted_ = last.told = last.joins = false;
  last.left_out = !job_->is_member(rank) && !arbiter_->is_whole();
  if (arbiter_->any_step(step_))
    return last.left_out ? Loss::left_out : job_->is_member(rank) ? Loss::replaced : Loss::spared;
  return step_ == 1 ? Loss::begins : end("no rank is left that has the state of the training");
}

bool JobLosses::recovers() const {
  const std::vector<JobLoss> losses = job_->losses();
  return !arbiter_->is_whole() ||
         std::any_of(losses.begin(), losses.end(), [](const JobLoss& loss) { return loss.recovered_ns == 0; });
}

std::vector<std::string> JobLosses::recoveries() {
  std::vector<std::string> texts;
  std::set<int> seen;
  const std::vector<JobLoss> losses = job_->losses();
  for (auto at = losses.rbegin(); at != losses.rend(); ++at) {
    const JobLoss& loss = *at;
    LastLoss& last = last_[static_cast<std::size_t>(loss.rank)];
    if (!seen.insert(loss.rank).second || loss.recovered_ns == 0 || std::exchange(last.told, true)) continue;
    texts.push_back(concat("rank ", loss.rank, last.left_out ? " is left out after " : " is replaced after ",
                           (loss.recovered_ns - loss.lost_ns) / 1'000'000, " ms; the job continues after step ",
                           loss.step));
  }
  for (int rank = 0; rank < processes_; ++rank) {
    LastLoss& last = last_[static_cast<std::size_t>(rank)];
    if (!last.joins || job_->committed(rank) == JobMemory::kNoState) continue;
    last.joins = false;
    texts.push_back(concat("rank ", rank, " has joined the others again after step ", job_->steps(rank)));
  }
  return texts;
}

void JobLosses::admit_ready() {
  arbiter_->require_own();
  for (int rank = 0; rank < processes_; ++rank) {
    if (!job_->applies(rank) || !arbiter_->admit(rank)) continue;
    last_[static_cast<std::size_t>(rank)].joins = admitted_ = true;
  }
}

std::optional<JobLosses::Absence> JobLosses::overdue(Milliseconds limit) const {
  const std::vector<JobLoss> losses = job_->losses();
  if (losses.empty() || Clock::duration(monotonic_ns() - losses.back().lost_ns) <= limit) return {};
  std::vector<int> missing = arbiter_->missing();
  // Ranks with a state come to a new one between two steps.
  if (admitted_) std::erase_if(missing, [&](int rank) { return job_->committed(rank) != JobMemory::kNoState; });
  if (missing.empty()) return {};
  std::string names;
  for (const int rank : missing)
    names += concat(names.empty() ? "" : ", ", "rank ", rank,
                    job_->committed(rank) == JobMemory::kNoState ? "'s new process" : "");
  return Absence{missing.front(), concat(names, missing.size() > 1 ? " have" : " has", " not joined within ",
                                         std::chrono::duration<double>(limit).count(), " s after the last failure")};
}

std::string JobLosses::left_early(int rank) const {
  return concat("it left the training after step ", std::max<std::int64_t>(job_->steps(rank), 0),
                ", but a rank ends by destroying its process group, at the same step as all others");
}

JobLosses::Loss JobLosses::end(const std::string& reason) {
  reason_ = "; " + reason;
  return Loss::ends_job;
}

}  // namespace duet::ddp
