#include "ddp/launch/job_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <utility>

#include "ddp/group/flight_recorder.h"
#include "lib/base/descriptor.h"
#include "lib/base/recovery.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {

namespace {

/// The longest wait without a look: a process may be killed between its change and its wake.
constexpr std::chrono::milliseconds kMissedWake{20};
constexpr std::int64_t kMostCommits = std::int64_t{1} << 62;  // the next one has a number, too

struct alignas(64) RankLine {
  std::atomic<std::int64_t> committed;
  std::atomic<std::uint32_t> arrived, resumed, finished;  // in which generation, plus 1; 0: none
  std::atomic<std::uint32_t> joined, applies;
};

}  // namespace

struct JobMemory::Layout {
  struct Plan {
    std::atomic<std::int64_t> commits;
    std::atomic<std::int32_t> source;
  };
  struct LossLine {
    std::atomic<std::int32_t> rank;
    std::atomic<std::int64_t> step, lost_ns, recovered_ns;
  };
  using Absent = std::array<std::atomic<std::uint64_t>, kMostRanks / 64>;  // a bit for each rank
  std::atomic<std::uint32_t> changes;                                      // a futex: counts changes of what follows
  std::atomic<std::uint32_t> ranks, least_ranks, spares;
  std::atomic<std::uint32_t> state;    // 2 * generation, + 1 once the job has ended
  std::atomic<std::uint32_t> planned;  // the generation with the newest plan, + 1; 0: none
  using Order = std::array<std::atomic<std::uint16_t>, kMostRanks>;  // by process; members are numbered in this order
  std::array<Order, 2> orders;                                       // by generation, as the next
  std::array<Absent, 2> absent;          // by generation: the launcher writes that of the next one before it begins
  std::array<Plan, 64> plans;            // by generation: a rank that is slow to write an old one spoils no new one
  std::atomic<std::uint32_t> lost;       // how many ranks were lost
  std::array<LossLine, kLosses> losses;  // by their number
  std::array<RankLine, kMostRanks> lines;

