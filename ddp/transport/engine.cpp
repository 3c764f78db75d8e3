// A process group over an engine: the queue of collectives, who carries them out, and messages between two ranks.
#include "ddp/transport/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ddp/group/call_header.h"
#include "lib/base/fault_point.h"
#include "lib/base/patience.h"
#include "lib/base/threads.h"
#include "lib/base/trace.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr std::size_t kQueued = 64;  // calls in the background for which there is memory from the start
/// How often the group's threads look for messages, and for collectives, that no thread waits for.
constexpr auto kTick = std::chrono::milliseconds(20);

/// A message to or from another rank: its header, which both sides compare, and its data.
struct Message {
  CallHeader ours, theirs;
  Transport::Request header = Transport::kNone, payload = Transport::kNone;
  std::unique_ptr<std::byte[]> own;  // for the data, if the transport can't release() the caller's
  bool ended = false;
};

/// What a Work may still need after the group is gone.
struct Core {
  Core(std::unique_ptr<Engine> group_engine, const GroupOptions& group_options)
      : engine(std::move(group_engine)), options(group_options) {}

  Transport& transport() const { return engine->transport(); }

  [[noreturn]] void fail(const std::string& operation, const std::exception& error) {
    const std::string text = failure.add(operation, transport().rank(), error);
    transport().close();  // the peers must not wait for this rank
    const auto* const lost = dynamic_cast<const LostRank*>(&error);
    if (lost != nullptr && options.whole_job) throw LostRank(text, lost->rank(), lost->origin());
    throw CommError(text);
  }

  /// Nobody waits for the message any more, and its buffer may go next.
  void drop(std::unique_ptr<Message> message) noexcept {
    if (!message->ended) try {
        const std::lock_guard lock(mutex);
        if (!transport().release(message->header) || !transport().release(message->payload))
          left.push_back(std::move(message));
      } catch (const std::exception& error) {  // no memory
        failure.add("a message without a wait()", transport().rank(), error);
        transport().close();
      }
  }

  std::mutex mutex;                            // guards the next one
  std::vector<std::unique_ptr<Message>> left;  // dropped ones, which the transport may still use
  const std::unique_ptr<Engine> engine;
  const GroupOptions options;
  GroupFailure failure;
};

class EngineGroup final : public ProcessGroup {
 public:
  EngineGroup(std::unique_ptr<Engine> engine, const GroupOptions& options)
      : ProcessGroup(engine->transport().rank(), engine->transport().size()),
        core_(std::make_shared<Core>(std::move(engine), options)),
        waiters_run_(core_->engine->runs_in_waiters()) {
    tasks_.reserve(kQueued);
    try {
      const auto started = [this](const char* what, void (EngineGroup::*body)()) {
        return with_patience([&] { return start_thread(concat(what, this->rank()), [=, this] { (this->*body)(); }); });
      };
      if (core_->transport().needs_progress())
        mover_ = started("the thread of messages of rank ", &EngineGroup::move_messages);
      thread_ = started("the communication thread of rank ", &EngineGroup::serve);
    } catch (...) {
      end_threads();
      core_->transport().close();  // the peers must not wait for this rank
      throw;
    }
  }

  ~EngineGroup() override {
    if (is_dropped()) core_->transport().close();
    if (waiters_run_) run_until(kAll, true);
    end_threads();
    run_until(kAll, true);
    core_->engine->drain(core_->options.leave_timeout);
    core_->failure.close();
    core_->transport().close();
  }

  const char* backend() const override { return core_->transport().name(); }
  std::shared_ptr<Storage> shared_storage(std::size_t bytes) override {
    run_until(kAll, true);  // ranks wait for each other here as in a collective, so behind those that were started
    const std::lock_guard running(running_);
    return core_->engine->shared_storage(bytes);
  }

