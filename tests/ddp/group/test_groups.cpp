#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "ddp/group/reduce_kernels.h"
#include "ddp/tutorial.h"
#include "lib/error.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

// Catch2's assertions are not thread-safe: ranks collect their results and the test's thread checks them.
using Table = std::vector<Floats>;  // by rank

/// The same values on every run, of mixed size so that the order of sums shows.
Floats random_floats(int rank, std::size_t count) {
  std::mt19937 words(static_cast<unsigned>(rank) + 1);
  Floats values(count);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(words()) * 0x1p-31f - 1.0f, static_cast<int>(words() % 12));
  return values;
}

/// Runs one operation on all ranks and returns what their buffers then hold.
Table after(Over over, int size, const std::function<Floats(ProcessGroup&)>& body) {
  Table results(static_cast<std::size_t>(size));
  run_ranks(over, size, [&](ProcessGroup& group) { results[static_cast<std::size_t>(group.rank())] = body(group); });
  return results;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float tree_sum(int first, int size, const Table& parts, std::size_t i) {
  if (size == 1) return parts[static_cast<std::size_t>(first)][i];
  return tree_sum(first, size / 2, parts, i) + tree_sum(first + size / 2, size / 2, parts, i);
}

/// What all_reduce must give, written down independently of the kernels.
Floats expected_sum(int size, std::size_t count) {
  Table parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(random_floats(rank, count));
  Floats sums(count);
  for (std::size_t i = 0; i < count; ++i) {
    if ((size & (size - 1)) == 0) {
      sums[i] = tree_sum(0, size, parts, i);
    } else {
      sums[i] = parts[0][i];
      for (std::size_t rank = 1; rank < parts.size(); ++rank) sums[i] += parts[rank][i];
    }
  }
  return sums;
}

}  // namespace

TEST_CASE("all_reduce adds in the tree's order, to the same bits on all ranks") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const int size = GENERATE(2, 3, 4, 8);
  for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1003}, std::size_t{421642}}) {
    const Table results = after(over, size, [&](ProcessGroup& group) {
      Floats values = random_floats(group.rank(), count);
      group.all_reduce(span(values)).wait();
      return values;
    });
    const Floats expected = expected_sum(size, count);
    INFO(size << " ranks, " << count << " elements");
    for (const Floats& values : results) CHECK(same_bits(values, expected));
  }
}

TEST_CASE("the order of the sum shows") {  // else the test above proves nothing
  const std::size_t count = 1000;
  const Floats tree = expected_sum(4, count);
  Floats chain(count);
  for (int rank = 0; rank < 4; ++rank) {
    const Floats part = random_floats(rank, count);
    for (std::size_t i = 0; i < count; ++i) chain[i] += part[i];
  }
  CHECK_FALSE(same_bits(tree, chain));
}

TEST_CASE("every reduction on every dtype") {
  const auto reduce = [](auto zero, ReduceOp op) {
    using T = decltype(zero);
    std::vector<std::vector<T>> parts = {{T(1), T(7)}, {T(5), T(2)}, {T(3), T(3)}};
    std::vector<void*> pointers;
    for (auto& part : parts) pointers.push_back(part.data());
    reduce_parts(pointers, 2, dtype_of<T>(), op);
    return std::pair(double(parts[0][0]), double(parts[0][1]));
  };
  const auto all = [&](auto zero) {
    CHECK(reduce(zero, ReduceOp::sum) == std::pair(9.0, 12.0));
    CHECK(reduce(zero, ReduceOp::product) == std::pair(15.0, 42.0));
    CHECK(reduce(zero, ReduceOp::min) == std::pair(1.0, 2.0));
    CHECK(reduce(zero, ReduceOp::max) == std::pair(5.0, 7.0));
  };
  all(float{});
  all(double{});
  all(std::int32_t{});
  all(std::int64_t{});
  all(std::uint8_t{});
  CHECK(reduce(float{}, ReduceOp::avg) == std::pair(3.0, 4.0));
}

TEST_CASE("queued collectives run in order and may all be under way at once") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const Table results = after(over, 2, [](ProcessGroup& group) {
    Floats sums(20, 1.0f);
    std::vector<Work> works;
    for (float& sum : sums) works.push_back(group.all_reduce({&sum, 1, DType::f32}));
    for (Work& work : works) work.wait();
    for (float& sum : sums) works.push_back(group.all_reduce({&sum, 1, DType::f32}, ReduceOp::product));
    works.back().wait();
    for (const Work& work : works) {
      if (!work.done()) sums.clear();
    }
    return sums;
  });
  for (const Floats& values : results) CHECK(values == Floats(20, 4.0f));
}

