// Results of collectives before the first step, for a process that replaces a rank.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/call_results.h"
#include "ddp/group/process_group.h"
#include "ddp/store/file_store.h"
#include "lib/error.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using namespace duet::ddp;
using duet_test::ContainsSubstring;

namespace {

Call all_reduce_of(std::vector<float>& values) {
  return {.op = Collective::all_reduce, .in = Buffer(std::span(values))};
}

constexpr auto all_are_kept = [] { return true; };

}  // namespace

TEST_CASE("a process that replaces a rank gets the results of its calls, in their order") {
  const duet_test::Scratch folder;
  const auto store = std::make_shared<FileStore>(folder.path("store"), "job", 0);
  std::vector<float> sums = {3, 4}, gathered = {1, 2};
  std::vector<std::int64_t> own = {7};
  CallResults first(store, 1), other(store, 0);
  first.keep(all_reduce_of(sums));
  first.keep({.op = Collective::barrier});
  first.keep({.op = Collective::all_gather, .in = Buffer(std::span(own)), .out = Buffer(std::span(gathered))});
  std::vector<float> of_other = {9, 9};
  other.keep(all_reduce_of(of_other));

  CallResults again(store, 1);
  std::vector<float> values(2), out(2);
  again.repeat(all_reduce_of(values), all_are_kept);
  CHECK(values == sums);
  again.repeat({.op = Collective::barrier}, all_are_kept);
  again.repeat({.op = Collective::all_gather, .in = Buffer(std::span(own)), .out = Buffer(std::span(out))},
               all_are_kept);
  CHECK(out == gathered);
  CHECK_THROWS_WITH(again.repeat({.op = Collective::barrier}, all_are_kept),
                    ContainsSubstring("barrier before the first step: rank 1 replaces a lost one, of which no such"));
}

TEST_CASE("a process that replaces a rank must make its calls") {
  const duet_test::Scratch folder;
  const auto store = std::make_shared<FileStore>(folder.path("store"), "job", 0);
  std::vector<float> two(2), three(3), large(CallResults::kMostBytes / sizeof(float) + 1);
  CallResults first(store, 0);
  first.keep(all_reduce_of(two));
  first.keep(all_reduce_of(large));
  first.keep(all_reduce_of(two));  // behind one that is not kept

  CallResults again(store, 0);
  CHECK_THROWS_WITH(
      again.repeat(all_reduce_of(three), all_are_kept),
      ContainsSubstring("calls all_reduce of 3 f32 (sum) where that had called all_reduce of 2 f32 (sum)"));
  again.repeat(all_reduce_of(two), all_are_kept);
  CHECK_THROWS_AS(again.repeat(all_reduce_of(large), all_are_kept), duet::UsageError);
  CHECK_THROWS_AS(again.repeat(all_reduce_of(two), all_are_kept), duet::UsageError);
}