 protected:
  Work start(const Call& call) override {
    if (is_message(call.op)) return start_message(call);
    std::unique_lock running(running_, std::defer_lock);
    if (waiters_run_) static_cast<void>(running.try_lock());
    const std::lock_guard lock(mutex_);
    auto state = works_.take();
    if (waiters_run_)
      state->begin(name(call.op),
                   [this, number = asked_](Clock::time_point deadline) { return finish(number, deadline); });
    else
      state->begin(name(call.op));
    tasks_.push_back({call, state.get()});
    // The others need not wait for this rank's contribution until this rank waits for theirs.
    if (running.owns_lock() && asked_ == done_ && core_->failure.empty()) {
      core_->engine->begin(call, asked_);
      tasks_.back().begun = true;
    }
    ++asked_;
    if (!waiters_run_) wake_.notify_one();
    return Work(std::move(state));
  }

  std::unique_ptr<ProcessGroup> connect_subset(const Subset& subset) const override {
    GroupOptions options = core_->options;
    options.whole_job = false;
    return std::make_unique<EngineGroup>(core_->engine->connect_subset(subset), options);
  }

 private:
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  struct Task {
    Call call;
    WorkState* state = nullptr;  // works_ keeps it until it has ended
    bool begun = false;
  };

  // A message needs no queue: it is started here, and the thread that waits for it completes it. So a rank may start a
  // send and a recv in any order, as in a ring, without a circular wait.
  Work start_message(const Call& call) {
    core_->failure.check();
    const std::shared_ptr<Message> message(new Message,
                                           [core = core_](Message* one) { core->drop(std::unique_ptr<Message>(one)); });
    const std::uint64_t number = messages_[{call.op, call.root, call.tag}]++;
    const bool sends = call.op == Collective::send;
    Call both = call;  // as both sides describe it, so that their tags agree
    both.op = Collective::send;
    both.root = sends ? call.root : rank();
    message->ours = header_of(both, number);
    CallHeader place;
    place.sequence = number;
    place.root = both.root;
    place.tag = call.tag;
    CallHeader key = message->ours;  // sequence and tag of this message, apart from those of collectives
    key.sequence = tag_of(place, 2);
    const std::string title = concat(name(call.op), sends ? " to" : " from", " rank ", call.root);
    try {
      begin_message(call, key, *message);
    } catch (const std::exception& error) {  // the peer has closed
      message->ended = true;
      core_->fail(title, error);
    }
    auto state = std::make_shared<WorkState>();
    state->begin(name(call.op), [core = core_, message, call, title](Clock::time_point limit) {
      message->ended = true;  // else the transport is closed
      try {
        finish_message(core->transport(), *message, call,
                       std::min(limit, Clock::now() + call.mark.limit(core->options.timeout)));
      } catch (const std::exception& error) {
        core->fail(title, error);
      }
      return true;
    });
    return Work(std::move(state));
  }

  void begin_message(const Call& call, const CallHeader& key, Message& message) {
    Transport& transport = core_->transport();
    const std::uint64_t head = header_tag(key), tag = tag_of(key, 3);
    const bool sends = call.op == Collective::send;
    message.header = sends ? transport.send(call.root, head, &message.ours, sizeof(CallHeader))
                           : transport.receive(call.root, head, &message.theirs, sizeof(CallHeader));
    if (call.in.count == 0) return;
    void* data = call.in.data;
    if (!transport.release(Transport::kNone)) {
      message.own = std::make_unique_for_overwrite<std::byte[]>(call.in.bytes());
      if (sends) std::memcpy(message.own.get(), data, call.in.bytes());
      data = message.own.get();
    }
    message.payload = sends ? transport.send(call.root, tag, data, call.in.bytes())
                            : transport.receive(call.root, tag, data, call.in.bytes());
  }

  static void finish_message(Transport& transport, const Message& message, const Call& call,
                             Clock::time_point deadline) {
    transport.wait(message.header, deadline);
    require<CommError>(call.op == Collective::send || message.theirs == message.ours, "rank ", call.root, " sends ",
                       message.theirs.count, " ", static_cast<DType>(message.theirs.dtype), ", expected ",
                       call.in.count, " ", call.in.dtype);
    if (call.in.count > 0) transport.wait(message.payload, deadline);
    if (message.own && call.op == Collective::recv) std::memcpy(call.in.data, message.own.get(), call.in.bytes());
  }

