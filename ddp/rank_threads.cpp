#include "ddp/rank_threads.h"

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "ddp/connect.h"
#include "ddp/store/store.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr Milliseconds kMeetTimeout{60'000};  // threads of one process come at once

class RankThreads {
 public:
  RankThreads(int ranks, const std::function<void(ProcessGroup&)>& body, const RankThreadsOptions& options)
      : options_(options), body_(body), size_(ranks) {}

  void run() {
    std::promise<bool> all_there;
    const std::shared_future<bool> starts = all_there.get_future().share();
    std::vector<std::thread> threads;
    try {
      for (int rank = 0; rank < size(); ++rank) {
        threads.push_back(start_thread(concat("the thread of rank ", rank, " of ", size()), [this, rank, starts] {
          if (starts.get()) run_rank(rank);
        }));
      }
    } catch (...) {  // no rank waits for a thread that could not be made
      all_there.set_value(false);
      for (std::thread& thread : threads) thread.join();
      throw;
    }
    all_there.set_value(true);
    for (std::thread& thread : threads) thread.join();
    rethrow_cause();
  }

 private:
  struct Failure {
    int rank;
    bool consequence;  // it may only have lost a peer
    std::exception_ptr error;
  };

  int size() const { return size_; }

  std::unique_ptr<ProcessGroup> connect(int rank) {
    if (size() == 1) return std::make_unique<SoloGroup>();
    const bool any = options_.backend == "auto";
    ConnectOptions options{
        .backend = any ? "shm" : options_.backend, .connect_timeout = kMeetTimeout, .group = options_.group};
    if (!options_.devices.empty()) options.device = options_.devices[static_cast<std::size_t>(rank)];
    try {
      return ddp::connect(options, store_, rank, size());
    } catch (const CommError&) {  // on all ranks alike, unless one has failed
      if (!any || failed()) throw;
    }
    options.backend = "memory";
    return ddp::connect(options, store_, rank, size());
  }

  void run_rank(int rank) {
    try {
      const auto group = connect(rank);
      body_(*group);
    } catch (const CommError&) {
      note({rank, true, std::current_exception()});
    } catch (...) {
      note({rank, false, std::current_exception()});
    }
  }

  void note(Failure failure) {
    const std::string text = concat("rank ", failure.rank, " has failed");
    const std::lock_guard lock(mutex_);
    failures_.push_back(std::move(failure));
    store_->fail(text);  // no launcher ends the ranks that wait there for this one
  }

  bool failed() {
    const std::lock_guard lock(mutex_);
    return !failures_.empty();
  }

  void rethrow_cause() const {
    if (failures_.empty()) return;
    auto cause = std::find_if(failures_.begin(), failures_.end(), [](const Failure& one) { return !one.consequence; });
    if (cause == failures_.end()) cause = failures_.begin();
    with_prefix([&] { return concat("rank ", cause->rank, ": "); }, [&] { std::rethrow_exception(cause->error); });
  }

  const RankThreadsOptions& options_;
  const std::function<void(ProcessGroup&)>& body_;
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  const int size_;
  std::mutex mutex_;
  std::vector<Failure> failures_;  // in the order in which they came
};

}  // namespace

void run_rank_threads(int ranks, const std::function<void(ProcessGroup&)>& body, const RankThreadsOptions& options) {
  require<UsageError>(ranks >= 1, "a job has at least 1 rank, got ", ranks);
  check_backend(options.backend, true);
  require<UsageError>(options.backend != "nccl" || options.devices.size() == static_cast<std::size_t>(ranks),
                      "backend nccl: ", ranks, " ranks, but ", options.devices.size(), " devices");
  RankThreads(ranks, body, options).run();
}

}  // namespace duet::ddp
