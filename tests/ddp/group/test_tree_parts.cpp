// All-reduces in which ranks have several parts each.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/blocks.h"
#include "lib/error.h"
#include "lib/half.h"
#include "lib/random.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet_test;
using duet::ddp::ProcessGroup;
using duet::ddp::TreeParts;

namespace {

/// The sum of a subtree's blocks, in the order of the tree.
template <class T>
std::vector<T> values_of(const duet::Subtree& part, std::size_t count) {
  std::vector<float> numbers(count);
  duet::Mt19937(static_cast<std::uint64_t>(part.first * 100 + part.blocks)).randn(numbers);
  std::vector<T> values;
  for (const float number : numbers) values.push_back(static_cast<T>(number));
  return values;
}

template <class T>
std::vector<T> tree_sum(int ranks, int blocks, std::size_t count) {
  std::vector<duet::Subtree> parts;
  for (int rank = 0; rank < ranks; ++rank)
    for (const duet::Subtree& part : duet::subtrees_of(rank, ranks, blocks)) parts.push_back(part);
  std::vector<std::vector<double>> sums;
  for (const duet::Subtree& part : parts) {
    const std::vector<T> own = values_of<T>(part, count);
    sums.emplace_back(own.begin(), own.end());
  }
  const duet::Subtree whole{0, blocks};
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for (const auto& [to, from] : duet::additions_of(parts, {&whole, 1}))
    for (std::size_t i = 0; i < count; ++i) {
      double& sum = sums[static_cast<std::size_t>(to)][i];
      sum = static_cast<double>(static_cast<Wide>(sum) + static_cast<Wide>(sums[static_cast<std::size_t>(from)][i]));
    }
  std::vector<T> result;
  for (const double sum : sums[0]) result.push_back(static_cast<T>(static_cast<Wide>(sum)));
  return result;
}

/// `shared`: buffers in the group's own memory, where it has such.
template <class T>
void check(ProcessGroup& group, int blocks, std::size_t count, bool shared) {
  const auto own = duet::subtrees_of(group.rank(), group.size(), blocks);
  duet::ddp::TreeOrder order;
  order.set(group.size(), blocks);
  std::vector<std::shared_ptr<duet::Storage>> memory;
  for (int i = 0; i < order.most_parts(); ++i) {
    memory.push_back(shared ? group.shared_storage(count * sizeof(T)) : nullptr);
    if (memory.back() == nullptr) memory.back() = std::make_shared<duet::Storage>(duet::Device{}, count * sizeof(T));
  }
  TreeParts parts{.blocks = blocks};
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::ranges::copy(values_of<T>(own[i], count), static_cast<T*>(memory[i]->data()));
    if (i > 0) parts.more[i - 1] = memory[i]->data();
  }
  const std::span<T> values(static_cast<T*>(memory[0]->data()), count);
  group.all_reduce(values, parts).wait();
  CHECK(std::ranges::equal(values, tree_sum<T>(group.size(), blocks, count)));
}

}  // namespace

TEST_CASE("an all_reduce of several parts of each rank adds them up by the tree over the blocks") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  for (const auto& [ranks, blocks] : {std::pair(3, 8), std::pair(5, 16), std::pair(7, 32), std::pair(2, 8)})
    run_ranks(over, ranks, [blocks = blocks](ProcessGroup& group) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{300'001}}) {
        check<float>(group, blocks, count, false);
        check<float>(group, blocks, count, true);
      }
      check<double>(group, blocks, 5000, false);
      check<duet::BFloat16>(group, blocks, 777, false);
      std::vector<float> plain(10, 1);
      group.all_reduce(std::span(plain)).wait();
      CHECK(plain[3] == static_cast<float>(group.size()));
    });
}

TEST_CASE("an all_reduce of parts refuses what is none, and ranks that disagree about the blocks") {
  run_ranks(Over::memory, 3, [](ProcessGroup& group) {
    std::vector<float> values(4), more(4);
    CHECK_THROWS_WITH(group.all_reduce(std::span(values), TreeParts{.blocks = 12}),
                      ContainsSubstring("a tree of 12 blocks among 3 ranks: expected 8, 16 or 32"));
    TreeParts parts{.blocks = 8};
    if (group.rank() == 0) parts.more[0] = more.data();
    CHECK_THROWS_AS(group.all_reduce(std::span(values), parts), duet::UsageError);
  });
  const auto failures = try_ranks(Over::memory, 2, {}, [](ProcessGroup& group) {
    std::vector<float> values(4);
    group.all_reduce(std::span(values), TreeParts{.blocks = group.rank() == 0 ? 8 : 16}).wait();
  });
  for (const auto& failure : failures)
    CHECK_THAT(text_of(failure),
               ContainsSubstring("all_reduce of 4 f32 (sum) over 8 blocks; rank 1 calls all_reduce of 4 "
                                 "f32 (sum) over 16 blocks"));
}
