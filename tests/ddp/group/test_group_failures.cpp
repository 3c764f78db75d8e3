// Failures of a process group.
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/shm/control_block.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

TEST_CASE("ranks that disagree about a collective are named on every rank") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  struct Case {
    Call odd, usual;  // what the last rank calls, and what the others do
    const char *odd_text, *usual_text;
  };
  std::vector<double> memory(60000);
  const auto of = [&](std::int64_t count, DType dtype = DType::f32) { return Buffer(memory.data(), count, dtype); };
  const Call sum{.op = Collective::all_reduce, .in = of(20000)};
  const std::vector<Case> cases = {
      {{.op = Collective::all_reduce, .in = of(8)}, sum, "all_reduce of 8 f32 (sum)", "all_reduce of 20000 f32 (sum)"},
      {{.op = Collective::all_reduce, .in = of(20000, DType::i32)}, sum, "of 20000 i32 (sum)", "of 20000 f32 (sum)"},
      {{.op = Collective::all_reduce, .in = of(20000), .reduce = ReduceOp::max}, sum, "f32 (max)", "f32 (sum)"},
      {{.op = Collective::barrier}, sum, "calls barrier", "call all_reduce of 20000 f32"},
      {{.op = Collective::broadcast, .in = of(20000)}, sum, "calls broadcast of 20000 f32", "call all_reduce"},
      {{.op = Collective::broadcast, .in = of(8), .root = 1},
       {.op = Collective::broadcast, .in = of(8)},
       "from rank 1",
       "from rank 0"},
      {{.op = Collective::reduce, .in = of(8), .root = 1},
       {.op = Collective::reduce, .in = of(8)},
       "to rank 1",
       "to rank 0"},
      {{.op = Collective::all_to_all, .in = of(12)},
       {.op = Collective::all_gather, .in = of(4)},
       "calls all_to_all",
       "call all_gather of 4 f32"},
      {{.op = Collective::reduce_scatter, .out = of(5)},
       {.op = Collective::reduce_scatter, .out = of(4)},
       "calls reduce_scatter of 5 f32 (sum)",
       "call reduce_scatter of 4 f32 (sum)"},
  };
  for (const Case& one : cases) {
    const auto failures = try_ranks(over, 3, {.timeout = 60s, .leave_timeout = 10ms}, [&](ProcessGroup& group) {
      std::vector<double> own(60000), result(60000);
      const auto mine = [](Buffer buffer, std::vector<double>& place) {
        buffer.data = place.data();
        return buffer;
      };
      group.barrier().wait();
      const Call& call = group.rank() == 2 ? one.odd : one.usual;
      const Buffer in = mine(call.in, own), out = mine(call.out, result);
      const Buffer many(result.data(), in.count * 3, in.dtype), parts(own.data(), out.count * 3, out.dtype);
      switch (call.op) {
        case Collective::all_reduce: return group.all_reduce(in, call.reduce).wait();
        case Collective::reduce: return group.reduce(in, call.root).wait();
        case Collective::broadcast: return group.broadcast(in, call.root).wait();
        case Collective::all_gather: return group.all_gather(in, many).wait();
        case Collective::reduce_scatter: return group.reduce_scatter(parts, out).wait();
        case Collective::all_to_all: return group.all_to_all(in, mine(in, result)).wait();
        default: return group.barrier().wait();
      }
    });
    for (const auto& failure : failures)
      CHECK_THAT(text_of(failure), ContainsSubstring(" #1 failed on rank") &&
                                       ContainsSubstring("the ranks disagree: ranks 0, 1 call") &&
                                       ContainsSubstring("; rank 2 calls") && ContainsSubstring(one.odd_text) &&
                                       ContainsSubstring(one.usual_text));
  }
}

TEST_CASE("a message of another size than expected is an error") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const auto failures = try_ranks(over, 2, {.timeout = 60s, .leave_timeout = 10ms}, [](ProcessGroup& group) {
    Floats values(group.rank() == 0 ? 8 : 4);
    if (group.rank() == 0)
      group.send(span(values), 1).wait();
    else
      group.recv(span(values), 0).wait();
  });
  CHECK_THAT(text_of(failures[1]), ContainsSubstring("rank 0 sends 8 f32, expected 4 f32"));
}

TEST_CASE("a missing peer is named after the timeout, and the group has failed") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  std::latch called(1), failed(1);
  // Rank 2 calls first and has more time, so that rank 0 waits for rank 1 only.
  const auto options_of = [](int rank) {
    return GroupOptions{.timeout = rank == 0 ? 100ms : 60'000ms, .leave_timeout = 500ms};
  };
  const auto failures = try_unlike_ranks(over, 3, options_of, [&](ProcessGroup& group) {
    if (group.rank() == 1) return failed.wait();  // there, but without a call
    Floats values(100);
    if (group.rank() == 0) called.wait();
    try {
      Work work = group.all_reduce(span(values));
      if (group.rank() == 2) called.count_down();
      work.wait();
    } catch (const CommError&) {
      if (group.rank() == 0) failed.count_down();
      group.barrier().wait();
    }
  });
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}})
    CHECK_THAT(text_of(failures[rank]),
               ContainsSubstring("the process group has failed: all_reduce #0 failed on rank"));
  CHECK_THAT(text_of(failures[0]),
             ContainsSubstring(over == Over::shm ? "rank 1 did not come in time" : "rank 1 sent nothing"));
}

TEST_CASE("an exception in one rank ends the others at once") {
  const Over over = each_backend();
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
  CHECK(Clock::now() - begin < 20s);  // no rank waited for the timeout, or to leave
}

TEST_CASE("a rank that came and closed between two polls has come") {
  MemoryStore store;
  ControlBlock control_block(ControlBlock::make_segment(store, "control_block", 0, 1, 60s), 0, 1);
  bool came = false;
  const auto goes = [&] {
    came = true;
    throw CommError("rank 1 has closed the connection");
  };
  CHECK_NOTHROW(control_block.await([&] { return came; }, goes, Clock::now() + 60s, false));
}

TEST_CASE("work that is left over when its group is closed says so") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  // Over shared memory the destructor waits for messages that are under way.
  const GroupOptions options{.timeout = 60s, .leave_timeout = over == Over::shm ? 10ms : 60'000ms};
  Work left, ended;
  Floats never(1), first(1), second(1);
  const auto failures = try_ranks(over, 2, options, [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      left = group.recv(span(never), 1);
      ended = group.recv(span(first), 1, 1);
      group.recv(span(second), 1, 2).wait();  // comes after the first
    } else {
      Floats one(1, 1.0f);
      for (const int tag : {1, 2}) group.send(span(one), 0, tag).wait();
    }
    group.barrier().wait();
  });
  for (const auto& failure : failures) CHECK(text_of(failure).empty());
  if (over == Over::shm || over == Over::tcp) {
    CHECK_NOTHROW(ended.wait());
    CHECK(first[0] == 1.0f);
  }
  for (int i = 0; i < 2; ++i) CHECK_THROWS_WITH(left.wait(), "the process group is closed");
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
        work.wait();  // it went on in the background
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
  CHECK_THROWS_WITH(alone_in_memory()->broadcast(Buffer(), 1).wait(),
                    ContainsSubstring("rank 1 is not one of the group's 1"));
}
