#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/launch/job_layout.h"
#include "ddp/launch/job_memory.h"
#include "lib/base/recovery.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {

namespace {

/// The newest generation of the arbiter's memory.
struct Decisions {
  std::uint32_t state = 0, planned = 0, least_ranks = 0;
  RecoveryPlan plan{};
  std::vector<std::uint8_t> is_member{};  // by process, as the next ones
  std::vector<std::uint16_t> order{};
  std::vector<std::int64_t> committed{};

  void stream(StateStream& stream) {
    stream.value(state);
    stream.value(planned);
    stream.value(least_ranks);
    stream.value(plan.commits);
    stream.value(plan.source);
    stream.sequence(is_member);
    stream.sequence(order);
    stream.sequence(committed);
  }
};

}  // namespace

std::uint32_t JobMemory::changes() const { return memory_->changes.load(); }

void JobMemory::await_change(std::uint32_t changes, Clock::duration limit) const {
  futex_wait(memory_->changes, changes, limit);
}

void JobArbiter::take(const JobLine& line) {
  RankLine& own = memory_.of(line.rank);
  require<CommError>(JobMemory::kNoState <= line.committed && line.committed <= kMostCommits, "the host of rank ",
                     line.rank, " says that it has completed ", line.committed);
  const bool resumes = own.resumed.load() != line.resumed;
  const bool changes = resumes || own.arrived.load() != line.arrived || own.finished.load() != line.finished ||
                       own.applies.load() != line.applies || own.joined.load() != line.joined;
  own.committed.store(line.committed);
  own.joined.store(line.joined);
  own.applies.store(line.applies);
  own.arrived.store(line.arrived);
  own.resumed.store(line.resumed);
  own.finished.store(line.finished);
  if (!changes) return;
  memory_.change();
  const std::uint32_t generation = memory_.generation();
  const std::vector<int> members = memory_.members(generation, processes_);
  if (resumes && line.resumed == generation + 1)
    memory_.note_recovery(line.rank, members, line.committed / Recovery::kCommitsPerStep);
  memory_.publish_plan(generation, members);
  memory_.end_if_finished(generation, members);
}

std::vector<std::byte> JobArbiter::decisions() const {
  Decisions now;
  now.state = memory_.state.load();
  now.planned = memory_.planned.load();
  now.least_ranks = memory_.least_ranks.load();
  RecoveryPlan& plan = now.plan;
  const JobMemory::Layout::Plan& planned = memory_.plan(now.planned - 1);
  plan = {planned.commits.load(), planned.source.load()};
  for (int rank = 0; rank < processes_; ++rank) {
    now.is_member.push_back(memory_.is_member(now.state / 2, rank));
    now.order.push_back(memory_.order(now.state / 2, rank).load());
    now.committed.push_back(memory_.of(rank).committed.load());
  }
  StateStream stream{std::vector<std::byte>()};
  now.stream(stream);
  return stream.written();
}

JobFollower::JobFollower(JobMemory& memory) : memory_(*memory.memory_) { memory_.follows.store(1); }

void JobFollower::clear() {
  const std::uint32_t ranks = memory_.ranks.load(), least = memory_.least_ranks.load(), spares = memory_.spares.load();
  memory_.clear();
  memory_.ranks.store(ranks);
  memory_.least_ranks.store(least);
  memory_.spares.store(spares);
  memory_.follows.store(1);
}

void JobFollower::take(const std::vector<std::byte>& decisions, const std::vector<int>& own) {
  Decisions now;
  StateStream stream{std::span<const std::byte>(decisions)};
  now.stream(stream);
  const auto processes = static_cast<std::size_t>(memory_.processes());
  const std::uint32_t before = memory_.state.load(), planned = memory_.planned.load();
  require<CommError>(now.is_member.size() == processes && now.order.size() == processes &&
                         now.committed.size() == processes && stream.at_end() && before <= now.state,
                     "the arbiter of the elastic job decides on ", now.is_member.size(), " processes in generation ",
                     now.state / 2, ", but there are ", processes, " and generation ", before / 2);
  memory_.least_ranks.store(now.least_ranks);  // the arbiter's, whatever this host's launcher was told
  const std::uint32_t generation = now.state / 2;
  for (std::size_t rank = 0; rank < processes; ++rank)
    if (std::ranges::find(own, static_cast<int>(rank)) == own.end())
      memory_.lines[rank].committed.store(now.committed[rank]);
  if (before / 2 != generation) {
    memory_.state.store(2 * (generation - 1));  // ranks read members of the newest generation only: not those now
    for (std::size_t rank = 0; rank < processes; ++rank) {
      const std::uint64_t bit = std::uint64_t{1} << rank % 64;
      std::atomic<std::uint64_t>& absent = memory_.absent_word(generation, static_cast<int>(rank));
      now.is_member[rank] != 0 ? absent.fetch_and(~bit) : absent.fetch_or(bit);
      memory_.order(generation, static_cast<int>(rank)).store(now.order[rank]);
    }
  }
  if (now.planned > 0) {
    memory_.plan(now.planned - 1).commits.store(now.plan.commits);
    memory_.plan(now.planned - 1).source.store(now.plan.source);
  }
  memory_.state.store(now.state);
  memory_.planned.store(now.planned);
  if (before != now.state || planned != now.planned) memory_.change();
}

void JobFollower::begin(int rank, bool is_first) { memory_.of(rank).clear(is_first ? 0 : JobMemory::kNoState); }

JobLine JobFollower::line(int rank, int replacement) const {
  const RankLine& line = memory_.of(rank);
  JobLine copy{.rank = rank, .replacement = replacement};
  copy.finished = line.finished.load();
  copy.resumed = line.resumed.load();
  copy.arrived = line.arrived.load();
  copy.joined = line.joined.load();
  copy.applies = line.applies.load();
  copy.committed = line.committed.load();  // last: who has arrived has committed before
  return copy;
}

}  // namespace duet::ddp
