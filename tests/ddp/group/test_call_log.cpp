#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddp/group/call_header.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using duet_test::ContainsSubstring;

namespace {

Call all_reduce_of(std::int64_t count) {
  static float memory = 0;
  return {.op = Collective::all_reduce, .in = {&memory, count, DType::f32}};
}

void add(CallLog& log, int calls) {
  for (int i = 0; i < calls; ++i) log.add(all_reduce_of(i + 1));
}

}  // namespace

TEST_CASE("ranks that exchange headers find the first that differs, wherever they are") {
  CallLog a, b;
  CHECK_FALSE(a.fresh());
  add(a, 40);
  add(b, 37);
  CHECK(a.fresh());
  CHECK(a.difference({"", b.text()}, 0) == "");
  CHECK(b.difference({a.text(), ""}, 1) == "");
  CHECK_FALSE(a.fresh());
  b.add({.op = Collective::barrier});
  const std::string expected = "the ranks disagree: rank 0 calls all_reduce of 38 f32 (sum); rank 1 calls barrier";
  CHECK(a.difference({"", b.text()}, 0) == expected);
  CHECK(b.difference({a.text(), ""}, 1) == expected);
  for (int texts = 0; texts < 3; ++texts) {
    add(b, 1);
    b.text();
  }
  CHECK(a.difference({"", b.text()}, 0) == "");  // rank 1 is ahead, and finds it
  CHECK(b.difference({a.text(), ""}, 1) == "the ranks disagree: a call of rank 1 was not that of rank 0");
  CHECK(b.difference({"damaged", ""}, 1) == "");
}

TEST_CASE("rows of ranks that are not together one batch are found, once all have told theirs") {
  const auto rows = [](std::int64_t first, std::int64_t end, std::uint64_t cover) {
    Call call = all_reduce_of(4);
    call.batch = {.whole = 30, .cover = cover, .step = 5, .first = first, .end = end, .global = 8, .order = 0xabc};
    return call;
  };
  for (const bool forgotten : {false, true}) {
    std::vector<CallLog> logs(2);
    logs[0].add(rows(0, 4, 10));
    logs[1].add(forgotten ? rows(0, 4, 10) : rows(4, 8, 20));
    const std::vector<std::string> texts = {logs[0].text(), logs[1].text()};
    for (int rank = 0; rank < 2; ++rank) {
      const CallLog& log = logs[static_cast<std::size_t>(rank)];
      CHECK(log.difference({"", ""}, rank) == "");
      const std::string text = log.difference(texts, rank);
      if (forgotten)
        CHECK_THAT(text, ContainsSubstring("the ranks disagree: ranks 0, 1 call all_reduce of 4 f32 (sum) with rows 0 "
                                           "to 4 of 8 in step 5, order 00000abc: give each rank's sampler"));
      else
        CHECK(text == "");
    }
  }
}

TEST_CASE("ranks whose parameters or earlier forwards differ disagree, where both are known") {
  for (const auto& [number, advice] :
       {std::pair(&BatchMark::values, "the parameters of rank 1 are not those of rank 0: a"),
        std::pair(&BatchMark::drawn, "on rank 1, but not on rank 0: only some ranks")}) {
    for (const std::uint64_t own : {0U, 10U, 11U}) {
      std::vector<RankHeader> ranks = {{0, header_of(all_reduce_of(4), 1)}, {1, header_of(all_reduce_of(4), 1)}};
      ranks[0].header.batch.*number = own;
      ranks[1].header.batch.*number = 11;
      Agreement all;
      for (const RankHeader& rank : ranks) all.add(rank.header);
      CHECK(all.same() == (own != 10));
      CHECK((own != 10 || disagreement(ranks).find(advice) != std::string::npos));
    }
  }
}

TEST_CASE("of three ranks, those that say the same are named together") {
  std::vector<CallLog> logs(3);
  for (CallLog& log : logs) add(log, 3);
  for (int rank = 0; rank < 3; ++rank) logs[static_cast<std::size_t>(rank)].add(all_reduce_of(rank == 1 ? 8 : 9));
  std::vector<std::string> texts;
  for (CallLog& log : logs) texts.push_back(log.text());
  CHECK(logs[2].difference(texts, 2) ==
        "the ranks disagree: ranks 0, 2 call all_reduce of 9 f32 (sum); rank 1 calls all_reduce of 8 f32 (sum)");
}

TEST_CASE("ranks that exchange no headers still find that they differ") {
  CallLog a, b;
  add(a, 40);
  add(b, 37);
  const std::string all = b.text(false);
  CHECK(all.size() < 40);
  CHECK(a.difference({"", all}, 0) == "");
  CHECK(b.difference({a.text(false), ""}, 1) == "");  // rank 0 is ahead
  CHECK_FALSE(b.fresh());
  b.add({.op = Collective::barrier});
  CHECK(a.difference({"", b.text(false)}, 0) == "the ranks disagree: a call of rank 0 was not that of rank 1");
}