TEST_CASE("messages: both ways at once, by tag, in order, and empty") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const Table results = after(over, 2, [](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    Floats out(3, static_cast<float>(group.rank()));
    Floats got(5, -1.0f);
    Floats more = {7.0f};
    Work first = group.send(span(out), peer, 1);
    Work second = group.send(span(more), peer, 2);
    Work third = group.send(span(more), peer, 1);
    Work fourth = group.send(Buffer(), peer);
    group.recv(span(got).subspan(4, 1), peer, 2).wait();
    group.recv(span(got).subspan(0, 3), peer, 1).wait();
    group.recv(span(got).subspan(3, 1), peer, 1).wait();
    group.recv(Buffer(), peer).wait();
    for (Work* work : {&first, &second, &third, &fourth}) work->wait();
    return got;
  });
  CHECK(results[0] == Floats{1, 1, 1, 7, 7});
  CHECK(results[1] == Floats{0, 0, 0, 7, 7});
}

TEST_CASE("a message whose Work is dropped leaves its buffer alone, and arrives in its turn") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  constexpr std::size_t kCount = 2'000'000;  // more than a connection holds
  std::latch sent(1);
  const Table results = after(over, 2, [&](ProcessGroup& group) {
    Floats values(kCount), lost(kCount), seen;
    const auto look = [&](const Floats& all) { seen.insert(seen.end(), {all.front(), all.back()}); };
    if (group.rank() == 0) {
      for (const float value : {1.0f, 2.0f, 3.0f, 4.0f}) {  // the last one is never received
        Floats gone(kCount, value);
        std::ignore = group.send(span(gone), 1);
        std::ranges::fill(gone, -1.0f);
      }
      sent.count_down();
    } else {
      sent.wait();
      group.recv(span(values), 0).wait();
      look(values);
      std::ignore = group.recv(span(lost), 0);
      std::ranges::fill(lost, -1.0f);
      group.recv(span(values), 0).wait();
      look(values);
      look(lost);
    }
    group.barrier().wait();
    return seen;
  });
  CHECK(results[1] == Floats{1, 1, 3, 3, -1, -1});
}

TEST_CASE("a tensor lives on for as long as a collective whose Work was dropped") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  std::latch dropped(1);
  const Table results = after(over, 2, [&](ProcessGroup& group) {
    std::weak_ptr<const Storage> memory;
    if (group.rank() == 0) {
      const Tensor values = zeros({1000}, DType::f32, Device{});
      memory = values.shared_storage();
      std::ignore = group.all_reduce(values);
    } else {
      dropped.wait();
      std::ignore = group.all_reduce(zeros({1000}, DType::f32, Device{}));
    }
    const bool lives = !memory.expired();
    if (group.rank() == 0) dropped.count_down();
    group.barrier().wait();
    return Floats{lives ? 1.0f : 0.0f, memory.expired() ? 0.0f : 1.0f};
  });
  CHECK(results[0] == Floats{1, 0});
}

TEST_CASE("the tutorial's ring leaves the ranks with different bits, the chunked ring does not") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const int size = GENERATE(2, 3, 4);
  const std::size_t count = 1003;
  const Table naive = after(over, size, [&](ProcessGroup& group) {
    const Floats values = random_floats(group.rank(), count);
    Floats sums(count);
    naive_ring_all_reduce(group, values, sums);
    return sums;
  });
  const Floats exact = expected_sum(size, count);
  for (std::size_t i = 0; i < count; ++i) CHECK(naive[0][i] == duet_test::Approx(exact[i]).epsilon(1e-4).margin(0.01));
  CHECK(same_bits(naive[0], naive[1]) == (size == 2));

  const Table chunked = after(over, size, [&](ProcessGroup& group) {
    Floats values = random_floats(group.rank(), count);
    chunked_ring_all_reduce(group, values);
    return values;
  });
  for (std::size_t i = 0; i < count; ++i)
    CHECK(chunked[0][i] == duet_test::Approx(exact[i]).epsilon(1e-4).margin(0.01));
  for (const Floats& values : chunked) CHECK(same_bits(values, chunked[0]));
}

TEST_CASE("recursive doubling gives the tree's bits for 2, 4 and 8 ranks, and equal ones for others") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const int size = GENERATE(1, 2, 3, 4, 5, 8);
  const std::size_t count = 1003;
  const Table sums = after(over, size, [&](ProcessGroup& group) {
    Floats values = random_floats(group.rank(), count);
    recursive_doubling_all_reduce(group, values);
    return values;
  });
  const Floats tree = expected_sum(size, count);
  for (std::size_t i = 0; i < count; ++i) CHECK(sums[0][i] == duet_test::Approx(tree[i]).epsilon(1e-4).margin(0.01));
  for (const Floats& values : sums) CHECK(same_bits(values, sums[0]));
  if (size != 3 && size != 5) CHECK(same_bits(sums[0], tree));
}
