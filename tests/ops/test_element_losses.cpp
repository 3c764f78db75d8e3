// l1_loss, binary cross-entropy and batch_mean: against the reference, with NaN and infinity, bits in shards, what they
// refuse.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/ops/operator_cases.h"

using namespace duet;
using namespace duet_test;

TEST_CASE("losses of elements equal the reference") {
  Mt19937 generator(101);
  for (const Shape& shape : {Shape{1}, Shape{7, 5}, Shape{3, 2, 4, 3}, Shape{520}, Shape{2, 300}})
    for (const OperatorCase& c : loss_cases(shape, generator)) check_operator(c, Device{}, generator);
}

TEST_CASE("losses of elements of NaN, infinity and certain probabilities have PyTorch's values and gradients") {
  // torch 2.15 on CPU: loss(x, t, reduction="none"), and backward of ones.
  constexpr float n = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  struct Case {
    Variable (*loss)(const Variable&, const Tensor&);
    std::vector<float> x, t, y, dx;
  };
  const std::vector<Case> cases = {
      {ops::l1_loss, {n, inf, -inf, 1, 2, 2}, {0, 0, inf, 1, inf, 3}, {n, inf, inf, 0, inf, 1}, {0, 1, -1, 0, -1, -1}},
      {ops::binary_cross_entropy,
       {0, 1, 0, 1, .3f},
       {0, 1, 1, 0, .6f},
       {0, 0, 100, 100, .8650537f},
       {0, 0, -1e12f, 1e12f, -1.4285715f}},
      {ops::binary_cross_entropy_with_logits,
       {n, inf, -inf, inf, -inf, 100, -100, .5f},
       {0, 0, 0, 1, 1, 0, 1, .25f},
       {n, inf, n, n, n, 100, 100, .849077f},
       {n, 1, 0, 0, -1, 1, -1, .37245935f}}};
  for (const Case& c : cases)
    for (std::size_t i = 0; i < c.x.size(); ++i) {
      const Variable x(from_values<float>({1}, {c.x[i]}), true);
      const Variable loss = c.loss(x, from_values<float>({1}, {c.t[i]}));
      loss.backward();
      CAPTURE(i, c.x[i], c.t[i], loss.item(), x.grad().span<float>()[0]);
      for (const auto& [got, expected] : {std::pair{loss.item(), c.y[i]}, {x.grad().span<float>()[0], c.dx[i]}})
        CHECK((got == expected || (std::isnan(got) && std::isnan(expected)) ||
               std::abs(got - expected) <= 1e-6f * std::abs(expected)));
    }
  CHECK(std::isnan(ops::binary_cross_entropy(from_values<float>({1}, {1.5f}), zeros({1})).item()));
  CHECK(std::isnan(ops::l1_loss(zeros({0, 3}), zeros({0, 3})).item()));
}

namespace {

using Loss = Variable (*)(const Variable&, const Tensor&);

/// The gradient of the weights of loss(sigmoid(linear(x)), target) for rows [begin, end) of a batch.
Tensor weight_gradient(Loss loss, const Tensor& x, const Tensor& target, const Tensor& w, std::int64_t begin,
                       std::int64_t end) {
  if (begin == end) return zeros(w.shape());
  const Variable weights(w, true);
  loss(ops::sigmoid(ops::linear(x.rows(begin, end), weights, {})), target.rows(begin, end)).backward();
  return weights.grad();
}

}  // namespace

