// Groups within groups, texts, and the barrier that names missing ranks.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/group/compare_ranks.h"
#include "ddp/group/flight_recorder.h"
#include "lib/error.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"
#include "tests/support/error_of.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

using Texts = std::vector<std::string>;

/// The sum of `number` over the group's ranks.
int sum(ProcessGroup& group, int number) {
  std::int32_t value = number;
  group.all_reduce({&value, 1, DType::i32}).wait();
  return value;
}

/// Each rank's text.
Texts said(Over over, int size, const std::function<std::string(ProcessGroup&)>& body) {
  Texts texts(static_cast<std::size_t>(size));
  run_ranks(over, size, [&](ProcessGroup& group) { texts[static_cast<std::size_t>(group.rank())] = body(group); });
  return texts;
}

}  // namespace

TEST_CASE("split makes groups by color, in the order of the keys") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const Texts texts = said(over, 4, [](ProcessGroup& whole) {
    const int rank = whole.rank();
    const auto half = whole.split(rank % 2, -rank);
    const auto some = whole.split(rank == 3 ? -1 : 7);
    std::string text = concat(half->rank(), "/", half->size(), " ", half->backend(), " ", sum(*half, rank + 1));
    text += some ? concat(" ", some->rank(), "/", some->size(), " ", sum(*some, rank + 1)) : " none";
    const auto one = half->split(rank);  // a group within a group within a group
    return concat(text, " ", one->size(), " ", sum(*one, rank), " ", sum(whole, 1));
  });
  const std::string name = over == Over::memory ? "memory"
                           : over == Over::gloo ? "gloo"
                           : over == Over::tcp  ? "tcp"
                                                : "shm";
  CHECK(texts == Texts{"1/2 " + name + " 4 0/3 6 1 0 4", "1/2 " + name + " 6 1/3 6 1 1 4",
                       "0/2 " + name + " 4 2/3 6 1 2 4", "0/2 " + name + " 6 none 1 3 4"});
}

TEST_CASE("a record numbers new groups alike in every process, and no two of them the same") {
  const auto record = FlightRecorder::make();
  run_ranks(Over::memory, 2, [&](ProcessGroup& whole) {
    if (whole.rank() == 0) whole.set_flight_recorder(record, 1);
    const auto group = whole.split(0);
    const auto inner = group->split(0);
    sum(*group, 1);
    sum(*inner, 1);
  });
  const std::vector<RecordedCall> calls = record->snapshot().calls;
  REQUIRE(calls.size() >= 2);
  // 0x80000000 | the first 32 bits of sha256("1/duet/split/0/0/"); of the inner one, with that number in place of 1
  CHECK(calls[calls.size() - 2].group == 0x86f742a6);
  CHECK(calls[calls.size() - 1].group == 0xc0593b84);
}

TEST_CASE("new_group takes a list of ranks, and outlives the whole group") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  std::mutex mutex;
  std::vector<std::unique_ptr<ProcessGroup>> groups(3);
  run_ranks(over, 3, [&](ProcessGroup& whole) {
    auto group = whole.new_group({2, 0});
    const std::lock_guard lock(mutex);
    groups[static_cast<std::size_t>(whole.rank())] = std::move(group);
  });
  REQUIRE(groups[0]);
  REQUIRE(groups[2]);
  CHECK_FALSE(groups[1]);
  CHECK(groups[0]->rank() == 1);
  CHECK(groups[2]->rank() == 0);
  int sums[2] = {0, 0};
  std::thread other([&] { sums[0] = sum(*groups[0], 3); });
  sums[1] = sum(*groups[2], 4);
  other.join();
  CHECK(sums[0] == 7);
  CHECK(sums[1] == 7);
  std::thread leaving([&] { groups[0].reset(); });
  groups[2].reset();
  leaving.join();
}

