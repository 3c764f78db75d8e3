#include "ddp/shm/shm_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/shm/control_block.h"
#include "ddp/shm/messages.h"
#include "ddp/shm/shm_collectives.h"
#include "lib/base/fault_point.h"
#include "lib/base/start_thread.h"
#include "lib/base/thread_pool.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr auto kTakeoverDelay = std::chrono::milliseconds(20);  // then the helper runs what no thread waits for

/// Memory of a segment, which it keeps alive.
std::shared_ptr<Storage> storage_in(const std::shared_ptr<SharedSegment>& segment, std::byte* data, std::size_t bytes) {
  return {new Storage(Device{}, data, bytes), [segment](Storage* used) { delete used; }};
}

/// What a Work may still need after the group is gone: messages, and what they need.
struct MessageCore {
  MessageCore(std::unique_ptr<ControlBlock> block, const GroupOptions& group_options)
      : control_block(std::move(block)), options(group_options), messages(*control_block) {}

  /// Ends the group, and returns the text of the error; the mutex is not held.
  std::string fail(const std::string& operation, const std::exception& error) {
    std::string text = failure.add(operation, control_block->rank(), error);
    close();  // the peers must not wait for this rank
    return text;
  }

  /// Ends all connections, and the use of the messages' memory; the mutex is not held.
  void close() {
    control_block->close();  // ends the wait of a thread that holds the mutex
    const std::lock_guard lock(mutex);
    messages.stop();
  }

  bool finish(std::uint64_t number, Clock::time_point deadline) {
    const std::lock_guard lock(mutex);
    const auto ready = [&] {
      messages.progress();
      return !messages.pending(number);
    };
    const auto check = [&] {
      const int peer = messages.peer_of(number);
      control_block->check_alive(peer);
      require<CommError>(Clock::now() < deadline, "rank ", peer, " did not come in time");
    };
    control_block->await(ready, check, deadline, spins);
    return true;
  }

  void help() {
    try {
      const std::unique_lock lock(mutex, std::try_to_lock);
      if (lock.owns_lock() && messages.any_pending()) messages.progress();
    } catch (const std::exception& error) {
      fail("a message", error);
    }
  }

  const std::unique_ptr<ControlBlock> control_block;
  const GroupOptions options;
  const bool spins = control_block->size() <= usable_cores();
  std::mutex mutex;  // of the messages
  Messages messages;
  GroupFailure failure;
};

class ShmGroup final : public ProcessGroup {
 public:
  ShmGroup(std::unique_ptr<ControlBlock> control_block, std::shared_ptr<Store> store, Milliseconds connect_timeout,
           const GroupOptions& options)
      : ProcessGroup(control_block->rank(), control_block->size()),
        core_(std::make_shared<MessageCore>(std::move(control_block), options)),
        arena_store_(store),
        connect_timeout_(connect_timeout),
        collectives_(*core_->control_block) {
    set_store(std::move(store));
    helper_ = start_thread(concat("the helper thread of rank ", rank(), " of a process group over shared memory"),
                           [this] { help(); });
  }

