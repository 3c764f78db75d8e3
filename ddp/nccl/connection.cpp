// How a communicator connects with the other ranks', and leaves them. NCCL's calls for both block, and it cannot abort
// them (its usage/communicators, "Fault Tolerance"): one that does not return in time is left to its thread.
#include <memory>
#include <mutex>
#include <utility>

#include "ddp/nccl/blocking_call.h"
#include "ddp/nccl/check.h"
#include "ddp/nccl/communicator.h"
#include "lib/base/start_thread.h"

namespace duet::ddp::nccl {
namespace {

constexpr Milliseconds kCheckPeersEvery{100};

/// What a thread that connects makes; its owner may not wait for it any longer.
class Connecting {
 public:
  /// Aborts the communicator if take() was called before.
  void give(ncclComm_t made) {
    {
      const std::lock_guard lock(mutex_);
      if (!taken_) {
        made_ = made;
        return;
      }
    }
    if (made != nullptr) ncclCommAbort(made);
  }
  /// The communicator, also of a failed initialisation; null if there is none yet, or NCCL made none.
  ncclComm_t take() {
    const std::lock_guard lock(mutex_);
    taken_ = true;
    return std::exchange(made_, nullptr);
  }

 private:
  std::mutex mutex_;
  ncclComm_t made_ = nullptr;
  bool taken_ = false;
};

}  // namespace

void Communicator::connect() {
  const ncclUniqueId id = rendezvous_.share_id(options_.connect_timeout);
  const auto made = std::make_shared<Connecting>();
  Lock lock(mutex_);
  const auto connecting = take_operation("connecting", true, options_.connect_timeout);
  watchdog_ = start_thread(concat("the thread that watches NCCL for rank ", rank()), [this] { watch(); });
  try {
    BlockingCall call(concat("the thread that connects NCCL for rank ", rank()),
                      [made, id, gpu = gpu_, rank = rank(), size = rendezvous_.size()] {
                        activate(gpu);
                        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                        config.blocking = 1;  // otherwise NCCL starts a thread for every collective
                        ncclComm_t communicator = nullptr;
                        const ncclResult_t result = ncclCommInitRankConfig(&communicator, size, id, rank, &config);
                        made->give(communicator);
                        check(result);
                      });
    while (!call.wait_until(Clock::now() + kCheckPeersEvery)) check_connecting(lock, *connecting);
    communicator_ = made->take();
  } catch (const Error& error) {
    communicator_ = made->take();
    const CommError failure(abort(lock, connecting->name, error));
    lock.unlock();
    close(true);
    release();
    throw failure;
  }
}

void Communicator::check_connecting(Lock& lock, const Operation& connecting) {
  try {
    check_peers(lock, connecting);
  } catch (const CommError& error) {
    throw CommError(concat(error.what(), "; NCCL cannot abort this, so the thread that connects is left running"));
  }
}

/// Finalizes and destroys the communicator. Throws CommError when NCCL does not end it in time, and then owns it no
/// longer, or refuses to.
void Communicator::drain(Lock& lock) {
  BlockingCall call(concat("the thread that ends NCCL for rank ", rank()), [gpu = gpu_, communicator = communicator_] {
    activate(gpu);
    check(ncclCommFinalize(communicator));
    ncclCommDestroy(communicator);
  });
  const ncclComm_t ending = std::exchange(communicator_, nullptr);
  const Milliseconds timeout = options_.group.leave_timeout;
  bool ended = false;
  try {
    const Unlocked blocking(*this, lock);
    ended = call.wait_until(Clock::now() + timeout);
  } catch (...) {
    communicator_ = ending;  // not finalized
    throw;
  }
  require<CommError>(ended, "NCCL has not ended it within ", timeout.count(),
                     " ms; the thread that ends it is left running");
  failure_.close();
}

}  // namespace duet::ddp::nccl
