// The rule for sums over samples: blocks, their tree, and shards of a batch.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/blocks.h"
#include "lib/random.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

/// "((0+1)+(2+3))" for the order in which `blocks` adds its leaves, numbered as `names` says.
std::string expression(const Blocks& blocks, std::vector<std::string> names) {
  for (int i = 0; i < blocks.addition_count; ++i) {
    const auto [to, from] = blocks.addition(i);
    std::string& sum = names[static_cast<std::size_t>(to)];
    sum = "(" + sum + "+" + names[static_cast<std::size_t>(from)] + ")";
  }
  return names[0];
}

/// The rule in words: block i of the batch restricted to rows [first, first + rows), empty ones left out.
std::string rule(std::int64_t global, std::int64_t first, std::int64_t rows, int low, int high, int blocks = 8) {
  if (high - low == 1) {
    const std::int64_t begin = std::max(low * global / blocks, first);
    const std::int64_t end = std::min((low + 1) * global / blocks, first + rows);
    return begin < end ? std::to_string(low) : "";
  }
  const std::string left = rule(global, first, rows, low, (low + high) / 2, blocks),
                    right = rule(global, first, rows, (low + high) / 2, high, blocks);
  if (left.empty() || right.empty()) return left + right;
  return "(" + left + "+" + right + ")";
}

}  // namespace

TEST_CASE("the blocks of a whole batch are summed by the fixed tree") {
  const Blocks blocks = blocks_of({}, 128);
  CHECK(blocks.leaf_count == 8);
  for (int i = 0; i < 8; ++i) CHECK((blocks.leaf(i).begin == 16 * i && blocks.leaf(i).rows() == 16));
  CHECK(expression(blocks, {"0", "1", "2", "3", "4", "5", "6", "7"}) == "(((0+1)+(2+3))+((4+5)+(6+7)))");
  CHECK_FALSE(blocks.add_zero);
}

TEST_CASE("every shard of every batch has its blocks and its part of the tree") {
  std::vector<std::int64_t> sizes = {96, 100, 128};
  for (std::int64_t n = 0; n <= 20; ++n) sizes.push_back(n);
  for (const std::int64_t global : sizes)
    for (const int shards : {1, 2, 3, 4, 5, 8}) {
      std::int64_t seen = 0;
      for (int s = 0; s < shards; ++s) {
        const std::int64_t first = block_begin(s, global, shards), rows = block_begin(s + 1, global, shards) - first;
        CAPTURE(global, shards, s, first, rows);
        const Blocks blocks = blocks_of({0, first, global}, rows);
        seen += rows;
        if (rows == 0) {
          CHECK(blocks.leaf_count == 1);
          CHECK(blocks.leaf(0).rows() == 0);
          CHECK(blocks.addition_count == 0);
          continue;
        }
        std::vector<std::string> names;
        std::int64_t next = 0;
        for (int leaf = 0; leaf < blocks.leaf_count; ++leaf) {
          const Blocks::Range range = blocks.leaf(leaf);
          REQUIRE(range.begin == next);
          REQUIRE(range.rows() > 0);
          next = range.end;
          int block = 0;
          while ((block + 1) * global / 8 <= first + range.begin) ++block;
          REQUIRE(first + range.end <= (block + 1) * global / 8);
          names.push_back(std::to_string(block));
        }
        REQUIRE(next == rows);
        CHECK(blocks.addition_count == blocks.leaf_count - 1);
        CHECK(expression(blocks, names) == rule(global, first, rows, 0, 8));
        CHECK(blocks.add_zero == (global < 8));
      }
      CHECK(seen == global);
    }
}

TEST_CASE("maximal subtrees of a run of blocks, and how parts of the tree are added up") {
  using All = PooledVector<Subtree>;
  CHECK(subtrees_of(0, 8) == All{{0, 8}});
  CHECK(subtrees_of(2, 5) == All{{2, 2}, {4, 1}});
  CHECK(subtrees_of(5, 8) == All{{5, 1}, {6, 2}});
  CHECK(subtrees_of(1, 31) == All{{1, 1}, {2, 2}, {4, 4}, {8, 8}, {16, 8}, {24, 4}, {28, 2}, {30, 1}});
  CHECK(subtrees_of(3, 3).empty());
  for (const int blocks : {8, 16, 32})
    for (int workers = 1; workers <= blocks; ++workers) {
      CAPTURE(blocks, workers);
      std::vector<Subtree> parts;
      for (int w = 0; w < workers; ++w) {
        const All own = subtrees_of(w, workers, blocks);
        CHECK((workers == 1 || own.size() <= kMostSubtrees));
        parts.insert(parts.end(), own.begin(), own.end());
      }
      std::vector<std::string> sums, expected;
      for (const Subtree& part : parts) sums.push_back(rule(blocks, 0, blocks, part.first, part.end(), blocks));
      const Subtree whole{0, blocks};
      for (const auto& [to, from] : additions_of(parts, {&whole, 1}))
        sums[static_cast<std::size_t>(to)] =
            "(" + sums[static_cast<std::size_t>(to)] + "+" + sums[static_cast<std::size_t>(from)] + ")";
      CHECK(sums[0] == rule(blocks, 0, blocks, 0, blocks, blocks));
    }
  CHECK(additions_of(4) == std::vector<Addition>{{0, 1}, {2, 3}, {0, 2}});
  CHECK(additions_of(3) == std::vector<Addition>{{0, 1}, {0, 2}});
}