  ~ShmGroup() override {
    if (is_dropped()) core_->close();
    {
      const std::lock_guard engine(engine_);
      run_until(~std::uint64_t{0}, core_->spins);
    }
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_helper_.notify_all();
    }
    helper_.join();
    for (const auto deadline = Clock::now() + core_->options.leave_timeout;
         core_->messages.any_pending() && !core_->control_block->closed(rank()) && Clock::now() < deadline;) {
      core_->help();
      std::this_thread::sleep_for(Milliseconds(1));
    }
    core_->failure.close();
    core_->control_block->close();
    const std::lock_guard lock(core_->mutex);
    core_->messages.freeze();
  }

  const char* backend() const override { return "shm"; }
  double busy_us() const override { return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) / 1e3; }
  std::shared_ptr<Storage> shared_storage(std::size_t bytes) override {
    const std::size_t room = (bytes + 4095) / 4096 * 4096;
    const SharedArena arena{make_segment(room * static_cast<std::size_t>(size())), room};
    const std::lock_guard engine(engine_);
    collectives_.add_arena(arena);
    return storage_in(arena.segment, arena.of(rank()), bytes);
  }

 protected:
  Work start(const Call& call) override {
    if (call.op == Collective::send || call.op == Collective::recv) return start_message(call);
    const std::unique_lock engine(engine_, std::try_to_lock);
    const std::lock_guard lock(mutex_);
    auto state = works_.take();
    state->begin(name(call.op),
                 [this, number = asked_](Clock::time_point deadline) { return finish(number, deadline); });
    tasks_.push_back({call, state.get()});
    // The others need not wait for this rank's contribution until this rank waits for theirs.
    if (engine.owns_lock() && asked_ == done_ && core_->failure.empty()) {
      collectives_.begin(call, asked_);
      tasks_.back().begun = true;
    }
    ++asked_;
    return Work(std::move(state));
  }

  std::unique_ptr<ProcessGroup> connect_subset(const Subset& subset) const override {
    return make_shm_group(subset.store, subset.rank, subset.size(), connect_timeout_, core_->options);
  }

 private:
  struct Task {
    Call call;
    WorkState* state = nullptr;  // works_ keeps it until it has ended
    bool begun = false;
  };

  Work start_message(const Call& call) {
    core_->failure.check();
    Call both = call;  // as both sides describe it
    both.op = Collective::send;
    both.root = 0;
    const CallHeader header = header_of(both, 0);
    const bool sends = call.op == Collective::send;
    const std::string title = concat(name(call.op), sends ? " to" : " from", " rank ", call.root);
    auto state = std::make_shared<WorkState>();
    state->begin(name(call.op));
    try {
      const std::lock_guard lock(core_->mutex);
      Messages& messages = core_->messages;
      const std::uint64_t number =
          sends ? messages.send(call.root, header, call.in.data) : messages.receive(call.root, header, call.in.data);
      if (sends) messages.progress();
      state->begin(name(call.op), [core = core_, number, title, mark = call.mark](Clock::time_point deadline) {
        try {
          return core->finish(number, std::min(deadline, Clock::now() + mark.limit(core->options.timeout)));
        } catch (const std::exception& error) {
          throw CommError(core->fail(title, error));
        }
      });
    } catch (const std::exception& error) {
      state->end(std::make_exception_ptr(CommError(core_->fail(title, error))));
    }
    return Work(std::move(state));
  }

  /// Carries out the collectives up to `number`; engine_ is held.
  void run_until(std::uint64_t number, bool spin) {
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

  void run(const Task& task, bool spin) {
    std::exception_ptr failure;
    try {
      core_->failure.check();
      try {
        const TraceSpan span(name(task.call.op), {DeviceKind::cpu, rank()}, TraceEvent::Kind::communication,
                             bytes_of(task.call));
        const Clock::time_point start = Clock::now();
        task.call.mark.running();
        fault_point("collective");
        if (!task.begun) collectives_.begin(task.call, done_);
        collectives_.finish(task.call, done_, start + task.call.mark.limit(core_->options.timeout), spin);
        busy_ns_.fetch_add(std::chrono::nanoseconds(Clock::now() - start).count(), std::memory_order_relaxed);
      } catch (const std::exception& error) {
        throw CommError(core_->fail(concat(name(task.call.op), " #", done_), error));
      }
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      tasks_.erase(tasks_.begin());
      ++done_;
    }
    task.state->end(failure);
  }

  bool finish(std::uint64_t number, Clock::time_point deadline) {
    if (deadline == Clock::time_point::max()) {
      const std::lock_guard engine(engine_);
      run_until(number, core_->spins);
    } else {  // it goes on after the deadline, so the helper must do it
      const std::lock_guard lock(mutex_);
      urgent_ = true;
      wake_helper_.notify_one();
    }
    return false;
  }

  std::shared_ptr<SharedSegment> make_segment(std::size_t bytes) {
    return std::make_shared<SharedSegment>(*arena_store_, concat("shm/arena/", arenas_++), rank(), size(), bytes,
                                           core_->options.timeout);
  }

  /// The helper thread: runs what no other thread waits for.
  void help() {
    std::unique_lock lock(mutex_);
    std::uint64_t seen = ~std::uint64_t{0};
    while (!stopping_) {
      wake_helper_.wait_for(lock, kTakeoverDelay, [this] { return urgent_ || stopping_; });
      if (stopping_) return;
      const bool waits = !tasks_.empty() && (urgent_ || seen == done_);
      seen = done_;
      urgent_ = false;
      const std::uint64_t last = asked_;
      lock.unlock();
      if (waits) {
        const std::lock_guard engine(engine_);
        run_until(last, false);
      }
      core_->help();
      lock.lock();
    }
  }

  const std::shared_ptr<MessageCore> core_;
  const std::shared_ptr<Store> arena_store_;
  const Milliseconds connect_timeout_;
  int arenas_ = 0;

  // Held by the thread that carries out collectives, or messages, for as long as that takes.
  std::mutex engine_;
  ShmCollectives collectives_;

  mutable std::mutex mutex_;            // of what follows; the last one taken, and never held while waiting
  std::vector<Task> tasks_;             // in the order of the calls
  std::uint64_t done_ = 0, asked_ = 0;  // collectives that have ended, and that were started
  WorkPool works_;
  std::atomic<std::int64_t> busy_ns_{0};
  std::condition_variable wake_helper_;
  bool urgent_ = false, stopping_ = false;
  std::thread helper_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_shm_group(std::shared_ptr<Store> store, int rank, int size,
                                             Milliseconds connect_timeout, const GroupOptions& options) {
  auto segment = ControlBlock::make_segment(*store, "shm/control_block", rank, size, connect_timeout);
  auto control_block = std::make_unique<ControlBlock>(std::move(segment), rank, size);
  return std::make_unique<ShmGroup>(std::move(control_block), std::move(store), connect_timeout, options);
}

}  // namespace duet::ddp
