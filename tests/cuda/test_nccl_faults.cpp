// Ranks over NCCL that do not come, or fail.
#include <chrono>
#include <latch>
#include <string>
#include <vector>

#include "tests/cuda/nccl_ranks.h"
#include "tests/support/error_of.h"

using namespace duet;
using namespace duet_test;

using std::chrono::milliseconds;

DUET_NCCL_TEST(2, "nccl: a rank that never connects is named") {
  std::latch here(2);
  const auto options = [&here](int rank) {
    ddp::ConnectOptions short_timeout = nccl_options(gpu_of(rank));
    short_timeout.connect_timeout = milliseconds(2000);  // for the third; the others have as long
    here.arrive_and_wait();
    return short_timeout;
  };
  const auto failures = try_nccl_ranks(
      3, [](ProcessGroup&) {}, options, 2);
  const auto missing = [](const std::string& ranks, int self) {
    return concat(ranks, " of 3 did not come to NCCL within 2000 ms (waiting on rank ", self, ")");
  };
  // On a busy machine the other of the two may be missing as well.
  CHECK((failures[0] == missing("rank 2", 0) || failures[0] == missing("ranks 1, 2", 0)));
  CHECK((failures[1] == missing("rank 2", 1) || failures[1] == missing("ranks 0, 2", 1)));
}

DUET_NCCL_TEST(2, "nccl: a rank that does not join a collective is named, and the group has failed") {
  std::latch ended(2);
  std::string later, third;
  const auto failures = try_nccl_ranks(
      2,
      [&](ProcessGroup& group) {
        // No earlier collective that rank 1 might join late.
        if (group.rank() == 1) {
          ended.arrive_and_wait();
          group.barrier().wait();  // the peer's failure is published by now
          return;
        }
        const Tensor x = one_on(0);
        ddp::Work work = group.all_reduce(x);
        ddp::Work second = group.barrier();
        later = error_of<CommError>([&] { second.wait(); });
        third = error_of<CommError>([&] { group.all_reduce(x).wait(); });
        ended.arrive_and_wait();
        work.wait();
      },
      with_timeout(milliseconds(500)));
  const std::string why = "all_reduce #1 failed on rank 0: it has not ended within 500 ms; rank 1 did not join it";
  for (const std::string& text : {later, third, failures[0]}) CHECK(text == "the process group has failed: " + why);
  CHECK_THAT(failures[1], ContainsSubstring("failed on rank 1") && ContainsSubstring("rank 0"));
}

DUET_NCCL_TEST(2, "nccl: ranks that call different collectives which NCCL takes for the same are named") {
  const auto failures = try_nccl_ranks(
      2,
      [](ProcessGroup& group) {
        group.barrier().wait();
        const Tensor x = one_on(group.rank());
        // A barrier is an all_reduce of one number.
        (group.rank() == 0 ? group.barrier() : group.all_reduce(x)).wait();
        repeat_until_it_fails([&] { group.barrier().wait(); });
      },
      with_timeout(std::chrono::seconds(60)));
  for (const std::string& failure : failures)
    CHECK_THAT(failure,
               ContainsSubstring("the ranks disagree: rank 0 calls barrier; rank 1 calls all_reduce of 1 f32 (sum)"));
}

DUET_NCCL_TEST(2, "nccl: ranks whose gradients are of the same rows are named") {
  const auto failures = try_nccl_ranks(
      2,
      [](ProcessGroup& group) {
        group.barrier().wait();
        group.set_batch({.whole = 30, .cover = 10, .step = 5, .first = 0, .end = 4, .global = 8});  // as both have half
        group.all_reduce(one_on(group.rank())).wait();
        repeat_until_it_fails([&] { group.barrier().wait(); });
      },
      with_timeout(std::chrono::seconds(60)));
  for (const std::string& failure : failures)
    CHECK_THAT(failure,
               ContainsSubstring("the ranks disagree: ranks 0, 1 call all_reduce of 1 f32 (sum) with rows 0 to "
                                 "4 of 8 in step 5"));
}

DUET_NCCL_TEST(2, "nccl: a rank that leaves by an exception ends the others at once") {
  const auto failures = try_nccl_ranks(
      2,
      [](ProcessGroup& group) {
        group.barrier().wait();
        require<DataError>(group.rank() == 0, "a damaged file");
        group.barrier().wait();
      },
      with_timeout(std::chrono::seconds(60)));
  CHECK(failures[1] == "a damaged file");
  CHECK_THAT(failures[0], ContainsSubstring("barrier #") && ContainsSubstring(" failed on rank 0: ") &&
                              ContainsSubstring("the group failed on rank 1: it was dropped"));
}
