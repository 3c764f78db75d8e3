// A process group over any transport, with one communication thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/transport/message_collectives.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

struct GroupOptions {
  Milliseconds timeout = kGroupTimeout;  // of every single operation
  Milliseconds leave_timeout{2000};      // how long the destructor waits for the peers
};

class TransportGroup final : public ProcessGroup {
 public:
  explicit TransportGroup(std::unique_ptr<Transport> transport, const GroupOptions& options = {});
  ~TransportGroup() override;
  const char* backend() const override;
  double busy_us() const override { return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) / 1e3; }

 protected:
  Work start(const Call& call) override;
  std::unique_ptr<ProcessGroup> connect_subset(const Subset& subset) const override {
    return std::make_unique<TransportGroup>(core_->transport->connect_subset(subset), options_);
  }

 private:
  /// What a Work may still need after the group is gone.
  struct Core {
    std::unique_ptr<Transport> transport;
    GroupFailure failure;
    [[noreturn]] void fail(const std::string& operation, const std::exception& error);
  };
  struct Task {
    Call call;
    WorkState* state;  // works_ keeps it until it has ended
  };
  Work start_message(const Call& call);
  void serve();
  void execute(const Task& task);

  std::shared_ptr<Core> core_;
  GroupOptions options_;
  Collectives collectives_;  // the communication thread's
  std::uint64_t sequence_ = 0;
  std::atomic<std::int64_t> busy_ns_{0};
  WorkPool works_;
  std::map<std::tuple<Collective, int, int>, std::uint64_t> messages_;  // sent to and received from (peer, tag)

  std::mutex mutex_;
  std::condition_variable queued_;
  std::vector<Task> queue_, running_;  // swapped, so that their memory is kept
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace duet::ddp