TEST_CASE("batches of 16 and 32 blocks are summed by their tree") {
  for (const int blocks : {16, 32})
    for (const std::int64_t global : {100, 13, 32, 1}) {
      CAPTURE(blocks, global);
      const Blocks all = blocks_of({.global = global, .blocks = blocks}, global);
      std::vector<std::string> names;
      for (int i = 0; i < blocks; ++i)
        if (i * global / blocks < (i + 1) * global / blocks) names.push_back(std::to_string(i));
      REQUIRE(all.leaf_count == std::ssize(names));
      CHECK(expression(all, names) == rule(global, 0, global, 0, blocks, blocks));
      CHECK(all.add_zero == (global < blocks));
    }
}

TEST_CASE("an unstamped tensor is its own batch, a stamped one has its place in a batch") {
  CHECK(blocks_of({}, 3).leaf_count == 3);
  CHECK(blocks_of({9, 0, 0}, 16).leaf_count == 8);
  CHECK(blocks_of({0, 0, 128}, 16).leaf_count == 1);
  CHECK(blocks_of({0, 8, 128}, 16).leaf_count == 2);  // cut across blocks
}

TEST_CASE("sum_devices adds parts as additions_of() says: a power of two by the tree, others in order") {
  Mt19937 generator(5);
  for (const std::int64_t count : {1, 7, 16, 100, 1003}) {
    std::vector<Tensor> all;
    for (int i = 0; i < 64; ++i) {
      all.push_back(empty({count}));
      generator.uniform(all.back().span<float>(), -1.0, 1.0);
    }
    for (int parts = 1; parts <= 64; ++parts) {
      std::vector<std::vector<float>> sums;
      for (int i = 0; i < parts; ++i) {
        const auto values = all[static_cast<std::size_t>(i)].span<float>();
        sums.emplace_back(values.begin(), values.end());
      }
      for (const auto& [to, from] : additions_of(parts))
        for (std::size_t e = 0; e < sums[0].size(); ++e)
          sums[static_cast<std::size_t>(to)][e] += sums[static_cast<std::size_t>(from)][e];
      for (const bool accumulate : {false, true})
        for (const int shares : {1, 3}) {
          const Tensor sum = empty({count});
          duet::backend(sum).fill(sum, 0.375f);
          for (int share = 0; share < shares; ++share)
            duet::backend(sum).sum_devices({all.data(), static_cast<std::size_t>(parts)}, sum, accumulate, share,
                                           shares);
          int wrong = 0;
          for (std::int64_t e = 0; e < count; ++e) {
            const float expected = sums[0][static_cast<std::size_t>(e)];
            wrong += sum.data<float>()[e] != (accumulate ? 0.375f + expected : expected);
          }
          CAPTURE(count, parts, accumulate, shares);
          CHECK(wrong == 0);
        }
    }
  }
}

TEST_CASE("all_reduce_devices gives the bits of sum_devices to all, also in the parts' own memory") {
  Mt19937 generator(6);
  for (int count = 1; count <= 33; ++count) {
    std::vector<Tensor> parts;
    for (const Device device : first_devices(DeviceKind::cpu, count)) {
      parts.push_back(empty({100}, DType::f32, device));
      generator.uniform(parts.back().span<float>(), -1.0, 1.0);
    }
    const Tensor expected = empty({100});
    Backend& cpu = duet::backend(DeviceKind::cpu);
    cpu.sum_devices(parts, expected, false, 0, 1);
    cpu.all_reduce_devices(parts, parts);
    for (const Tensor& sum : parts) CHECK(std::memcmp(sum.raw(), expected.raw(), sum.bytes()) == 0);
  }
}
