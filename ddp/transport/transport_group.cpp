// A process group over any transport, with one communication thread.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/transport/lost_rank.h"
#include "ddp/transport/message_collectives.h"
#include "ddp/transport/transport.h"
#include "lib/base/fault_point.h"
#include "lib/base/start_thread.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr std::size_t kQueued = 64;  // calls in the background for which there is memory from the start

/// What a Work may still need after the group is gone.
struct Core {
  std::unique_ptr<Transport> transport;
  bool whole_job = true;
  GroupFailure failure;

  [[noreturn]] void fail(const std::string& operation, const std::exception& error) {
    const std::string text = failure.add(operation, transport->rank(), error);
    transport->close();  // the peers must not wait for this rank
    const auto* const lost = dynamic_cast<const LostRank*>(&error);
    if (lost != nullptr && whole_job) throw LostRank(text, lost->rank(), lost->origin());
    throw CommError(text);
  }
};

class TransportGroup final : public ProcessGroup {
 public:
  TransportGroup(std::unique_ptr<Transport> transport, const GroupOptions& options)
      : ProcessGroup(transport->rank(), transport->size()),
        core_(std::make_shared<Core>()),
        options_(options),
        collectives_(*transport, options.timeout) {
    core_->transport = std::move(transport);
    core_->whole_job = options.whole_job;
    queue_.reserve(kQueued);
    running_.reserve(kQueued);
    try {
      thread_ = start_thread(concat("the communication thread of rank ", rank()), [this] { serve(); });
    } catch (...) {
      core_->transport->close();  // the peers must not wait for this rank
      throw;
    }
  }

  ~TransportGroup() override {
    if (is_dropped()) core_->transport->close();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      queued_.notify_all();
    }
    thread_.join();
    core_->failure.close();
    core_->transport->close();
  }

  const char* backend() const override { return core_->transport->name(); }
  double busy_us() const override { return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) / 1e3; }

 protected:
  Work start(const Call& call) override {
    if (call.op == Collective::send || call.op == Collective::recv) return start_message(call);
    auto state = works_.take();
    state->begin(name(call.op));
    const std::lock_guard lock(mutex_);
    queue_.push_back({call, state.get()});
    queued_.notify_one();
    return Work(std::move(state));
  }

  std::unique_ptr<ProcessGroup> connect_subset(const Subset& subset) const override {
    GroupOptions options = options_;
    options.whole_job = false;
    return std::make_unique<TransportGroup>(core_->transport->connect_subset(subset), options);
  }

 private:
  struct Task {
    Call call;
    WorkState* state;  // works_ keeps it until it has ended
  };

  // A message needs no queue: it is started here, and the thread that waits for it completes it. So a rank may start a
  // send and a recv in any order, as in a ring, without a circular wait.
  Work start_message(const Call& call) {
    struct Message {
      CallHeader ours, theirs;
      Transport::Request header = 0, payload = 0;
    };
    core_->failure.check();
    const auto message = std::make_shared<Message>();
    const std::uint64_t number = messages_[{call.op, call.root, call.tag}]++;
    Call both = call;  // as both sides describe it, so that their tags agree
    both.op = Collective::send;
    both.root = call.op == Collective::send ? call.root : rank();
    message->ours = header_of(both, number);
    CallHeader key = message->ours;  // sequence and tag of this message, apart from those of collectives
    CallHeader place;
    place.sequence = number;
    place.root = both.root;
    place.tag = call.tag;
    key.sequence = tag_of(place, 2);
    const std::uint64_t tag = tag_of(key, 3);
    const bool sends = call.op == Collective::send;
    Transport& transport = *core_->transport;
    const bool empty = call.in.count == 0;
    const std::string title = concat(name(call.op), sends ? " to" : " from", " rank ", call.root);
    try {
      message->header = sends ? transport.send(call.root, header_tag(key), &message->ours, sizeof(CallHeader))
                              : transport.receive(call.root, header_tag(key), &message->theirs, sizeof(CallHeader));
      if (!empty)
        message->payload = sends ? transport.send(call.root, tag, call.in.data, call.in.bytes())
                                 : transport.receive(call.root, tag, call.in.data, call.in.bytes());
    } catch (const std::exception& error) {  // the peer has closed
      core_->fail(title, error);
    }

    const auto finish = [core = core_, message, sends, empty, call, title, timeout = options_.timeout,
                         mark = call.mark](Clock::time_point limit) {
      const auto deadline = std::min(limit, Clock::now() + mark.limit(timeout));
      try {
        core->transport->wait(message->header, deadline);
        require<CommError>(sends || message->theirs == message->ours, "rank ", call.root, " sends ",
                           message->theirs.count, " ", static_cast<DType>(message->theirs.dtype), ", expected ",
                           call.in.count, " ", call.in.dtype);
        if (!empty) core->transport->wait(message->payload, deadline);
      } catch (const std::exception& error) {
        core->fail(title, error);
      }
      return true;
    };
    auto state = std::make_shared<WorkState>();
    state->begin(name(call.op), finish);
    return Work(std::move(state));
  }

  void serve() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        queued_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) break;
        std::swap(queue_, running_);
      }
      for (const Task& task : running_) execute(task);
      running_.clear();
    }
    collectives_.drain(options_.leave_timeout);
  }

  void execute(const Task& task) {
    const std::uint64_t number = sequence_++;
    try {
      core_->failure.check();
      try {
        const TraceSpan span(name(task.call.op), {DeviceKind::cpu, rank()}, TraceEvent::Kind::communication,
                             bytes_of(task.call));
        const Clock::time_point begin = Clock::now();
        task.call.mark.running();
        fault_point("collective");
        collectives_.run(task.call, number);
        busy_ns_.fetch_add(std::chrono::nanoseconds(Clock::now() - begin).count(), std::memory_order_relaxed);
      } catch (const std::exception& error) {
        core_->fail(concat(name(task.call.op), " #", number), error);
      }
      task.state->end();
    } catch (...) {
      task.state->end(std::current_exception());
    }
  }

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

}  // namespace

std::unique_ptr<ProcessGroup> make_transport_group(std::unique_ptr<Transport> transport, const GroupOptions& options) {
  return std::make_unique<TransportGroup>(std::move(transport), options);
}

}  // namespace duet::ddp
