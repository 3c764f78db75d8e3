#include "ddp/elastic_group.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/connect.h"
#include "ddp/group/call_header.h"
#include "ddp/group/compare_ranks.h"
#include "ddp/launch/error_file.h"
#include "ddp/same_builds.h"
#include "ddp/store/file_store.h"
#include "lib/base/environment.h"
#include "lib/base/fault_point.h"
#include "lib/base/patience.h"
#include "lib/base/recovery.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {

namespace {

// A wait looks at its store in pauses of a small part of what it has taken: a new process starts for half a second.
constexpr Milliseconds kLeastPause{1}, kMostPause{20}, kMostWay{500};
constexpr int kPauses = 50;
constexpr Milliseconds kNoLimit = std::chrono::hours(24 * 365);  // the launcher ends a job whose ranks don't come
constexpr Milliseconds kPatience{60'000};                        // with a shortage of threads or memory
constexpr std::int64_t kStatePiece = 16 << 20;                   // bytes of a state that lie on a GPU at once

Milliseconds milliseconds_until(Clock::time_point deadline) {
  return std::chrono::ceil<Milliseconds>(deadline - Clock::now());
}

/// A store whose waits end when `check` throws.
class CheckedStore final : public Store {
 public:
  CheckedStore(std::shared_ptr<Store> store, std::function<void()> check)
      : Store(store->timeout()), store_(std::move(store)), check_(std::move(check)) {}
  std::string secret() override { return store_->secret(); }
  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override {
    if (!waits(op)) return store_->request(op, std::move(strings), timeout);
    Milliseconds way{};  // to a distant store and back: what comes meanwhile waits as long
    for (const Clock::time_point begin = Clock::now();;) {
      const Clock::time_point asked = Clock::now();
      const auto waited = std::chrono::floor<Milliseconds>(asked - begin);
      const auto pause = std::clamp(std::max(waited / kPauses, way), kLeastPause, kMostPause + std::min(way, kMostWay));
      try {
        return store_->request(op, strings, pause);
      } catch (const CommError&) {
        if (Clock::now() < asked + pause) throw;  // for another reason
        way = std::chrono::floor<Milliseconds>(Clock::now() - asked) - pause;
        for (const auto& key : strings)
          require<CommError>(waited < timeout || store_->check({key}), "waited ", timeout.count(),
                             " ms for the store's key ", key);
      }
      check_();
    }
  }

 private:
  const std::shared_ptr<Store> store_;
  const std::function<void()> check_;
};

}  // namespace

ElasticGroup::ElasticGroup(std::unique_ptr<JobMemory> memory, int rank, int process, std::shared_ptr<Store> store,
                           std::string backend, Device device, Milliseconds join_timeout, ConnectGeneration connect,
                           bool early)
    : ProcessGroup(rank, memory->ranks()),
      memory_(std::move(memory)),
      member_(*memory_, process),
      results_(std::move(store), rank),
      backend_(std::move(backend)),
      device_(device),
      connect_(std::move(connect)),
      early_(early),
      joins_(memory_->committed(process) == JobMemory::kNoState) {
  if (!joins_) connect_newest(join_timeout);
  Recovery::instance().set_group({.complete = [this](std::int64_t commits) { member_.commit(commits); },
                                  .recover = [this] { recover(); },
                                  .is_left = [this] { return member_.is_behind(generation_); },
                                  .place = {rank, size()},
                                  .places_change = memory_->processes() > memory_->least_ranks(),
                                  .least_ranks = memory_->least_ranks(),
                                  .most_ranks = memory_->ranks()});
  if (joins_) Recovery::instance().set_void();
}

ElasticGroup::~ElasticGroup() {
  Recovery& recovery = Recovery::instance();
  if (!is_dropped()) try {
      recovery.require_no_redo();
      while (!member_.finish(generation_)) recover();
    } catch (const std::exception& error) {
      leave_error(error);
      leave_generation();
    }
  recovery.reset_group();
}

void ElasticGroup::connect_newest(Milliseconds limit) {
  inner_ = connect_(generation_, rank(), size(), limit, [this, generation = generation_] {
    require<CommError>(!member_.is_behind(generation), "a rank was lost");
  });
}

void ElasticGroup::leave_generation() {
  if (inner_ != nullptr) inner_->drop();
  inner_ = nullptr;
}

ProcessGroup& ElasticGroup::called(Collective op) {
  if (!is_message(op)) member_.count_call();
  return *inner_;
}

std::shared_ptr<Storage> ElasticGroup::shared_storage(std::size_t bytes) {
  if (joins_) return nullptr;
  if (!Recovery::instance().in_step()) {
    require_common();
    return called().shared_storage(bytes);
  }
  if (Recovery::instance().is_void()) return nullptr;
  try {
    return called().shared_storage(bytes);
  } catch (const CommError& error) {
    void_if_lost(error);
    return nullptr;
  }
}

Work ElasticGroup::start(const Call& call) {
  Recovery& recovery = Recovery::instance();
  recovery.leave_pass();
  if (recovery.in_step()) return start_in_step(call);
  if (joins_) {
    results_.repeat(call, [&] { return memory_->committed(results_.rank()) != 0; });
    return {};
  }
  require_common();
  Work work = start_in(called(call.op), call);
  if (recovery.commits() > 0 || recovery.in_state()) return work;
  work.wait();
  require_newest();
  results_.keep(call);
  return {};
}

Work ElasticGroup::start_in_step(const Call& call) {
  if (Recovery::instance().is_void()) {
    require<CommError>(!Recovery::instance().in_unit(), name(call.op), " in a unit in which a rank was lost");
    return {};
  }
  auto state = is_message(call.op) ? std::make_shared<WorkState>() : works_.take();  // a dropped message ends
  try {
    state->begin(name(call.op), [this, work = start_in(called(call.op), call)](Clock::time_point deadline) mutable {
      try {
        deadline == Clock::time_point::max() ? work.wait() : work.wait(milliseconds_until(deadline));
        require_newest();
      } catch (const CommError& error) {
        void_if_lost(error);
      }
      return true;
    });
  } catch (const CommError& error) {
    void_if_lost(error);
    return {};
  }
  return Work(std::move(state));
}

/// Called where a collective has failed: rethrows unless a rank was lost, and in a unit. An error by which ranks
/// disagree is no loss, whatever the program does with it.
void ElasticGroup::void_if_lost(const CommError& error) {
  Recovery& recovery = Recovery::instance();
  if (!recovery.is_void()) {
    name_unlike(error);
    if (!member_.await_loss(generation_, kLossPatience)) {
      leave_error(error);
      throw;
    }
    recovery.set_void();
  }
  if (recovery.in_unit()) throw;
}

/// Throws the error of ranks whose parameters differ with the name of the first, if all of them tell their hashes.
void ElasticGroup::name_unlike(const CommError& error) {
  if (std::string_view(error.what()).find(kUnlikeParameters) == std::string_view::npos) return;
  std::string name;
  try {
    const std::string lines = Recovery::instance().hashes();
    name = first_unlike(meet(*store(), concat("hashes/", generation_), rank(), size(), kLossPatience, lines));
  } catch (const CommError&) {  // another rank has ended meanwhile
  }
  if (name.empty()) return;
  const CommError named(concat(error.what(), "; the first that differs is ", name));
  leave_error(named);
  throw named;
}

/// An aborted communicator's kernels send what they have to the others, whose collectives then end as if nothing had
/// happened. It is aborted once there is a newer generation, so what has ended in the newest one is right.
void ElasticGroup::require_newest() const {
  require<CommError>(device_.kind == DeviceKind::cpu || !member_.is_behind(generation_), "a rank was lost");
}

/// A process that has just joined is void until its first step or unit, and passes over what the others have done.
void ElasticGroup::require_common() const {
  require<UsageError>(
      !Recovery::instance().is_void(),
      "a process that replaces a lost one calls a collective outside of steps and units, which the other "
      "ranks have made before: put it into a unit (lib/elastic.h)");
}

std::unique_ptr<ProcessGroup> ElasticGroup::connect_subset(const Subset&) const {
  throw UsageError("an elastic job has one process group, of all ranks: it cannot be split");
}

void ElasticGroup::recover() {
  const TraceSpan span("recovery", {DeviceKind::cpu, rank()});
  const Patience patience(kPatience);
  leave_generation();  // first, as what it has started on a device may still write there
  if (Recovery::instance().in_step()) Recovery::instance().restore();
  while (!recover_once()) {
  }
}

bool ElasticGroup::recover_once() {
  leave_generation();
  fault_point(joins_ ? "joining" : "arriving");
  generation_ = member_.arrive();
  set_place(member_.place_of(member_.rank()), static_cast<int>(member_.members().size()));
  fault_point("agreement");
  try {
    member_.begin_calls();  // before there is a plan, by which others may end
    if (early_) connect_newest(kNoLimit);
    const std::optional<RecoveryPlan> plan = member_.await_plan(generation_);
    if (!plan) return false;
    if (!early_) connect_newest(kNoLimit);
    exchange_state(*plan);
    Recovery::instance().regroup({rank(), size()});
    return true;
  } catch (const CommError&) {
    if (!member_.await_loss(generation_, kLossPatience)) throw;
    return false;
  }
}

/// What a rank takes is whole before any of it counts: the source may be lost meanwhile.
void ElasticGroup::exchange_state(const RecoveryPlan& plan) {
  Recovery& recovery = Recovery::instance();
  const int source = member_.place_of(plan.source);
  const bool gives = rank() == source;
  std::vector<std::byte> state;
  if (gives) {
    require<CommError>(recovery.commits() == plan.commits, "the memory of the elastic job says that rank ", plan.source,
                       " has made ", plan.commits, " commits, but it has made ", recovery.commits());
    state = recovery.state();
  }
  std::array<std::int64_t, 2> numbers = {static_cast<std::int64_t>(state.size()), noted()};  // 0 bytes on the others
  inner_->all_reduce(Buffer(std::span<std::int64_t>(numbers)), ReduceOp::max).wait();
  require_newest();
  const auto [bytes, calls] = numbers;
  state.resize(static_cast<std::size_t>(bytes));
  fault_point("state");
  for (std::int64_t begin = 0; begin < bytes; begin += kStatePiece)
    inner_->broadcast(Buffer(state.data() + begin, std::min(kStatePiece, bytes - begin), DType::u8), source).wait();
  require_newest();
  set_noted(calls);  // ranks have made different calls in the void step, and before one of them has joined
  const bool takes = std::exchange(joins_, false) || recovery.commits() != plan.commits;
  if (takes) recovery.take_state(state);
  recovery.set_redo_due(!takes && recovery.in_step());
  member_.commit(plan.commits);
}

std::unique_ptr<ProcessGroup> make_elastic_group(const ElasticOptions& options) {
  auto memory = std::make_unique<JobMemory>(environment_variable(kElasticVariable).value_or(""));
  const std::shared_ptr<Store> store =
      options.store != nullptr ? options.store
                               : std::make_shared<FileStore>(environment_variable(kElasticStoreVariable).value_or(""),
                                                             "elastic", 0, options.join_timeout);
  const int ranks = memory->ranks();
  const std::string number = environment_variable(kElasticProcessVariable).value_or(std::to_string(options.rank));
  const int process = parse_number<int>(number).value_or(-1);
  require<CommError>(ranks == options.ranks, "the memory of the elastic job is of ", ranks, " ranks, the job has ",
                     options.ranks);
  const auto connect_generation = [=](std::uint32_t generation, int rank, int size, Milliseconds limit,
                                      const std::function<void()>& check) {
    const auto own =
        std::make_shared<CheckedStore>(std::make_shared<PrefixStore>(store, generation_prefix(generation)), check);
    ConnectOptions over{.backend = options.backend,
                        .join_timeout = limit,
                        .connect_timeout = options.join_timeout,
                        .group = {.timeout = options.timeout},
                        .address = options.address,
                        .host = options.host,
                        .device = options.device,
                        .interface = options.interface,
                        .check = check};
    return over.backend == "auto" ? connect_on_host(over, own, rank, size) : connect(over, own, rank, size);
  };
  fault_point("init");
  require_same_builds(*store, process, options.host);
  auto group =
      std::make_unique<ElasticGroup>(std::move(memory), options.rank, process, store, options.backend, options.device,
                                     options.join_timeout, connect_generation, options.host >= 0);
  group->set_store(std::make_shared<PrefixStore>(store, "user/"));
  return group;
}

}  // namespace duet::ddp
