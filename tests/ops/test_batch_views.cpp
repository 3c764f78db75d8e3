// A part of a batch has its part of what the whole batch has, through views in which its samples lie elsewhere.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lib/ops/ops.h"
#include "tests/support/catch2.h"
#include "tests/support/reference.h"
#include "tests/support/said.h"

using namespace duet;
using namespace duet_test;

namespace {

Variable drop(const Variable& x) { return ops::dropout(x, {.seed = 5, .step = 3, .layer = 2, .p = 0.5f}); }

struct ViewCase {
  const char* what;
  Variable (*of)(const Variable& x);  // of (N, 6, 4)
};

const ViewCase kCases[] = {
    {"thirds of a sample",
     [](const Variable& x) {
       return drop(ops::reshape(x, {-1, 8}));
     }},
    {"thirds and back",
     [](const Variable& x) {
       return drop(ops::reshape(ops::gelu(ops::reshape(x, {-1, 8})), {-1, 6, 4}));
     }},
    {"two samples in a row and back",
     [](const Variable& x) {
       return drop(ops::reshape(ops::tanh(ops::reshape(x, {-1, 48})), {-1, 24}));
     }},
    {"time before samples", [](const Variable& x) { return ops::transpose(drop(ops::transpose(x, 0, 1) * 2), 0, 1); }},
    {"time before samples and back",
     [](const Variable& x) { return drop(ops::transpose(ops::exp(ops::transpose(x, 0, 1)), 0, 1)); }},
    {"samples last", [](const Variable& x) { return ops::transpose(drop(ops::transpose(x, 0, 2)), 2, 0); }},
    {"a step of time",
     [](const Variable& x) {
       return drop(ops::reshape(ops::slice(ops::transpose(x, 0, 1), 0, 2, 3), {-1, 4}));
     }},
    {"a mean over time", [](const Variable& x) { return drop(ops::mean(ops::transpose(x, 0, 1), {0})); }},
    {"time and samples in one dimension, and back",
     [](const Variable& x) {
       const Variable flat = ops::reshape(ops::transpose(x, 0, 1), {-1, 4}) * 2;
       return drop(ops::transpose(ops::reshape(flat, {6, -1, 4}), 0, 1));
     }},
    {"behind a constant in a concatenation",
     [](const Variable& x) {
       return drop(ops::concat({Variable(zeros({x.size(0), 1, 4})), x}));
     }},
};

}  // namespace

TEST_CASE("a part of a batch drops its part of the elements that the whole batch drops, through any view") {
  Mt19937 generator(4);
  for (const std::int64_t global : {8, 12}) {
    Tensor batch = to_tensor(random_array({global, 6, 4}, generator));
    batch.set_stamp({3, 0, global});
    for (const auto& [what, of] : kCases) {
      const Variable whole = of(Variable(batch));
      for (const auto& [begin, end] : {std::pair(0, 2), std::pair(2, 8), std::pair(4, 6)}) {
        const Variable part = of(Variable(batch.rows(begin, end)));
        CAPTURE(what, global, begin, end);
        REQUIRE(whole.value().bytes() * static_cast<std::size_t>(end - begin) ==
                part.value().bytes() * static_cast<std::size_t>(global));
        const auto* const expected =
            static_cast<const std::byte*>(whole.value().raw()) +
            whole.value().bytes() / static_cast<std::size_t>(global) * static_cast<std::size_t>(begin);
        CHECK(std::memcmp(part.value().raw(), expected, part.value().bytes()) == 0);
      }
    }
  }
}

TEST_CASE("the stamp of a view counts its rows, and comes back with those of the batch") {
  Tensor batch = zeros({4, 6, 4});
  batch.set_stamp({3, 4, 16});
  const Tensor halves = batch.reshape({8, 12});
  CHECK(halves.stamp() == Rows{.step = 3, .first = 8, .global = 32, .per_sample = 2});
  CHECK(halves.rows(2, 4).stamp().first == 10);
  CHECK(halves.rows(2, 4).reshape({1, 24}).stamp() == Rows{3, 5, 16});
  for (const Shape& shape : {Shape{8, 12}, Shape{1, 96}, Shape{2, 48}, Shape{24, 4}}) {
    CAPTURE(shape);
    CHECK(batch.reshape(shape).reshape({4, 24}).stamp() == batch.stamp());
    CHECK_FALSE(halves.rows(1, 3).reshape({1, 24}).stamp().known());  // of two samples
  }
}

TEST_CASE("a warning says once that tensors of other rows of a batch are combined") {
  Tensor batch = zeros({4, 3});
  batch.set_stamp({3, 0, 8});
  const Said said;
  ops::add(batch, batch.rows(0, 4));
  CHECK(said.lines() == 0);
  for (int i = 0; i < 2; ++i) ops::add(batch.rows(0, 2), batch.rows(2, 4));
  CHECK(said.lines() == 1);
  CHECK_THAT(said.text(), ContainsSubstring("warning: add: one argument has rows from 0 on of the 8 of a batch"));
}
