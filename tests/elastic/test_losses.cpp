// The memory by which the launcher and the ranks of an elastic job agree.
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>

#include "ddp/launch/job_memory.h"
#include "ddp/launch/losses.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using duet_test::ContainsSubstring;
using Loss = JobLosses::Loss;

namespace {

/// A job of three ranks that have completed these steps.
struct Job {
  explicit Job(std::array<int, 3> steps, int most = 3) : losses(3, most), memory(losses.memory().path) {
    for (std::size_t rank = 0; rank < 3; ++rank) members[rank].commit(steps[rank]);
  }
  JobLosses losses;
  JobMemory memory;
  std::array<JobMember, 3> members = {JobMember(memory, 0), JobMember(memory, 1), JobMember(memory, 2)};
};

}  // namespace

TEST_CASE("a plan has the last step that a rank has completed, once all have arrived") {
  Job job({4, 5, 5});
  CHECK(job.losses.lose(2) == Loss::replaced);
  CHECK(job.losses.step() == 5);
  CHECK(job.members[0].is_behind(0));
  for (JobMember& member : job.members) CHECK(member.arrive() == 1);
  for (JobMember& member : job.members) {
    const std::optional<RecoveryPlan> plan = member.await_plan(1);
    REQUIRE(plan);
    CHECK(plan->step == 5);
    CHECK(plan->source == 1);
  }
}

TEST_CASE("a loss during a recovery makes the plan void") {
  Job job({5, 5, 5});
  CHECK(job.losses.lose(0) == Loss::replaced);
  for (JobMember& member : job.members) CHECK(member.arrive() == 1);
  REQUIRE(job.members[1].await_plan(1));
  CHECK(job.losses.lose(1) == Loss::replaced);
  CHECK_FALSE(job.members[2].await_plan(1));
  CHECK_FALSE(job.members[2].finish(1));
  for (JobMember& member : job.members) CHECK(member.arrive() == 2);
  CHECK(job.members[0].await_plan(2)->source == 2);
}

TEST_CASE("a job ends for all ranks or for none") {
  Job job({5, 5, 5});
  std::array<bool, 2> ended{};
  std::thread first([&] { ended[0] = job.members[0].finish(0); }), second([&] { ended[1] = job.members[1].finish(0); });
  CHECK(job.members[2].finish(0));
  first.join();
  second.join();
  CHECK(ended == std::array{true, true});
  CHECK(job.memory.ended());
  CHECK_FALSE(job.losses.trains(0));
  CHECK(job.losses.lose(1) == Loss::ends_job);
  CHECK_THAT(job.losses.reason(), ContainsSubstring("all ranks had ended their training"));
}

TEST_CASE("before the first step all ranks begin again") {
  CHECK(Job({0, 0, 0}).losses.lose(1) == Loss::begins);
  CHECK(Job({1, 0, 0}).losses.lose(0) == Loss::begins);  // who had the first is lost
}

TEST_CASE("a job ends when no rank has the state any more") {
  Job job({7, 7, 7});
  CHECK(job.losses.lose(1) == Loss::replaced);
  CHECK(job.losses.lose(0) == Loss::replaced);
  CHECK(job.losses.lose(2) == Loss::ends_job);
  CHECK_THAT(job.losses.reason(), ContainsSubstring("no rank is left that has the state"));
}

TEST_CASE("more losses than are allowed end a job, where there are not 100 steps between") {
  Job job({1, 1, 1}, 2);
  for (int i = 0; i < 2; ++i) CHECK(job.losses.lose(0) == Loss::replaced);
  job.members[1].commit(101);
  for (int i = 0; i < 2; ++i) CHECK(job.losses.lose(0) == Loss::replaced);
  CHECK(job.losses.lose(0) == Loss::ends_job);
  CHECK_THAT(job.losses.reason(), ContainsSubstring("more than 2 losses without 100 steps"));
}

TEST_CASE("memory of an elastic job that is none is refused") {
  CHECK_THROWS_AS(JobMemory("/proc/self/exe"), CommError);
  CHECK_THROWS_AS(JobMemory(""), CommError);
  Job job({1, 1, 1});
  CHECK_THROWS_AS(JobMember(job.memory, 3), CommError);
}
