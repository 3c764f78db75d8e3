#include "ddp/launch/job_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "ddp/group/flight_recorder.h"
#include "lib/base/descriptor.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {

namespace {

/// The longest wait without a look: a process may be killed between its change and its wake.
constexpr std::chrono::milliseconds kMissedWake{20};

struct alignas(64) RankLine {
  std::atomic<std::int64_t> committed;
  std::atomic<std::uint32_t> arrived, finished;  // for which generation, plus 1; 0: none
  std::atomic<std::uint32_t> joined;
};

}  // namespace

struct JobMemory::Layout {
  struct Plan {
    std::atomic<std::int64_t> step;
    std::atomic<std::int32_t> source;
  };
  std::atomic<std::uint32_t> changes;  // a futex: counts changes of what follows
  std::atomic<std::uint32_t> ranks;
  std::atomic<std::uint32_t> state;    // 2 * generation, + 1 once the job has ended
  std::atomic<std::uint32_t> planned;  // the generation with the newest plan, + 1; 0: none
  std::array<Plan, 64> plans;          // by generation: a rank that is slow to write an old one spoils no new one
  std::array<RankLine, kMostRanks> lines;

  std::uint32_t generation() const { return state.load() / 2; }
  bool ended() const { return state.load() % 2 != 0; }
  RankLine& of(int rank) { return lines[static_cast<std::size_t>(rank)]; }
  Plan& plan(std::uint32_t generation) { return plans[generation % plans.size()]; }
  /// Whether all ranks have written that they are where `what` says, in that generation.
  bool all(std::atomic<std::uint32_t> RankLine::*what, std::uint32_t generation) {
    for (std::uint32_t rank = 0; rank < ranks.load(); ++rank)
      if ((lines[rank].*what).load() != generation + 1) return false;
    return true;
  }
  void change() {
    changes.fetch_add(1);
    futex_wake(changes);
  }
};

std::size_t JobMemory::bytes() { return sizeof(Layout); }

JobMemory::JobMemory(const std::string& path) {
  const Descriptor file(may_be_rank_file(path) ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1);
  struct stat status {};
  const bool fits = ::fstat(file.get(), &status) == 0 && status.st_size == static_cast<off_t>(bytes());
  void* const memory = fits ? ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0) : MAP_FAILED;
  require<CommError>(memory != MAP_FAILED, "the memory of the elastic job cannot be mapped: ", path);
  memory_ = static_cast<Layout*>(memory);
}

JobMemory::~JobMemory() { ::munmap(memory_, bytes()); }

int JobMemory::ranks() const {
  const std::uint32_t ranks = memory_->ranks.load();
  require<CommError>(1 <= ranks && ranks <= kMostRanks, "the memory of the elastic job has ", ranks, " ranks");
  return static_cast<int>(ranks);
}

std::int64_t JobMemory::committed(int rank) const { return memory_->of(rank).committed.load(); }

bool JobMemory::ended() const { return memory_->ended(); }

bool JobMemory::has_joined(int rank) const { return memory_->of(rank).joined.load() != 0; }

JobArbiter::JobArbiter(JobMemory& memory, int ranks) : memory_(*memory.memory_) {
  require<UsageError>(ranks <= JobMemory::kMostRanks, "an elastic job has at most ", JobMemory::kMostRanks,
                      " ranks, got ", ranks);
  memory_.ranks.store(static_cast<std::uint32_t>(ranks));
  memory_.planned.store(1);
}

bool JobArbiter::lose(int rank) {
  std::uint32_t state = memory_.state.load();
  RankLine& line = memory_.of(rank);
  line.finished.store(0);
  do {
    if (state % 2 != 0) return false;
  } while (!memory_.state.compare_exchange_weak(state, state + 2));
  line.committed.store(JobMemory::kNoState);
  line.arrived.store(0);
  memory_.change();
  return true;
}

bool JobArbiter::any_step() const {
  for (int rank = 0; rank < static_cast<int>(memory_.ranks.load()); ++rank)
    if (memory_.of(rank).committed.load() > 0) return true;
  return false;
}

JobMember::JobMember(JobMemory& memory, int rank) : memory_(*memory.memory_), rank_(rank) {
  require<CommError>(rank < memory.ranks(), "rank ", rank, " of an elastic job of ", memory.ranks());
  memory_.of(rank).joined.store(1);
}

std::uint32_t JobMember::generation() const { return memory_.generation(); }

void JobMember::commit(std::int64_t step) { memory_.of(rank_).committed.store(step); }

std::uint32_t JobMember::arrive() {
  const std::uint32_t generation = memory_.generation();
  memory_.of(rank_).finished.store(0);
  memory_.of(rank_).arrived.store(generation + 1);
  memory_.change();
  return generation;
}

/// All who have arrived see the same steps, as these change in groups only: which rank publishes makes no difference.
void JobMember::publish_plan(std::uint32_t generation) {
  RecoveryPlan plan{.step = JobMemory::kNoState};
  for (int rank = 0; rank < static_cast<int>(memory_.ranks.load()); ++rank) {
    const std::int64_t committed = memory_.of(rank).committed.load();
    if (committed <= plan.step) continue;
    plan.step = committed;
    plan.source = rank;
  }
  if (is_behind(generation)) return;
  memory_.plan(generation).step.store(plan.step);
  memory_.plan(generation).source.store(plan.source);
  std::uint32_t before = memory_.planned.load();
  while (before < generation + 1 && !memory_.planned.compare_exchange_weak(before, generation + 1)) {
  }
  memory_.change();
}

std::optional<RecoveryPlan> JobMember::await_plan(std::uint32_t generation) {
  for (;;) {
    const std::uint32_t changes = memory_.changes.load();
    if (memory_.planned.load() != generation + 1 && memory_.all(&RankLine::arrived, generation))
      publish_plan(generation);
    if (memory_.planned.load() == generation + 1) {
      const RecoveryPlan plan{memory_.plan(generation).step.load(), memory_.plan(generation).source.load()};
      if (!is_behind(generation)) return plan;
    }
    if (is_behind(generation)) return {};
    futex_wait(memory_.changes, changes, kMissedWake);
  }
}

bool JobMember::finish(std::uint32_t generation) {
  memory_.of(rank_).finished.store(generation + 1);
  memory_.change();
  for (;;) {
    const std::uint32_t changes = memory_.changes.load();
    std::uint32_t running = 2 * generation;
    if (memory_.all(&RankLine::finished, generation) && memory_.state.compare_exchange_strong(running, running + 1))
      memory_.change();
    if (memory_.ended()) return true;
    if (is_behind(generation)) return false;
    futex_wait(memory_.changes, changes, kMissedWake);
  }
}

bool JobMember::await_loss(std::uint32_t generation, Clock::duration limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  for (;;) {
    const std::uint32_t changes = memory_.changes.load();
    if (is_behind(generation)) return true;
    if (Clock::now() >= deadline) return false;
    futex_wait(memory_.changes, changes, kMissedWake);
  }
}

}  // namespace duet::ddp