TEST_CASE("gradients behind losses of elements have the same bits in 2, 4 and 8 shards") {
  Mt19937 generator(102);
  const Loss losses[] = {ops::l1_loss, ops::binary_cross_entropy, ops::binary_cross_entropy_with_logits,
                         [](const Variable& x, const Tensor& t) { return ops::batch_mean((x - t) * (x - t)); }};
  for (const Loss loss : losses)
    for (const std::int64_t rows : {3, 8, 19}) {
      Tensor x = to_tensor(random_array({rows, 20}, generator)),
             target = to_tensor(map(random_array({rows, 6}, generator), [](double v) { return v / 2 + 0.5; }));
      x.set_stamp({3, 0, rows});
      target.set_stamp({3, 0, rows});
      const Tensor w = to_tensor(random_array({6, 20}, generator));
      const Tensor whole = weight_gradient(loss, x, target, w, 0, rows);
      for (const int shards : {2, 4, 8}) {
        std::vector<Tensor> parts;
        for (int i = 0; i < shards; ++i)
          parts.push_back(
              weight_gradient(loss, x, target, w, block_begin(i, rows, shards), block_begin(i + 1, rows, shards)));
        const Tensor sum = empty(w.shape());
        backend(sum).sum_devices(parts, sum, false, 0, 1);
        CAPTURE(rows, shards);
        CHECK(std::memcmp(sum.raw(), whole.raw(), whole.bytes()) == 0);
      }
    }
}

TEST_CASE("a loss of elements of a stamped batch says by what it was divided, a mean that it was not") {
  Tensor x = zeros({2, 3});
  x.set_stamp({7, 4, 8});
  const Variable v(x, true);
  CHECK(ops::l1_loss(v, x).edge().node->normalisers() == kPartOfBatch);
  CHECK(ops::batch_mean(v).edge().node->normalisers() == kPartOfBatch);
  CHECK(ops::mean(v).edge().node->normalisers() == kOwnRows);
}

TEST_CASE("cross_entropy and nll_loss of more dimensions are those of their rows, with the gradient of a batch") {
  Mt19937 generator(103);
  const Tensor x = to_tensor(random_array({4, 3, 5}, generator));
  const Tensor labels = from_values({4, 3}, random_labels(12, 5, generator));
  for (const double smoothing : {0.0, 0.2}) {
    const Variable rows(x.reshape({12, 5}), true), whole(x, true);
    const Variable a = ops::cross_entropy(rows, labels.reshape({12}), smoothing),
                   b = ops::cross_entropy(whole, labels, smoothing);
    CHECK(a.item() == b.item());
    a.backward();
    b.backward();
    CHECK(whole.grad().shape() == x.shape());
    CHECK(std::memcmp(rows.grad().raw(), whole.grad().raw(), x.bytes()) == 0);
    Tensor part = x.rows(1, 3), part_labels = labels.rows(1, 3);
    part.set_stamp({3, 1, 4});
    const Variable shard(part, true), loss = ops::cross_entropy(shard, part_labels, smoothing);
    CHECK(loss.edge().node->normalisers() == kPartOfBatch);
    loss.backward();
    CHECK(std::memcmp(shard.grad().raw(), whole.grad().rows(1, 3).raw(), part.bytes()) == 0);
  }
  const Variable log = ops::log_softmax(x, -1);
  CHECK(ops::nll_loss(log, labels).item() == ops::cross_entropy(x, labels).item());
  CHECK_THROWS_WITH(ops::nll_loss(x, labels.reshape({3, 4})),
                    "nll_loss: labels [3, 4] i64, expected [4, 3] i64: the logits' last dimension is the classes");
}

TEST_CASE("losses of elements refuse other shapes, types and places") {
  const Variable x(zeros({2, 3}));
  CHECK_THROWS_WITH(ops::l1_loss(x, zeros({3, 2})), "l1_loss: input [2, 3] and target [3, 2] differ");
  CHECK_THROWS_WITH(ops::binary_cross_entropy(x, zeros({2, 3}, DType::u8)),
                    "binary_cross_entropy: got u8, expected f32");
  CHECK_THROWS_AS(ops::binary_cross_entropy_with_logits(x, zeros({2, 3}).to({DeviceKind::cpu, 1})), DeviceError);
  CHECK_THROWS_WITH(ops::batch_mean(zeros({})), "batch_mean: got a scalar, expected (N, ...)");
}
