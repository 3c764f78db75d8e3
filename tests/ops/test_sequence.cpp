// Transposed convolutions, embedding, layer_norm and attention: against the reference, bits of gradients in shards,
// what they refuse.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/ops/ops.h"
#include "tests/ops/operator_cases.h"
#include "tests/support/said.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("transposed convolutions, embedding, layer_norm and attention equal the reference") {
  Mt19937 generator(111);
  for (const OperatorCase& c : conv_transpose_cases(generator)) check_operator(c, Device{}, generator);
  for (const OperatorCase& c : sequence_cases(generator)) check_operator(c, Device{}, generator);
}

TEST_CASE("attention in which a query sees no number of its own is finite, and causal scores get no gradient ahead") {
  Mt19937 generator(112);
  const Variable q = leaf(random_array({1, 3, 2}, generator)), k = leaf(random_array({1, 3, 2}, generator)),
                 v = leaf(random_array({1, 3, 2}, generator));
  const Variable y = ops::scaled_dot_product_attention(q, k, v, true);
  CHECK(y.value().span<float>()[0] == v.value().span<float>()[0]);  // the first sees itself only
  ops::slice(y, 1, 0, 1).backward(from_values<float>({1, 1, 2}, {1, 1}));
  const Tensor dq = q.grad();
  for (const float g : dq.span<float>()) CHECK(g == 0);
  for (std::size_t i = 0; i < 6; ++i) CHECK(v.grad().span<float>()[i] == (i < 2 ? 1.0f : 0.0f));
}

TEST_CASE("embedding warns of rows that are picked from a part of a batch, by indices of its own number") {
  const Rows whole{.global = 8}, part{.global = 8, .shards = 2};
  for (const auto& [batch, picks] : {std::pair(whole, Rows{}), std::pair(part, part), std::pair(part, Rows{})}) {
    Tensor rows = zeros({batch.shards == 2 ? 4 : 8, 3}), indices = from_values<std::int64_t>({2}, {0, 3});
    const Said said;
    ops::embedding(rows.set_stamp(batch), indices.set_stamp(picks));
    CHECK(said.lines() == (batch.shards == 2 && !picks.known() ? 1 : 0));
  }
}

TEST_CASE("NaN and infinity stay in their vector of layer_norm, and in their pair of attention") {
  Mt19937 generator(114);
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    Tensor x = to_tensor(random_array({2, 3, 4}, generator));
    x.data<float>()[13] = bad;
    const Variable v(x, true), y = ops::layer_norm(v, {4}, {}, {});
    y.backward(to_tensor(random_array(x.shape(), generator)));
    const Variable seen = ops::scaled_dot_product_attention(x, x, x);
    for (std::size_t i = 0; i < 24; ++i) {
      CAPTURE(bad, i);
      CHECK(std::isfinite(y.value().span<float>()[i]) == (i < 12 || i >= 16));
      CHECK(std::isfinite(v.grad().span<float>()[i]) == (i < 12 || i >= 16));
      if (i < 12) CHECK(std::isfinite(seen.value().span<float>()[i]));
      if (i == 13) CHECK_FALSE(std::isfinite(seen.value().span<float>()[i]));
    }
  }
}

namespace {

using Tensors = std::vector<Tensor>;

/// Whether gradients of parameters, of rows [begin, end) of a batch, have the same bits in shards.
void check_shards(std::int64_t rows, const std::function<Tensors(std::int64_t begin, std::int64_t end)>& gradients) {
  const Tensors whole = gradients(0, rows);
  for (const int shards : {2, 4, 8})
    for (std::size_t k = 0; k < whole.size(); ++k) {
      Tensors parts;
      for (int i = 0; i < shards; ++i)
        parts.push_back(gradients(block_begin(i, rows, shards), block_begin(i + 1, rows, shards))[k]);
      const Tensor sum = empty(whole[k].shape());
      backend(sum).sum_devices(parts, sum, false, 0, 1);
      CAPTURE(rows, shards, k);
      CHECK(std::memcmp(sum.raw(), whole[k].raw(), sum.bytes()) == 0);
    }
}

}  // namespace