  /// Carries out the collectives up to `number`; waiting for other ranks may `spin`, but for the group's thread.
  void run_until(std::uint64_t number, bool spin) {
    std::unique_lock running(running_, std::defer_lock);
    if (spin || !waiters_run_)
      running.lock();
    else if (!running.try_lock())
      return;  // another thread does so, and may wait for ranks that wait for messages of this one
    for (;;) {
      Task task;
      {
        const std::lock_guard lock(mutex_);
        if (tasks_.empty() || done_ > number) return;
        task = tasks_.front();
      }
      run(task, spin);
    }
  }

  void run(Task& task, bool spin) {
    std::exception_ptr failure;
    try {
      core_->failure.check();
      try {
        const TraceSpan span(name(task.call.op), {DeviceKind::cpu, rank()}, TraceEvent::Kind::communication,
                             bytes_of(task.call));
        const Clock::time_point start = Clock::now();
        task.call.mark.running();
        fault_point("collective");
        if (!task.begun) core_->engine->begin(task.call, done_);
        core_->engine->finish(task.call, done_, start + task.call.mark.limit(core_->options.timeout), spin);
      } catch (const std::exception& error) {
        core_->fail(concat(name(task.call.op), " #", done_), error);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      tasks_.erase(tasks_.begin());
      ++done_;
    }
    task.call.in = task.call.out = {};  // who waits may count on memory that only it has
    task.state->end(failure);
  }

  /// For the thread that waits.
  bool finish(std::uint64_t number, Clock::time_point deadline) {
    if (deadline == Clock::time_point::max()) {
      run_until(number, true);
    } else {  // it goes on after the deadline, so the group's thread must do it
      const std::lock_guard lock(mutex_);
      urgent_ = true;
      wake_.notify_one();
    }
    return false;
  }

  /// The group's thread: carries out collectives, or only those that no other thread waits for.
  void serve() {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = kAll;
    const auto due = [this] { return stopping_ || urgent_ || (!waiters_run_ && !tasks_.empty()); };
    while (!stopping_) {
      if (waiters_run_)
        wake_.wait_for(lock, kTick, due);
      else
        wake_.wait(lock, due);
      if (stopping_) return;
      const bool runs = !tasks_.empty() && (!waiters_run_ || urgent_ || seen == done_);
      seen = done_;
      urgent_ = false;
      const std::uint64_t last = asked_;
      lock.unlock();
      if (runs) run_until(last, false);
      lock.lock();
    }
  }

  void end_threads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
      ending_.notify_all();
    }
    for (std::thread* const thread : {&thread_, &mover_})
      if (thread->joinable()) thread->join();
  }

  /// Runs on a separate thread: the group's thread may be in a collective that a rank joins only after its messages.
  void move_messages() {
    std::unique_lock lock(mutex_);
    while (!ending_.wait_for(lock, kTick, [this] { return stopping_; })) {
      lock.unlock();
      try {
        core_->transport().progress();
      } catch (const std::exception& error) {
        core_->failure.add("a message", rank(), error);
      }
      lock.lock();
    }
  }

  const std::shared_ptr<Core> core_;
  const bool waiters_run_;

  std::mutex running_;  // held by the thread that carries out collectives, for as long as that takes

  std::mutex mutex_;                    // guards what follows; the last one taken, and never held while waiting
  std::vector<Task> tasks_;             // in the order of the calls
  std::uint64_t done_ = 0, asked_ = 0;  // collectives that have ended, and that were started
  WorkPool works_;
  std::condition_variable wake_, ending_;
  bool urgent_ = false, stopping_ = false;

  std::map<std::tuple<Collective, int, int>, std::uint64_t> messages_;  // sent to and received from (peer, tag)
  std::thread thread_, mover_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_group(std::unique_ptr<Engine> engine, const GroupOptions& options) {
  return std::make_unique<EngineGroup>(std::move(engine), options);
}

}  // namespace duet::ddp
