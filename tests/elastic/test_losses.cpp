// The memory by which the launcher and the ranks of an elastic job agree.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/job_memory.h"
#include "ddp/launch/losses.h"
#include "ddp/store/store.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using duet_test::ContainsSubstring;
using Loss = JobLosses::Loss;

namespace {

std::int64_t after_step(std::int64_t step) { return step * duet::Recovery::kCommitsPerStep; }

/// A job of three ranks that have completed these steps.
struct Job {
  explicit Job(std::array<int, 3> steps, int most = 3, int least = 3, int spares = 0)
      : losses({3, least, spares}, most), memory(losses.memory().path) {
    for (std::size_t rank = 0; rank < 3; ++rank) members[rank].commit(after_step(steps[rank]));
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
    CHECK(plan->commits == after_step(5));
    CHECK(plan->source == 1);
  }
}

TEST_CASE("ranks go on without a lost one, which joins them again when its new process is ready") {
  Job job({4, 5, 5}, 3, 2);
  CHECK(job.losses.lose(1) == Loss::left_out);
  CHECK(job.losses.recovers());
  CHECK(job.members[0].arrive() == 1);
  CHECK(job.members[2].arrive() == 1);
  CHECK(job.members[2].members() == std::vector<int>{0, 2});
  CHECK(job.members[2].place_of(2) == 1);
  const std::optional<RecoveryPlan> plan = job.members[0].await_plan(1);
  REQUIRE(plan);
  CHECK(plan->commits == after_step(5));
  CHECK(plan->source == 2);
  CHECK(job.losses.recoveries().empty());
  job.members[0].commit(after_step(5));
  const std::vector<std::string> left_out = job.losses.recoveries();
  REQUIRE(left_out.size() == 1);
  CHECK_THAT(left_out[0],
             ContainsSubstring("rank 1 is left out after ") && ContainsSubstring("continues after step 5"));

  job.losses.admit_ready();
  CHECK_FALSE(job.members[0].is_behind(1));  // the new process does not ask yet
  CHECK(job.losses.lose(1) == Loss::outside);
  CHECK_FALSE(job.members[0].is_behind(1));
  std::uint32_t arrived = 0;
  std::thread joins([&] { arrived = job.members[1].arrive(); });
  while (!job.memory.applies(1)) std::this_thread::yield();
  job.losses.admit_ready();
  joins.join();
  CHECK(arrived == 2);
  for (const std::size_t rank : {0U, 2U}) CHECK(job.members[rank].arrive() == 2);
  CHECK(job.members[1].members() == std::vector<int>{0, 1, 2});
  REQUIRE(job.members[1].await_plan(2));
  CHECK(job.losses.recoveries().empty());
  job.members[1].commit(after_step(5));
  CHECK(job.losses.recoveries() == std::vector<std::string>{"rank 1 has joined the others again after step 5"});
  CHECK_FALSE(job.losses.recovers());
}

TEST_CASE("where fewer ranks than the least are left, they wait for the lost one") {
  Job job({5, 5, 5}, 3, 2);
  CHECK(job.losses.lose(0) == Loss::left_out);
  CHECK(job.losses.lose(1) == Loss::replaced);
  CHECK(job.members[1].arrive() == 2);
  CHECK(job.members[1].members() == std::vector<int>{1, 2});
}

TEST_CASE("a spare process that is ready takes the part of a lost rank, whose new process is spare then") {
  Job job({5, 5, 5}, 3, 3, 1);
  CHECK(job.memory.processes() == 4);
  CHECK(job.losses.lose(0) == Loss::replaced);  // it is not ready
  CHECK(job.members[0].arrive() == 1);
  JobMember spare(job.memory, 3);
  std::uint32_t arrived = 0;
  std::thread waits([&] { arrived = spare.arrive(); });
  while (!job.memory.applies(3)) std::this_thread::yield();
  job.losses.admit_ready();
  CHECK_FALSE(job.members[0].is_behind(1));  // no rank is missing
  CHECK(job.losses.lose(1) == Loss::spared);
  waits.join();
  CHECK(arrived == 2);
  CHECK(spare.members() == std::vector<int>{0, 3, 2});  // it has the number of the lost rank
  CHECK(spare.place_of(3) == 1);
  CHECK_FALSE(job.memory.is_member(1));
  for (const std::size_t rank : {0U, 2U}) CHECK(job.members[rank].arrive() == 2);
  REQUIRE(spare.await_plan(2));
  CHECK(job.losses.recoveries().empty());
  spare.commit(after_step(5));
  const std::vector<std::string> texts = job.losses.recoveries();
  REQUIRE(texts.size() == 1);
  CHECK_THAT(texts[0], ContainsSubstring("rank 1 is replaced after "));
  CHECK(job.losses.lose(1) == Loss::outside);
  CHECK_FALSE(spare.is_behind(2));
}

TEST_CASE("a job ends without the ranks that it has left out") {
  Job job({5, 5, 5}, 3, 1);
  CHECK(job.losses.lose(0) == Loss::left_out);
  CHECK_FALSE(job.losses.is_superfluous(0));
  std::thread other([&] {
    job.members[1].arrive();
    job.members[1].finish(1);
  });
  job.members[2].arrive();
  CHECK(job.members[2].finish(1));
  other.join();
  CHECK(job.losses.is_superfluous(0));
  CHECK_FALSE(job.losses.is_superfluous(1));
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

TEST_CASE("a rank cannot end its training before a collective that another rank calls") {
  Job job({5, 5, 5});
  for (JobMember& member : job.members) member.count_call();
  job.members[2].count_call();
  CHECK_THROWS_WITH(job.members[0].finish(0),
                    ContainsSubstring("its training ended after step 5, but rank 2 continues"));
}

TEST_CASE("a job that has ended without a step does not begin again") {
  Job job({0, 0, 0});
  std::thread first([&] { job.members[0].finish(0); }), second([&] { job.members[1].finish(0); });
  job.members[2].finish(0);
  first.join();
  second.join();
  CHECK(job.losses.lose(1) == Loss::ends_job);
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
  job.members[1].commit(after_step(101));
  for (int i = 0; i < 2; ++i) CHECK(job.losses.lose(0) == Loss::replaced);
  CHECK(job.losses.lose(0) == Loss::ends_job);
  CHECK_THAT(job.losses.reason(), ContainsSubstring("more than 2 failures without 100 steps"));
}

TEST_CASE("a loss is reported with the time until the new process has received the state") {
  Job job({4, 5, 5});
  CHECK(job.memory.losses().empty());
  const std::int64_t before = monotonic_ns();
  CHECK(job.losses.lose(2) == Loss::replaced);
  std::vector<JobLoss> losses = job.memory.losses();
  REQUIRE(losses.size() == 1);
  CHECK(losses[0].rank == 2);
  CHECK(losses[0].step == 5);
  CHECK(losses[0].lost_ns >= before);
  CHECK(losses[0].recovered_ns == 0);
  for (JobMember& member : job.members) member.arrive();
  job.members[0].commit(after_step(6));  // a survivor's
  CHECK(job.losses.recoveries().empty());
  CHECK(job.losses.recovers());
  job.members[2].commit(after_step(6));
  losses = job.memory.losses();
  CHECK(losses[0].step == 6);  // completed by another one after the loss
  CHECK(losses[0].recovered_ns >= losses[0].lost_ns);
  const std::vector<std::string> texts = job.losses.recoveries();
  REQUIRE(texts.size() == 1);
  CHECK_THAT(texts[0], ContainsSubstring("rank 2 is replaced after ") &&
                           ContainsSubstring(" ms; the job continues after step 6"));
  CHECK(job.losses.recoveries().empty());
  CHECK_FALSE(job.losses.recovers());
  const std::int64_t recovered = losses[0].recovered_ns;
  job.members[2].commit(after_step(7));
  CHECK(job.losses.lose(0) == Loss::replaced);
  job.members[2].arrive();
  job.members[2].commit(after_step(8));
  CHECK(job.memory.losses()[0].recovered_ns == recovered);
  CHECK(job.memory.losses()[0].step == 6);
}

TEST_CASE("a process that replaces a lost replacement is that of both losses") {
  Job job({5, 5, 5});
  CHECK(job.losses.lose(1) == Loss::replaced);
  job.members[1].arrive();
  CHECK(job.losses.lose(1) == Loss::replaced);
  CHECK(job.losses.lose(2) == Loss::replaced);
  JobMember fresh(job.memory, 1);
  fresh.arrive();
  fresh.commit(after_step(5));
  const std::vector<JobLoss> losses = job.memory.losses();
  REQUIRE(losses.size() == 3);
  CHECK(losses[0].recovered_ns != 0);
  CHECK(losses[1].recovered_ns == losses[0].recovered_ns);
  CHECK(losses[2].recovered_ns == 0);
}

TEST_CASE("the newest losses are kept") {
  Job job({1, 1, 1}, 200);
  for (int i = 0; i < 200; ++i) {
    job.members[0].commit(after_step(i + 1));
    REQUIRE(job.losses.lose(1 + i % 2) == Loss::replaced);
  }
  const std::vector<JobLoss> losses = job.memory.losses();
  REQUIRE(losses.size() == JobMemory::kLosses - 1);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const int number = static_cast<int>(200 - losses.size() + i);
    REQUIRE(losses[i].step == number + 1);
    REQUIRE(losses[i].rank == 1 + number % 2);
  }
}

TEST_CASE("ranks that do not come together after a loss are named") {
  constexpr Milliseconds kAtOnce{-1};
  Job job({5, 5, 5});
  CHECK_FALSE(job.losses.overdue(kAtOnce));
  CHECK(job.losses.lose(1) == Loss::replaced);
  CHECK_FALSE(job.losses.overdue(std::chrono::hours(1)));
  job.members[0].arrive();
  std::optional<JobLosses::Absence> absence = job.losses.overdue(kAtOnce);
  REQUIRE(absence);
  CHECK(absence->rank == 1);
  CHECK(absence->message == "rank 1's new process, rank 2 have not joined within -0.001 s after the last failure");
  job.members[2].arrive();
  absence = job.losses.overdue(kAtOnce);
  REQUIRE(absence);
  CHECK_THAT(absence->message, ContainsSubstring("rank 1's new process has not joined within"));
  job.members[1].arrive();
  CHECK_FALSE(job.losses.overdue(kAtOnce));
}

TEST_CASE("a step that kills its rank twice in the same way ends the job") {
  const std::string killed = "rank 1 was killed by signal 11 (SIGSEGV)";
  const auto join = [](Job& job) {
    for (JobMember& member : job.members) {
      member.arrive();
      member.commit(after_step(7));
    }
  };
  Job job({7, 7, 7}, 50);
  const auto lose = [&](const std::string& how, Phase phase) {
    const Loss loss = job.losses.lose(1, how, phase);
    join(job);
    return loss;
  };
  SECTION("the same") {
    CHECK(lose(killed, Phase::backward) == Loss::replaced);
    CHECK(job.losses.lose(0, "rank 0 ended with exit code 1", Phase::forward) == Loss::replaced);
    join(job);
    CHECK(lose(killed, Phase::forward) == Loss::ends_job);
    CHECK_THAT(job.losses.reason(), ContainsSubstring("step 8 has killed rank 1 twice"));
  }
  SECTION("in another way") {
    CHECK(lose(killed, Phase::forward) == Loss::replaced);
    CHECK(lose("rank 1 ended with exit code 3", Phase::forward) == Loss::replaced);
  }
  SECTION("outside of its computation") {
    CHECK(lose(killed, Phase::forward) == Loss::replaced);
    CHECK(lose(killed, Phase::ready) == Loss::replaced);
    CHECK(lose(killed, Phase::after) == Loss::replaced);
  }
  SECTION("in a recovery") {
    CHECK(lose(killed, Phase::backward) == Loss::replaced);
    CHECK(job.losses.lose(0) == Loss::replaced);
    job.members[1].arrive();  // within backward
    CHECK(lose(killed, Phase::backward) == Loss::replaced);
  }
  SECTION("in another step") {
    CHECK(lose(killed, Phase::forward) == Loss::replaced);
    for (JobMember& member : job.members) member.commit(after_step(8));
    CHECK(lose(killed, Phase::forward) == Loss::replaced);
  }
}

TEST_CASE("the first step may kill its rank twice, too") {
  Job job({0, 0, 0});
  CHECK(job.losses.lose(2, "killed", Phase::forward) == Loss::begins);
  job.losses.begin();
  CHECK(job.losses.lose(2, "killed", Phase::forward) == Loss::ends_job);
  CHECK_THAT(job.losses.reason(), ContainsSubstring("step 1 has killed rank 2 twice"));
}

TEST_CASE("memory of an elastic job that is none is refused") {
  CHECK_THROWS_AS(JobMemory("/proc/self/exe"), CommError);
  CHECK_THROWS_AS(JobMemory(""), CommError);
  Job job({1, 1, 1});
  CHECK_THROWS_AS(JobMember(job.memory, 3), CommError);
}

TEST_CASE("a launcher notices when another process overwrites its decisions") {
  Job job({5, 5, 5});
  job.losses.lose(1);
  CHECK_NOTHROW(job.losses.admit_ready());
  const std::string garbage(GENERATE(as<std::size_t>(), 64, JobMemory::bytes()), GENERATE('\1', '\x5a', '\xff'));
  REQUIRE(::pwrite(job.losses.memory().memory.get(), garbage.data(), garbage.size(), 0) == std::ssize(garbage));
  CHECK_THROWS_WITH(job.losses.admit_ready(), ContainsSubstring("another process has written into the memory"));
}

TEST_CASE("numbers that cannot be are refused") {
  Job job({5, 5, 5});
  CHECK(job.losses.lose(1) == Loss::replaced);
  for (JobMember& member : job.members) {
    member.arrive();
    member.commit(after_step(-1));
    member.commit(JobMemory::kNoState);
  }
  CHECK_THROWS_WITH(job.members[0].await_plan(1),
                    ContainsSubstring("a plan to continue after commit -1, whose state rank 0"));
  CHECK_THROWS_WITH(job.memory.losses(), ContainsSubstring("a failure of rank 1 after step -1"));
  job.members[2].commit(-5);
  CHECK_THROWS_WITH(job.memory.committed(2), ContainsSubstring("-5 as the commits of rank 2"));
  CHECK_THROWS_AS(job.losses.lose(0), CommError);
  job.members[2].commit(INT64_MAX);
  CHECK_THROWS_AS(job.memory.committed(2), CommError);
  CHECK_THROWS_AS(JobMember(job.memory, -1), CommError);
}
