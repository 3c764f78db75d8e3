#include "ddp/launch/job_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/job_layout.h"
#include "lib/base/descriptor.h"
#include "lib/base/recovery.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {

namespace {

/// The longest wait without a look: a process may be killed between its change and its wake.
constexpr std::chrono::milliseconds kMissedWake{20};

}  // namespace

void JobMemory::Layout::clear() {
  for (std::atomic<std::uint32_t>* const number : {&ranks, &least_ranks, &spares, &follows, &state, &planned, &lost})
    number->store(0);
  for (Order& order : orders)
    for (std::atomic<std::uint16_t>& place : order) place.store(0);
  for (Absent& words : absent)
    for (std::atomic<std::uint64_t>& word : words) word.store(0);
  for (Plan& plan : plans) {
    plan.commits.store(0);
    plan.source.store(0);
  }
  for (LossLine& line : losses) {
    line.rank.store(0);
    for (std::atomic<std::int64_t>* const number : {&line.step, &line.lost_ns, &line.recovered_ns}) number->store(0);
  }
  for (RankLine& line : lines) line.clear();
  change();
}

std::vector<int> JobMemory::Layout::members(std::uint32_t generation, int processes) {
  std::vector<std::pair<int, int>> places;
  for (int rank = 0; rank < processes; ++rank)
    if (is_member(generation, rank)) places.emplace_back(order(generation, rank).load(), rank);
  std::ranges::sort(places);
  std::vector<int> members;
  for (const auto& [place, rank] : places) members.push_back(rank);
  return members;
}

/// All who have arrived see the same steps, as these change in groups only: which rank publishes makes no difference.
void JobMemory::Layout::publish_plan(std::uint32_t generation, const std::vector<int>& members) {
  if (follows.load() != 0 || planned.load() == generation + 1 || !all(&RankLine::arrived, generation, members)) return;
  RecoveryPlan newest{.commits = kNoState};
  for (const int rank : members)
    if (committed(rank) > newest.commits) newest = {committed(rank), rank};
  if (this->generation() != generation) return;
  plan(generation).commits.store(newest.commits);
  plan(generation).source.store(newest.source);
  std::uint32_t before = planned.load();
  while (before < generation + 1 && !planned.compare_exchange_weak(before, generation + 1)) {
  }
  change();
}

void JobMemory::Layout::end_if_finished(std::uint32_t generation, const std::vector<int>& members) {
  std::uint32_t running = 2 * generation;
  if (follows.load() == 0 && all(&RankLine::finished, generation, members) &&
      state.compare_exchange_strong(running, running + 1))
    change();
}

void JobMemory::Layout::note_recovery(int rank, const std::vector<int>& members, std::int64_t step) {
  const std::int64_t now = monotonic_ns();
  const std::uint32_t count = lost.load();
  for (std::uint32_t number = oldest(count); number < count; ++number) {
    LossLine& line = loss(number);
    const bool replaced = std::ranges::find(members, line.rank.load()) != members.end();
    if ((replaced && line.rank.load() != rank) || line.recovered_ns.load() != 0) continue;
    line.step.store(step);
    line.recovered_ns.store(now);
  }
}

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

void JobMemory::clear() { memory_->clear(); }

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

std::uint32_t JobMemory::planned() const { return memory_->planned.load(); }

bool JobMemory::follows() const { return memory_->follows.load() != 0; }

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
                       "the memory of the elastic job has a failure of rank ", loss.rank, " after step ", loss.step,
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
                      " ranks continues with 1 to ", sizes.ranks, " of them at least, got ", sizes.least_ranks);
  memory_.ranks.store(static_cast<std::uint32_t>(sizes.ranks));
  memory_.least_ranks.store(static_cast<std::uint32_t>(sizes.least_ranks));
  memory_.spares.store(static_cast<std::uint32_t>(sizes.spares));
  for (int spare = sizes.ranks; spare < processes_; ++spare) {
    memory_.absent_word(0, spare).fetch_or(std::uint64_t{1} << spare % 64);
    memory_.of(spare).committed.store(JobMemory::kNoState);
  }
  for (int rank = 0; rank < processes_; ++rank) memory_.order(0, rank).store(static_cast<std::uint16_t>(rank));
  memory_.planned.store(1);
  members_ = memory_.members(0, processes_);
}