TEST_CASE("a group's keys leave the store with its last member, those of a group within it with that one's") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const auto keys = [](ProcessGroup& whole) {
    whole.barrier().wait();  // what all have done before is done, and nothing of what follows
    const std::int64_t count = whole.store()->num_keys();
    whole.barrier().wait();
    return count;
  };
  const Texts texts = said(over, 2, [&](ProcessGroup& whole) {
    const std::int64_t before = keys(whole);
    for (int i = 0; i < 3; ++i) sum(*whole.split(0), 1);
    const std::int64_t after = keys(whole);
    auto group = whole.split(0);
    auto inner = group->split(0);
    group.reset();
    keys(whole);
    inner->monitored_barrier(60s);  // needs its keys
    const int both = sum(*inner, 1);
    inner.reset();
    return concat(both, " ", after - before, " ", keys(whole) - before);
  });
  CHECK(texts == Texts{"2 0 0", "2 0 0"});
}

TEST_CASE("barriers that name missing ranks leave the keys of the last one") {
  const Texts texts = said(Over::memory, 2, [](ProcessGroup& group) {
    group.barrier().wait();
    const std::int64_t before = group.store()->num_keys();
    group.barrier().wait();
    for (int i = 0; i < 5; ++i) group.monitored_barrier(60s);
    group.barrier().wait();
    return concat(group.store()->num_keys() - before);
  });
  CHECK(texts == Texts{"2", "2"});
}

TEST_CASE("ranks that disagree about a new group, or name ranks that are not there, are refused") {
  const auto failures = try_ranks(Over::memory, 2, {.timeout = 60s}, [](ProcessGroup& group) {
    group.new_group(group.rank() == 0 ? std::vector{0} : std::vector{0, 1});
  });
  for (const auto& failure : failures)
    CHECK(text_of(failure) == "new_group: rank 0 names rank 0, rank 1 names ranks 0, 1");
  for (const auto& ranks : {std::vector{0, 0}, std::vector{2}, std::vector{-1}})
    CHECK_THAT(
        text_of(try_ranks(Over::memory, 2, {.timeout = 60s}, [&](ProcessGroup& group) { group.new_group(ranks); })[1]),
        ContainsSubstring("are not different ranks of the group's 2"));
  const auto alone = alone_in_memory();
  CHECK_THROWS_WITH(alone->split(0), ContainsSubstring("no store"));
}

TEST_CASE("a failure in one group leaves the other as it is") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const Texts texts = said(over, 2, [](ProcessGroup& whole) {
    const auto group = whole.split(0);
    std::vector<float> values(group->rank() == 0 ? 3 : 4);
    try {
      group->all_reduce(std::span<float>(values)).wait();
    } catch (const CommError& error) {
      return concat(sum(whole, 1), error.what());
    }
    return std::string("no error");
  });
  for (const std::string& text : texts) CHECK_THAT(text, ContainsSubstring("2all_reduce #0 failed"));
}

TEST_CASE("texts of other lengths go round") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const Texts own = {std::string("a\0b", 3), "", "longer than the others"};
  const Texts texts = said(over, 3, [&](ProcessGroup& group) {
    const std::string& mine = own[static_cast<std::size_t>(group.rank())];
    return all_gather_texts(group, mine) == own ? own[2] : "wrong";
  });
  for (const std::string& text : texts) CHECK(text == own[2]);
}

TEST_CASE("a monitored barrier names all ranks that did not come, and the group goes on") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  std::latch first_over(1), both_over(2);
  const Texts texts = said(over, 4, [&](ProcessGroup& group) {
    group.monitored_barrier(60s);
    std::string text;
    if (group.rank() % 2 == 1) {
      both_over.wait();
    } else {
      if (group.rank() == 2) first_over.wait();  // so that it is certain which ranks have come by then
      text = error_of<CommError>([&] { group.monitored_barrier(100ms); });
      if (group.rank() == 0) first_over.count_down();
      both_over.count_down();
    }
    return concat(text, sum(group, 1));
  });
  CHECK(texts[0] == "[Rank 0]: ranks 1, 2, 3 failed to pass monitored_barrier in 100 ms4");
  CHECK(texts[2] == "[Rank 2]: ranks 1, 3 failed to pass monitored_barrier in 100 ms4");
}
