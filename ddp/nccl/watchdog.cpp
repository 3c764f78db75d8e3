// The watchdog of a communicator: detects errors, timeouts and calls that differ among ranks.
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddp/nccl/check.h"
#include "ddp/nccl/communicator.h"
#include "lib/monotonic.h"

namespace duet::ddp::nccl {
namespace {

constexpr Milliseconds kWatchEvery{5};
constexpr Milliseconds kSlow{100};  // an operation for which the others' progress is read
constexpr Milliseconds kCompareEvery{50};

}  // namespace

void Communicator::watch() {
  // Another thread may capture a graph meanwhile, which event queries must not invalidate.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaSetDevice(gpu_);
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] {
      return stopping_ || to_abort_ != nullptr || (failure_.empty() && (!pending_.empty() || headers_.fresh()));
    });
    if (to_abort_ != nullptr) abort_now(lock);
    if (stopping_) return;
    const std::string oldest = pending_.empty() ? "the group" : pending_.front()->name;
    try {
      check_progress(lock);
    } catch (const Error& error) {
      abort(lock, oldest, error);
    }
    changed_.wait_for(lock, kWatchEvery, [this] { return stopping_; });
  }
}

/// Throws the error that it finds.
void Communicator::check_progress(Lock& lock) {
  retire(lock);
  if (communicator_ != nullptr) compare_headers(lock);
  if (pending_.empty() || communicator_ == nullptr) return;
  const auto oldest = pending_.front();
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(communicator_, &state));
  check(state);
  if (Clock::now() - oldest->started >= kSlow) check_peers(lock, *oldest);
}

void Communicator::note_header(const Call& call) {
  const Lock lock(mutex_);
  headers_.add(call);
}

// Note [Headers]: NCCL does not compare what ranks call: it hangs, or adds unrelated buffers. An exchange before
// each call would cost more than the call. So the watchdog publishes this rank's last headers soon
// after the calls, 20 times a second at most, and compares theirs. The rank that publishes last finds a difference, and
// aborts. Results from before that moment may be wrong, but the job ends.
void Communicator::compare_headers(Lock& lock) {
  const Clock::time_point now = Clock::now();
  if (!headers_.fresh() || now < next_comparison_) return;
  next_comparison_ = now + kCompareEvery;
  const std::string own = headers_.text();
  lock.unlock();
  std::vector<std::string> all;
  try {
    all = rendezvous_.exchange_headers(own);
  } catch (const CommError&) {  // at the end of a job the store may close first
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  const std::string text = headers_.difference(all, rank());
  require<CommError>(text.empty(), text);
}

void Communicator::check_peers(Lock& lock, const Operation& oldest) {
  const std::uint64_t count = collectives_;
  const bool late = Clock::now() >= oldest.deadline;
  lock.unlock();
  std::string other, missing;
  try {
    if (std::exchange(published_, count) != count) rendezvous_.publish_started(count);
    other = rendezvous_.failure();
    if (late && oldest.collective) missing = rendezvous_.ranks_before(oldest.number);
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  require<CommError>(other.empty(), other);
  const auto timeout = std::chrono::duration_cast<Milliseconds>(oldest.deadline - oldest.started);
  require<CommError>(!late || oldest.done, "it has not ended within ", timeout.count(), " ms",
                     missing.empty() ? "" : concat("; ", missing, " did not join it"));
}

}  // namespace duet::ddp::nccl