TEST_CASE("gradients of tables, norms and transposed convolutions have the same bits in 2, 4 and 8 shards") {
  Mt19937 generator(113);
  const auto stamped = [&](Tensor x) {
    x.set_stamp({3, 0, x.size(0)});
    return x;
  };
  const auto random = [&](const Shape& shape) { return to_tensor(random_array(shape, generator)); };
  for (const std::int64_t rows : {3, 8, 19}) {
    const Tensor ids = stamped(from_values({rows, 6}, random_labels(rows * 6, 5, generator))),
                 x = stamped(random({rows, 6, 24})), image = stamped(random({rows, 16, 4, 4}));
    const Tensor table = random({5, 24}), weight = random({24}), filter = random({16, 8, 3, 3}), bias = random({8});
    const Tensor dimage = random({rows, 8, 7, 7}), dy = random({rows, 6, 24});
    check_shards(rows, [&](std::int64_t begin, std::int64_t end) -> Tensors {
      const Variable t(table, true);
      ops::embedding(t, ids.rows(begin, end)).backward(dy.rows(begin, end));
      return {t.grad()};
    });
    check_shards(rows, [&](std::int64_t begin, std::int64_t end) -> Tensors {
      const Variable w(weight, true), b(table.slice(0, {24}), true);
      ops::layer_norm(x.rows(begin, end), {24}, w, b).backward(dy.rows(begin, end));
      return {w.grad(), b.grad()};
    });
    check_shards(rows, [&](std::int64_t begin, std::int64_t end) -> Tensors {
      if (begin == end) return {zeros(filter.shape()), zeros(bias.shape())};
      const Variable w(filter, true), b(bias, true);
      ops::to_plain(ops::conv_transpose2d(image.rows(begin, end), w, b, {3, 3, 2, 2, 1, 1}))
          .backward(dimage.rows(begin, end));
      return {w.grad(), b.grad()};
    });
  }
}

TEST_CASE("transposed convolutions, embedding, layer_norm and attention refuse what does not fit") {
  const auto of = [](const Shape& shape) { return Variable(zeros(shape)); };
  const Window2d window = {3, 3, 2, 2, 1, 1};
  CHECK_THROWS_WITH(ops::conv_transpose2d(of({1, 4, 5, 5}), of({3, 2, 3, 3}), {}, window),
                    "conv_transpose2d: input [1, 4, 5, 5] and weights [3, 2, 3, 3] in 1 groups, expected as many "
                    "channels of the input as rows of the weights, in whole groups");
  CHECK_THROWS_WITH(ops::conv_transpose2d(of({1, 3, 5, 5}), of({3, 2, 3, 3}), {}, window, 2),
                    "conv_transpose2d: output padding 2 for strides 2 and 2, expected 0 or more and less than these");
  CHECK_THROWS_WITH(ops::conv_transpose2d(of({1, 3, 5, 5}), of({3, 2, 3, 3}), of({3}), window),
                    "conv_transpose2d: bias [3], expected [2]");
  CHECK_THROWS_WITH(ops::conv_transpose2d(of({1, 3, 1, 1}), of({3, 2, 1, 1}), {}, {1, 1, 1, 1, 1, 1}),
                    "conv_transpose2d: input [1, 3, 1, 1] gives -1x-1 pixels, expected 1x1 or more");
  CHECK_THROWS_AS(ops::conv_transpose2d(of({1, 3, 5, 5}), of({3, 2, 2, 2}), {}, window), ShapeError);
  CHECK_THROWS_WITH(ops::embedding(of({4, 2}), from_values<std::int64_t>({2}, {1, 4})),
                    "embedding: index 4 of a table of 4 rows, expected 0 to 3");
  CHECK_THROWS_WITH(ops::embedding(of({4, 2}), from_values<std::int64_t>({1}, {-1})),
                    "embedding: index -1 of a table of 4 rows, expected 0 to 3");
  CHECK_THROWS_WITH(ops::embedding(of({4, 2}), zeros({3})), "embedding: got indices [3]f32, expected (N, ...) i64");
  CHECK_THROWS_WITH(ops::embedding(of({4, 2}), Tensor()), "embedding: got indices of nothing, expected (N, ...) i64");
  CHECK_THROWS_WITH(ops::layer_norm(of({2, 3}), {2}, {}, {}),
                    "layer_norm: got shape [2, 3], expected (N, ...) that ends in [2]");
  CHECK_THROWS_AS(ops::layer_norm(of({3}), {3}, {}, {}), ShapeError);
  CHECK_THROWS_WITH(ops::layer_norm(of({2, 3}), {3}, of({2}), {}), "layer_norm: parameter [2], expected [3]");
  CHECK_THROWS_AS(ops::scaled_dot_product_attention(of({1, 2, 3}), of({1, 2, 4}), of({1, 2, 3})), ShapeError);
}