void JobArbiter::require_own() const {
  const std::uint32_t generation = memory_.generation(), planned = memory_.planned.load();
  const bool same = generation == generation_ && planned <= generation + 1 && memory_.follows.load() == 0 &&
                    memory_.processes() == processes_ && memory_.lost.load() == lost_ &&
                    memory_.members(generation, processes_) == members_;
  require<CommError>(same, "another process has written into the memory of the elastic job: it is in generation ",
                     generation, " with a plan for ", planned, " generations, expected generation ", generation_,
                     " with the ranks that the launcher has chosen");
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
  require_own();
  const std::uint32_t generation = memory_.generation();
  if (!memory_.is_member(generation, rank)) return true;  // its process had not joined yet
  line.finished.store(0);
  const std::uint32_t number = lost_;
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
  lost_ = number + 1;
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
  generation_ = next;
  members_ = memory_.members(next, processes_);
  if (joins >= 0) memory_.of(joins).applies.store(0);
  return true;
}

bool JobArbiter::any_step(std::int64_t steps) const {
  for (int rank = 0; rank < processes_; ++rank)
    if (memory_.committed(rank) > 0 || (steps > 1 && memory_.committed(rank) == 0)) return true;
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
  if (!std::exchange(recovers_, false)) return;
  memory_.of(rank_).resumed.store(memory_.of(rank_).arrived.load());
  memory_.note_recovery(rank_, members_, commits / Recovery::kCommitsPerStep);
  memory_.change();
}

int JobMember::place_of(int rank) const {
  return static_cast<int>(std::ranges::find(members_, rank) - members_.begin());
}

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
    members_ = memory_.members(generation, processes_);
    if (is_behind(generation)) continue;
    if (std::ranges::count(members_, rank_) > 0) return generation;
    if (memory_.of(rank_).applies.exchange(1) == 0) memory_.change();
    futex_wait(memory_.changes, changes, kMissedWake);
  }
}

std::optional<RecoveryPlan> JobMember::await_plan(std::uint32_t generation) {
  for (;;) {
    const std::uint32_t changes = memory_.changes.load();
    memory_.of(rank_).arrived.store(generation + 1);  // again, should another process have overwritten it
    memory_.publish_plan(generation, members_);
    const std::uint32_t planned = memory_.planned.load();
    const RecoveryPlan plan{memory_.plan(generation).commits.load(), memory_.plan(generation).source.load()};
    if (is_behind(generation)) return {};
    require<CommError>(planned <= generation + 1, "the memory of the elastic job has a plan for generation ",
                       planned - 1, " in generation ", generation);
    if (planned == generation + 1) {
      const bool is_member = std::ranges::count(members_, plan.source) > 0;
      require<CommError>(0 <= plan.commits && plan.commits <= kMostCommits && is_member,
                         "the memory of the elastic job has a plan to continue after commit ", plan.commits,
                         ", whose state rank ", plan.source, " has, no member of the generation");
      return plan;
    }
    futex_wait(memory_.changes, changes, kMissedWake);
  }
}

void JobMember::begin_calls() { memory_.of(rank_).calls.store(0); }

void JobMember::count_call() {
  std::atomic<std::uint64_t>& calls = memory_.of(rank_).calls;  // which no other process writes
  calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool JobMember::finish(std::uint32_t generation) {
  RankLine& own = memory_.of(rank_);
  own.finished.store(generation + 1);
  memory_.change();
  for (;;) {
    const std::uint32_t changes = memory_.changes.load();
    own.finished.store(generation + 1);  // again, should another process have overwritten it
    memory_.end_if_finished(generation, members_);
    if (memory_.ended()) return true;
    if (is_behind(generation)) return false;
    for (const int other : members_)
      require<UsageError>(memory_.of(other).calls.load() <= own.calls.load(), "its training ended after step ",
                          own.committed.load() / Recovery::kCommitsPerStep, ", but rank ", other,
                          " continues: all ranks must end at the same step, so keep what decides on the end, such as a "
                          "counter or the best score, with elastic::state()");
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
