#include "ddp/group/wait_watch.h"

#include <algorithm>
#include <chrono>

#include "ddp/group/flight_recorder.h"
#include "ddp/store/store.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

std::string seconds_text(std::int64_t ns) {
  const std::int64_t tenths = ns / 100'000'000;
  return concat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace

std::string WaitWatch::look(const std::vector<RankRecord>& ranks, std::int64_t now_ns) {
  using std::chrono::nanoseconds;
  const std::optional<Wait> wait = wait_of(ranks, now_ns);
  if (reported_) {
    if (wait && wait->sequence == reported_->sequence) {
      reported_->waited_ns = wait->waited_ns;
      return {};
    }
    remark_after_ = std::max(remark_after_, 2 * nanoseconds(reported_->waited_ns));
    const std::string text = concat(reported_->operation, " goes on after ", seconds_text(reported_->waited_ns));
    reported_.reset();
    return text;
  }
  if (!wait || (wait->awaited.empty() && elsewhere_.empty())) return {};
  const nanoseconds steps = FlightRecorder::kStepsPerTimeout * nanoseconds(wait->median_step_ns);
  if (nanoseconds(wait->waited_ns) < std::max(remark_after_, steps)) return {};
  reported_ = wait;
  return concat(rank_names(wait->waiting), wait->waiting.size() > 1 ? " have" : " has", " waited ",
                seconds_text(wait->waited_ns), " for ", wait->awaited.empty() ? elsewhere_ : rank_names(wait->awaited),
                " in ", wait->operation);
}

}  // namespace duet::ddp
