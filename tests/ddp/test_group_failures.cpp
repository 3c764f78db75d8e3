// What a process group does when something is wrong.
#include <latch>
#include <vector>

#include "lib/error.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

using Floats = std::vector<float>;

std::span<float> span(Floats& values) { return values; }
}  // namespace

TEST_CASE("ranks that disagree about a collective are named on both sides") {
  const Over over = GENERATE(Over::memory, Over::gloo, Over::shm);
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const auto failures = try_ranks(over, 2, {.timeout = 5s}, [](ProcessGroup& group) {
    Floats values(group.rank() == 0 ? 20000 : 8);
    group.all_reduce(span(values)).wait();
  });
  for (const auto& failure : failures) {
    const std::string text = text_of(failure);
    INFO(text);
    CHECK(text.find("all_reduce #0") != std::string::npos);
  }
  // One side may learn of it only by the other's leaving.
  const std::string both = text_of(failures[0]) + text_of(failures[1]);
  CHECK_THAT(both, ContainsSubstring("20000 f32") && ContainsSubstring("of 8 f32"));
}

TEST_CASE("a message of another size than expected is an error") {
  const Over over = GENERATE(Over::memory, Over::gloo, Over::shm);
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const auto failures = try_ranks(over, 2, {.timeout = 5s, .leave_timeout = 10ms}, [](ProcessGroup& group) {
    Floats values(group.rank() == 0 ? 8 : 4);
    if (group.rank() == 0)
      group.send(span(values), 1).wait();
    else
      group.recv(span(values), 0).wait();
  });
  CHECK_THAT(text_of(failures[1]), ContainsSubstring("rank 0 sends 8 f32, expected 4 f32"));
}

TEST_CASE("a missing peer is named after the timeout, and the group is dead") {
  const Over over = GENERATE(Over::memory, Over::gloo, Over::shm);
  if (missing(over)) DUET_SKIP("Gloo is not built");
  std::latch failed(2);
  const auto failures = try_ranks(over, 3, {.timeout = 100ms, .leave_timeout = 500ms}, [&](ProcessGroup& group) {
    if (group.rank() == 1) return failed.wait();  // there, but without a call
    Floats values(100);
    try {
      group.all_reduce(span(values)).wait();
    } catch (const CommError&) {
      failed.count_down();
      group.barrier().wait();
    }
  });
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}})
    CHECK_THAT(text_of(failures[rank]), ContainsSubstring("of no more use since all_reduce #0 failed on rank"));
  const std::string both = text_of(failures[0]) + text_of(failures[2]);
  CHECK_THAT(both, ContainsSubstring(over == Over::shm ? "rank 1 did not come in time" : "rank 1 sent nothing"));
}

TEST_CASE("an exception in one rank ends the others at once") {
  const Over over = GENERATE(Over::memory, Over::gloo, Over::shm);
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const auto begin = Clock::now();
  const auto failures = try_ranks(over, 3, {.timeout = 60s, .leave_timeout = 30s}, [](ProcessGroup& group) {
    if (group.rank() == 1) throw DataError("the label is 10");
    Floats values(100);
    group.all_reduce(span(values)).wait();
  });
  CHECK(text_of(failures[1]) == "the label is 10");
  CHECK_THAT(text_of(failures[0]), ContainsSubstring("all_reduce #0 failed on rank 0"));
  CHECK_THAT(text_of(failures[2]), ContainsSubstring("all_reduce #0 failed on rank 2"));
  CHECK(Clock::now() - begin < 10s);
}

TEST_CASE("waiting has a limit of its own") {
  run_ranks(Over::memory, 2, [](ProcessGroup& group) {
    Floats values(10);
    if (group.rank() == 0) {
      Work work = group.all_reduce(span(values));
      try {
        work.wait(20ms);
        throw Error("should have timed out");
      } catch (const CommError&) {
        group.send(span(values), 1).wait();
        work.wait();  // it went on all the same
      }
    } else {
      Floats go(10);
      group.recv(span(go), 0).wait();
      group.all_reduce(span(values)).wait();
    }
  });
}

TEST_CASE("wrong arguments are refused at once") {
  run_ranks(Over::memory, 2, [](ProcessGroup& group) {
    Floats two(2), three(3);
    std::int64_t number = 0;
    const auto refused = [](auto&& call) {
      try {
        call();
      } catch (const UsageError&) {
        return;
      }
      throw Error("was not refused");
    };
    refused([&] { group.broadcast(span(two), 2).wait(); });
    refused([&] { group.all_gather(span(two), span(three)).wait(); });
    refused([&] { group.send(span(two), group.rank()).wait(); });
    refused([&] { group.all_reduce({&number, 1, DType::i64}, ReduceOp::avg).wait(); });
    refused([&] { group.all_reduce({nullptr, 1, DType::f32}).wait(); });
    refused([&] { group.all_reduce({&number, -1, DType::i64}).wait(); });
  });
  CHECK_THROWS_WITH(TransportGroup(std::move(make_memory_transports(1)[0])).broadcast(Buffer(), 1).wait(),
                    ContainsSubstring("rank 1 is not one of the group's 1"));
}
