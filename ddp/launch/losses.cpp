#include "ddp/launch/losses.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "lib/base/descriptor.h"
#include "lib/error.h"

namespace duet::ddp {

namespace {

RankFile make_file(const std::string& kind, std::size_t bytes) {
  RankFile file = make_rank_file(kind);
  require<CommError>(!file.path.empty() && ::fchmod(file.memory.get(), 0600) == 0 &&
                         (bytes == 0 || reserve(file.memory, 0, bytes) == 0),
                     "there is no memory for an elastic job's ", kind);
  return file;
}

}  // namespace

JobLosses::JobLosses(int ranks, int most) : ranks_(ranks), most_(most) { begin(); }

void JobLosses::begin() {
  arbiter_.reset();
  memory_file_ = make_file("job", JobMemory::bytes());
  store_file_ = make_file("store", 0);
  job_ = std::make_unique<JobMemory>(memory_file_.path);
  arbiter_.emplace(*job_, ranks_);
}

JobLosses::Loss JobLosses::lose(int rank) {
  std::int64_t step = 0;
  for (int one = 0; one < ranks_; ++one) step = std::max(step, job_->committed(one));
  losses_ = step - step_ >= kStepsBetween ? 1 : losses_ + 1;
  step_ = std::max(step_, step);
  if (losses_ > most_)
    return end(concat("more than ", most_, " losses without ", kStepsBetween, " steps between any two"));
  if (step_ == 0) return Loss::begins;
  if (!arbiter_->lose(rank)) return end("all ranks had ended their training");
  if (arbiter_->any_step()) return Loss::replaced;
  return step_ == 1 ? Loss::begins : end("no rank is left that has the state of the training");
}

JobLosses::Loss JobLosses::end(const std::string& reason) {
  reason_ = "; " + reason;
  return Loss::ends_job;
}

}  // namespace duet::ddp
