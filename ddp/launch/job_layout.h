// How the memory of an elastic job lies: see job_memory.h.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/launch/job_memory.h"
#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {

inline constexpr std::int64_t kMostCommits = std::int64_t{1} << 62;  // the next one has a number, too

struct alignas(64) RankLine {
  std::atomic<std::int64_t> committed;
  std::atomic<std::uint32_t> arrived, resumed, finished;  // in which generation, plus 1; 0: none
  std::atomic<std::uint32_t> joined, applies;
  std::atomic<std::uint64_t> calls;  // collectives that the rank has called in its generation; on this host only

  void clear(std::int64_t commits = 0) {
    committed.store(commits);
    calls.store(0);
    for (std::atomic<std::uint32_t>* const number : {&arrived, &resumed, &finished, &joined, &applies})
      number->store(0);
  }
};

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
  std::atomic<std::uint32_t> follows;  // another host's memory of the job decides what all ranks decide here else
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
  /// Makes it as it was at first, but for `changes`, which other threads wait for.
  void clear();
  int processes() const { return static_cast<int>(ranks.load() + spares.load()); }
  /// The members of a generation, in the order of their numbers.
  std::vector<int> members(std::uint32_t generation, int processes);
  /// Once all members have arrived.
  void publish_plan(std::uint32_t generation, const std::vector<int>& members);
  /// Once all members have ended their training.
  void end_if_finished(std::uint32_t generation, const std::vector<int>& members);
  /// A rank goes on in the generation for which it has arrived: losses count as recovered where their ranks are not
  /// members, or where it is such a rank's new process.
  void note_recovery(int rank, const std::vector<int>& members, std::int64_t step);
};

}  // namespace duet::ddp