  std::uint32_t generation() const { return state.load() / 2; }
  bool ended() const { return state.load() % 2 != 0; }
  RankLine& of(int rank) { return lines[static_cast<std::size_t>(rank)]; }
  Plan& plan(std::uint32_t generation) { return plans[generation % plans.size()]; }
  /// The first loss that is kept of so many: the launcher may be writing the next one, in the place of one before.
  static std::uint32_t oldest(std::uint32_t count) { return count - std::min(count, kLosses - 1); }
  LossLine& loss(std::uint32_t number) { return losses[number % losses.size()]; }
  std::atomic<std::uint64_t>& absent_word(std::uint32_t generation, int rank) {
    return absent[generation % 2][static_cast<std::size_t>(rank) / 64];
  }
  std::atomic<std::uint16_t>& order(std::uint32_t generation, int rank) {
    return orders[generation % 2][static_cast<std::size_t>(rank)];
  }
  bool is_member(std::uint32_t generation, int rank) {
    return (absent_word(generation, rank).load() >> rank % 64 & 1) == 0;
  }
  std::int64_t committed(int rank) {
    const std::int64_t step = of(rank).committed.load();
    require<CommError>(kNoState <= step && step <= kMostCommits, "the memory of the elastic job has ", step,
                       " as the commits of rank ", rank);
    return step;
  }
  /// Whether all these ranks have written that they are where `what` says, in that generation.
  bool all(std::atomic<std::uint32_t> RankLine::*what, std::uint32_t generation, const std::vector<int>& ranks_of) {
    return std::all_of(ranks_of.begin(), ranks_of.end(),
                       [&](int rank) { return (of(rank).*what).load() == generation + 1; });
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

int JobMemory::processes() const {
  const std::uint32_t spares = memory_->spares.load();
  require<CommError>(spares <= kMostRanks - static_cast<std::uint32_t>(ranks()), "the memory of the elastic job has ",
                     spares, " spare processes");
  return ranks() + static_cast<int>(spares);
}

std::int64_t JobMemory::committed(int rank) const { return memory_->committed(rank); }

std::int64_t JobMemory::steps(int rank) const { return committed(rank) / Recovery::kCommitsPerStep; }

bool JobMemory::ended() const { return memory_->ended(); }

int JobMemory::least_ranks() const {
  const std::uint32_t least = memory_->least_ranks.load();
  require<CommError>(1 <= least && least <= memory_->ranks.load(), "the memory of the elastic job has ", least,
                     " as the least ranks of ", memory_->ranks.load());
  return static_cast<int>(least);
}

bool JobMemory::is_member(int rank) const { return memory_->is_member(memory_->generation(), rank); }

bool JobMemory::applies(int rank) const { return !is_member(rank) && memory_->of(rank).applies.load() != 0; }

bool JobMemory::has_joined(int rank) const { return memory_->of(rank).joined.load() != 0; }

bool JobMemory::recovers(int rank) const {
  return memory_->of(rank).arrived.load() != memory_->of(rank).resumed.load();
}

std::vector<JobLoss> JobMemory::losses() const {
  const std::uint32_t count = memory_->lost.load();
  std::vector<JobLoss> losses;
  for (std::uint32_t number = Layout::oldest(count); number < count; ++number) {
    const Layout::LossLine& line = memory_->loss(number);
    const JobLoss& loss =
        losses.emplace_back(JobLoss{line.rank.load(), line.step.load(), line.lost_ns.load(), line.recovered_ns.load()});
    const std::int64_t now = monotonic_ns();
    require<CommError>(0 <= loss.rank && loss.rank < processes() && 0 <= loss.step && loss.step <= kMostCommits &&
                           0 < loss.lost_ns && loss.lost_ns <= now &&
                           (loss.recovered_ns == 0 || (loss.lost_ns <= loss.recovered_ns && loss.recovered_ns <= now)),
                       "the memory of the elastic job has a loss of rank ", loss.rank, " after step ", loss.step,
                       ", seen at ", loss.lost_ns, " ns and recovered at ", loss.recovered_ns, " ns");
  }
  return losses;
}

JobArbiter::JobArbiter(JobMemory& memory, const Sizes& sizes)
    : memory_(*memory.memory_), sizes_(sizes), processes_(sizes.ranks + sizes.spares) {
  require<UsageError>(1 <= sizes.ranks && 0 <= sizes.spares && processes_ <= JobMemory::kMostRanks,
                      "an elastic job has 1 to ", JobMemory::kMostRanks, " ranks with spare ones, got ", sizes.ranks,
                      " and ", sizes.spares);
  require<UsageError>(1 <= sizes.least_ranks && sizes.least_ranks <= sizes.ranks, "an elastic job of ", sizes.ranks,
                      " ranks goes on with 1 to ", sizes.ranks, " of them at least, got ", sizes.least_ranks);
  memory_.ranks.store(static_cast<std::uint32_t>(sizes.ranks));
  memory_.least_ranks.store(static_cast<std::uint32_t>(sizes.least_ranks));
  memory_.spares.store(static_cast<std::uint32_t>(sizes.spares));
  for (int spare = sizes.ranks; spare < processes_; ++spare) {
    memory_.absent_word(0, spare).fetch_or(std::uint64_t{1} << spare % 64);
    memory_.of(spare).committed.store(JobMemory::kNoState);
  }
  for (int rank = 0; rank < processes_; ++rank) memory_.order(0, rank).store(static_cast<std::uint16_t>(rank));
  memory_.planned.store(1);
}

int JobArbiter::count_members() const {
  int count = 0;
  for (int rank = 0; rank < processes_; ++rank) count += memory_.is_member(memory_.generation(), rank);
  return count;
}

bool JobArbiter::is_whole() const { return count_members() >= sizes_.ranks; }

/// The first one, or -1.
int JobArbiter::ready_spare() const {
  for (int rank = 0; rank < processes_; ++rank)
    if (!memory_.is_member(memory_.generation(), rank) && memory_.of(rank).applies.load() != 0) return rank;
  return -1;
}

bool JobArbiter::lose(int rank, std::int64_t step) {
  if (memory_.ended()) return false;
  RankLine& line = memory_.of(rank);
  line.applies.store(0);
  const std::uint32_t generation = memory_.generation();
  if (!memory_.is_member(generation, rank)) return true;  // its process had not joined yet
  line.finished.store(0);
  const std::uint32_t number = memory_.lost.load();
  JobMemory::Layout::LossLine& loss = memory_.loss(number);
  loss.recovered_ns.store(0);
  loss.rank.store(rank);
  loss.step.store(step);
  loss.lost_ns.store(monotonic_ns());
  const int others = count_members() - 1, spare = ready_spare();
  const bool is_needed = sizes_.least_ranks == sizes_.ranks || others < sizes_.least_ranks;
  memory_.lost.store(number + 1);  // first, so that who goes on in the new generation sees it
  if (!begin_generation(spare >= 0 || !is_needed ? rank : -1, spare)) {
    memory_.lost.store(number);
    return false;
  }
  line.committed.store(JobMemory::kNoState);
  line.arrived.store(0);
  line.resumed.store(0);
  memory_.change();
  return true;
}

bool JobArbiter::admit(int rank) {
  if (is_whole() || !begin_generation(-1, rank)) return false;
  memory_.change();
  return true;
}

/// One in which all ranks are members that were it, but for the two, of which one gets the other's place; -1: none.
/// False: the job has ended.
bool JobArbiter::begin_generation(int leaves, int joins) {
  std::uint32_t state = memory_.state.load();
  const std::uint32_t next = state / 2 + 1;
  for (std::size_t word = 0; word < memory_.absent[0].size(); ++word)
    memory_.absent[next % 2][word].store(memory_.absent[(next + 1) % 2][word].load());
  for (int rank = 0; rank < processes_; ++rank) memory_.order(next, rank).store(memory_.order(next + 1, rank).load());
  if (leaves >= 0 && joins >= 0) {
    memory_.order(next, joins).store(memory_.order(next + 1, leaves).load());
    memory_.order(next, leaves).store(memory_.order(next + 1, joins).load());
  }
  if (leaves >= 0) memory_.absent_word(next, leaves).fetch_or(std::uint64_t{1} << leaves % 64);
  if (joins >= 0) memory_.absent_word(next, joins).fetch_and(~(std::uint64_t{1} << joins % 64));
  do {
    if (state % 2 != 0) return false;
  } while (!memory_.state.compare_exchange_weak(state, state + 2));
  if (joins >= 0) memory_.of(joins).applies.store(0);
  return true;
}

bool JobArbiter::any_step() const {
  for (int rank = 0; rank < processes_; ++rank)
    if (memory_.committed(rank) > 0) return true;
  return false;
}

std::vector<int> JobArbiter::missing() const {
  std::vector<int> missing;
  const std::uint32_t generation = memory_.generation();
  for (int rank = 0; generation > 0 && rank < processes_; ++rank)
    if (memory_.is_member(generation, rank) && !memory_.all(&RankLine::arrived, generation, {rank}))
      missing.push_back(rank);
  return missing;
}

JobMember::JobMember(JobMemory& memory, int rank)
    : memory_(*memory.memory_), rank_(rank), processes_(memory.processes()) {
  require<CommError>(0 <= rank && rank < processes_, "rank ", rank, " of an elastic job of ", processes_, " processes");
  members_.resize(static_cast<std::size_t>(memory.ranks()));
  std::iota(members_.begin(), members_.end(), 0);
  memory_.of(rank).joined.store(1);
}

std::uint32_t JobMember::generation() const { return memory_.generation(); }

void JobMember::commit(std::int64_t commits) {
  memory_.of(rank_).committed.store(commits);
  if (std::exchange(recovers_, false)) note_recovery(commits / Recovery::kCommitsPerStep);
}

void JobMember::note_recovery(std::int64_t step) {
  RankLine& line = memory_.of(rank_);
  line.resumed.store(line.arrived.load());
  const std::int64_t now = monotonic_ns();
  const std::uint32_t count = memory_.lost.load();
  for (std::uint32_t number = JobMemory::Layout::oldest(count); number < count; ++number) {
    JobMemory::Layout::LossLine& loss = memory_.loss(number);
    const bool replaced = is_among_members(loss.rank.load());
    if ((replaced && loss.rank.load() != rank_) || loss.recovered_ns.load() != 0) continue;
    loss.step.store(step);
    loss.recovered_ns.store(now);
  }
}

int JobMember::place_of(int rank) const {
  return static_cast<int>(std::ranges::find(members_, rank) - members_.begin());
}

bool JobMember::is_among_members(int rank) const { return std::ranges::find(members_, rank) != members_.end(); }

std::uint32_t JobMember::arrive() {
  const std::uint32_t generation = await_membership();
  recovers_ = true;
  memory_.of(rank_).finished.store(0);
  memory_.of(rank_).arrived.store(generation + 1);
  memory_.change();
  return generation;
}

/// The members of a generation are read whole where it is still the newest one then. The launcher ends a process that
/// waits here when the job has ended.
std::uint32_t JobMember::await_membership() {
  for (;;) {
    const std::uint32_t changes = memory_.changes.load(), generation = memory_.generation();
    std::vector<std::pair<int, int>> places;
    for (int rank = 0; rank < processes_; ++rank)
      if (memory_.is_member(generation, rank)) places.emplace_back(memory_.order(generation, rank).load(), rank);
    std::ranges::sort(places);
    members_.clear();
    for (const auto& [place, rank] : places) members_.push_back(rank);
    if (is_behind(generation)) continue;
    if (is_among_members(rank_)) return generation;
    if (memory_.of(rank_).applies.exchange(1) == 0) memory_.change();
    futex_wait(memory_.changes, changes, kMissedWake);
  }
}

/// All who have arrived see the same steps, as these change in groups only: which rank publishes makes no difference.
void JobMember::publish_plan(std::uint32_t generation) {
  RecoveryPlan plan{.commits = JobMemory::kNoState};
  for (const int rank : members_) {
    const std::int64_t committed = memory_.committed(rank);
    if (committed <= plan.commits) continue;
    plan.commits = committed;
    plan.source = rank;
  }
  if (is_behind(generation)) return;
  memory_.plan(generation).commits.store(plan.commits);
  memory_.plan(generation).source.store(plan.source);
  std::uint32_t before = memory_.planned.load();
  while (before < generation + 1 && !memory_.planned.compare_exchange_weak(before, generation + 1)) {
  }
  memory_.change();
}

std::optional<RecoveryPlan> JobMember::await_plan(std::uint32_t generation) {
  for (;;) {
    const std::uint32_t changes = memory_.changes.load();
    if (memory_.planned.load() != generation + 1 && memory_.all(&RankLine::arrived, generation, members_))
      publish_plan(generation);
    const std::uint32_t planned = memory_.planned.load();
    const RecoveryPlan plan{memory_.plan(generation).commits.load(), memory_.plan(generation).source.load()};
    if (is_behind(generation)) return {};
    require<CommError>(planned <= generation + 1, "the memory of the elastic job has a plan for generation ",
                       planned - 1, " in generation ", generation);
    if (planned == generation + 1) {
      require<CommError>(0 <= plan.commits && plan.commits <= kMostCommits && is_among_members(plan.source),
                         "the memory of the elastic job has a plan to go on after commit ", plan.commits,
                         ", whose state rank ", plan.source, " has, no member of the generation");
      return plan;
    }
    futex_wait(memory_.changes, changes, kMissedWake);
  }
}

bool JobMember::finish(std::uint32_t generation) {
  memory_.of(rank_).finished.store(generation + 1);
  memory_.change();
  for (;;) {
    const std::uint32_t changes = memory_.changes.load();
    std::uint32_t running = 2 * generation;
    if (memory_.all(&RankLine::finished, generation, members_) &&
        memory_.state.compare_exchange_strong(running, running + 1))
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
