// The memory of an elastic job in which a rank writes anything: its launcher and the other ranks neither crash nor wait
// for what cannot come.
#include "ddp/launch/job_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/losses.h"
#include "ddp/store/store.h"
#include "lib/monotonic.h"
#include "tests/fuzz/input.h"

using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

constexpr int kRanks = 3;

/// A job, its ranks, and what is written over its memory.
class Run {
 public:
  explicit Run(Input& input)
      : input_(input), losses_({kRanks, input.flag() ? 1 : kRanks, 0}, 1000), memory_(losses_.memory().path) {
    void* const memory =
        ::mmap(nullptr, JobMemory::bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, losses_.memory().memory.get(), 0);
    expect(memory != MAP_FAILED, "a mapping");
    bytes_ = static_cast<char*>(memory);
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      members_[rank].emplace(memory_, static_cast<int>(rank));
      members_[rank]->commit(1);
    }
  }
  ~Run() { ::munmap(bytes_, JobMemory::bytes()); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// False: the job has ended.
  bool step() {
    const std::size_t rank = input_.below(members_.size());
    switch (input_.take<std::uint8_t>() % 9) {
      case 0: damage(); return true;
      case 1: return lose(rank);
      case 2: members_[rank]->commit(input_.take<std::int64_t>()); return true;
      case 3:
        if (memory_.is_member(static_cast<int>(rank))) members_[rank]->arrive();  // else it waits
        return true;
      case 4: await_plan(*members_[rank]); return true;
      case 5: finish(*members_[rank]); return true;
      case 6: members_[rank]->await_loss(input_.take<std::uint32_t>(), duet::Clock::duration(0)); return true;
      case 7: exchange(static_cast<int>(rank)); return true;
      default: look(static_cast<int>(rank)); return true;
    }
  }

 private:
  void damage() {
    const std::size_t at = input_.flag() ? input_.below(64) : input_.below(JobMemory::bytes());
    const std::string text = input_.text();
    std::memcpy(bytes_ + at, text.data(), std::min(text.size(), JobMemory::bytes() - at));
  }

  bool lose(std::size_t rank) {
    bool goes_on = false;
    const Phase phase = input_.pick({Phase::none, Phase::forward, Phase::after});
    accepted([&] {
      const std::string how = input_.flag() ? "killed" : "ended";
      const JobLosses::Loss loss = losses_.lose(static_cast<int>(rank), how, phase);
      if (loss == JobLosses::Loss::begins || loss == JobLosses::Loss::ends_job) return;
      members_[rank].emplace(memory_, static_cast<int>(rank));
      goes_on = memory_.ranks() == kRanks;  // a process that has begun with more waits for them
    });
    return goes_on;
  }

  /// Whether all ranks that this one waits for have come together after a loss.
  bool is_complete(const JobMember& member) {
    std::vector<int> members;
    for (int rank = 0; rank < kRanks; ++rank)
      if (memory_.is_member(rank)) members.push_back(rank);
    bool complete = false;
    accepted([&] { complete = !memory_.losses().empty() && losses_.arbiter().missing().empty(); });
    return complete && members == member.members();
  }

  void await_plan(JobMember& member) {
    const std::uint32_t generation = input_.flag() ? member.generation() : input_.take<std::uint32_t>() / 2;
    if (!member.is_behind(generation) && (memory_.follows() || !is_complete(member))) return;
    accepted([&] {
      const std::optional<RecoveryPlan> plan = member.await_plan(generation);
      const bool holds = !plan || (plan->commits >= 0 && plan->source >= 0 && plan->source < kRanks);
      expect(holds, "a step and one of the ranks");
    });
  }

  void finish(JobMember& member) {
    const std::uint32_t generation = input_.take<std::uint32_t>() / 2;
    if (memory_.ended() || member.is_behind(generation)) accepted([&] { member.finish(generation); });
  }

  /// With a host that follows this memory: what either says is damaged.
  void exchange(int rank) {
    JobLosses other({kRanks, kRanks, 0}, 1000, false);
    JobFollower follower(other.job());
    accepted([&] {
      std::vector<std::byte> decisions = losses_.arbiter().decisions();
      const std::string text = input_.text();
      const std::size_t at = input_.below(decisions.size());
      std::memcpy(decisions.data() + at, text.data(), std::min(text.size(), decisions.size() - at));
      follower.take(decisions, {rank});
      expect(other.job().ranks() == kRanks, "ranks");
    });
    JobLine line = follower.line(rank, 0);
    line.committed = input_.take<std::int64_t>();
    for (std::uint32_t* const number : {&line.resumed, &line.finished}) *number = input_.take<std::uint32_t>();
    accepted([&] { losses_.arbiter().take(line); });
  }

  void look(int rank) {
    accepted([&] { expect(memory_.ranks() > 0, "ranks"); });
    accepted([&] { expect(memory_.committed(rank) >= JobMemory::kNoState, "a step"); });
    accepted([&] { expect(memory_.losses().size() < JobMemory::kLosses, "no more losses than are kept"); });
    accepted([&] { losses_.recoveries(); });
    accepted([&] { losses_.admit_ready(); });
    accepted([&] { losses_.is_superfluous(rank); });
    accepted([&] { losses_.overdue(std::chrono::hours(1)); });
    memory_.recovers(rank);
    losses_.trains(rank);
  }

  Input& input_;
  JobLosses losses_;
  JobMemory memory_;
  char* bytes_ = nullptr;
  std::array<std::optional<JobMember>, kRanks> members_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Run run(input);
  for (int i = 0; i < 40 && !input.empty() && run.step(); ++i) continue;
  return 0;
}
