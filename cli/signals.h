// Ctrl-C and SIGTERM: noticed now, acted upon at the end of the step.
#pragma once

#include <atomic>
#include <cstdint>

namespace duet::cli {

/// From now on the first SIGINT or SIGTERM is only noted; a second one ends the process at once.
void note_signals();
/// The signal that was noted, or 0.
int noted_signal();

/// Lets ranks that are threads end after the same step, although a signal finds each of them at another place.
class CommonEnd {
 public:
  /// A rank's questions are numbered from 0. No rank asks one before all have asked the one before: an all_reduce lies
  /// between them. So what a rank decides about the next question reaches all in time.
  bool comes(std::int64_t question, bool signalled) {
    if (signalled && end_ > question) end_ = question + 1;
    return question >= end_;
  }

 private:
  std::atomic<std::int64_t> end_{INT64_MAX};
};

}  // namespace duet::cli
