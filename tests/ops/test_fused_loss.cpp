// nll_loss behind log_softmax: one gradient for both, with the bits of the two one by one.
#include <cstring>

#include "lib/ops/add.h"
#include "lib/ops/log_softmax.h"
#include "lib/ops/losses.h"
#include "tests/ops/check.h"

using namespace duet;
using namespace duet_test;

namespace {

Tensor labels_of(const std::vector<std::int64_t>& labels) {
  return from_values<std::int64_t>({static_cast<std::int64_t>(labels.size())}, labels);
}

}  // namespace

TEST_CASE("the gradient of nll_loss behind log_softmax has the bits of the two one by one") {
  Mt19937 generator(54);
  for (int i = 0; i < 40; ++i) {
    const std::int64_t rows = generator.randint(1, 140), classes = generator.randint(1, 40);
    const Array x = random_array({rows, classes}, generator);
    const std::vector<std::int64_t> list = random_labels(rows, classes, generator);
    const Tensor labels = labels_of(list);
    const float start = i % 3 == 0 ? 1.0f : i % 3 == 1 ? -2.5f : 0.0f;
    const Rows stamp = i % 2 ? Rows{3, 8, 400} : Rows{};
    const float factor = 1.0f / static_cast<float>(i % 2 ? 400 : rows);
    CAPTURE(i, rows, classes, start);
    const Variable vx(to_tensor(x).set_stamp(stamp), true), y = ops::log_softmax(vx), loss = ops::nll_loss(y, labels);
    loss.backward(from_values<float>({}, {start}));
    const Tensor dy = empty(x.shape), dx = empty(x.shape);
    backend(dy).nll_loss_backward(from_values<float>({}, {start}), labels, factor, dy);
    backend(dy).log_softmax_backward(y.value(), dy, dx);
    CHECK(std::memcmp(vx.grad().raw(), dx.raw(), dx.bytes()) == 0);
    if (i % 2 || start != 1.0f) continue;
    CHECK(relative_error(vx.grad(), reference::log_softmax_backward(
                                        x, reference::nll_loss_backward(reference::log_softmax(x), list))) <
          kTolerance);
  }
}

TEST_CASE("nll_loss sends its gradient past log_softmax, whose other consumers keep theirs") {
  Mt19937 generator(55);
  const Array x = random_array({7, 4}, generator), target = random_array({7, 4}, generator);
  const std::vector<std::int64_t> labels = random_labels(7, 4, generator);
  const Array log_probabilities = reference::log_softmax(x);
  Array dy = reference::nll_loss_backward(log_probabilities, labels);
  const Array other = reference::mse_loss_backward(log_probabilities, target);
  const Variable vx = leaf(x), y = ops::log_softmax(vx);
  const Variable nll = ops::nll_loss(y, labels_of(labels)), mse = ops::mse_loss(y, to_tensor(target));
  CHECK(nll.edge().node->edges()[0].node == vx.edge().node);
  ops::add(nll, mse).backward();
  for (std::size_t i = 0; i < dy.values.size(); ++i) dy.values[i] += other.values[i];
  CHECK(relative_error(vx.grad(), reference::log_softmax_backward(x, dy)) < kTolerance);
  // Log-probabilities that no log_softmax of this tape made: the gradient is theirs.
  const Variable given = leaf(log_probabilities);
  ops::nll_loss(given, labels_of(labels)).backward();
  CHECK(relative_error(given.grad(), reference::nll_loss_backward(log_probabilities, labels)) < kTolerance);
  const Variable cut = ops::log_softmax(vx).detach();
  CHECK_FALSE(ops::nll_loss(cut, labels_of(labels)).requires_grad());
}
