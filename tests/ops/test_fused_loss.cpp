// linear and log_softmax in one, and nll_loss behind log_softmax: one gradient for both. All with the bits of the
// operators one by one.
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
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
    CHECK(same_bits(vx.grad(), dx));
    if (start == 1.0f) {  // also by default, where the gradient was computed with the value
      const Variable again(vx.value(), true);
      ops::nll_loss(ops::log_softmax(again), labels).backward();
      CHECK(same_bits(again.grad(), dx));
    }
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

TEST_CASE("a loss that made its gradient for a start from 1 has the right one for every other start") {
  Mt19937 generator(56);
  const Array x = random_array({5, 3}, generator);
  const std::vector<std::int64_t> list = random_labels(5, 3, generator);
  const Tensor labels = labels_of(list);
  const Array once = reference::log_softmax_backward(x, reference::nll_loss_backward(reference::log_softmax(x), list));
  const auto times = [&](double factor) {
    Array scaled = once;
    for (double& value : scaled.values) value *= factor;
    return scaled;
  };
  Variable vx = leaf(x);
  const auto loss = [&] { return ops::nll_loss(ops::log_softmax(vx), labels); };
  const Variable sole = loss();
  sole.backward();
  CHECK(relative_error(vx.grad(), once) < kTolerance);
  CHECK_THROWS_WITH(sole.backward(), ContainsSubstring("backward through nll_loss a second time"));
  CHECK_THROWS_WITH(sole.backward(from_values<float>({}, {2})), ContainsSubstring("a second time"));
  loss().backward();  // adds to the leaf's
  CHECK(relative_error(vx.grad(), times(2)) < kTolerance);
  vx.zero_grad();
  loss().backward(from_values<float>({}, {-3}));
  CHECK(relative_error(vx.grad(), times(-3)) < kTolerance);
  vx.zero_grad();
  const Variable twice = loss();  // consumed by others, and then the end of no tape
  ops::add(twice, ops::add(twice, loss())).backward();
  CHECK(relative_error(vx.grad(), times(3)) < kTolerance);
  // A part of a longer tape may be run from its loss.
  vx.zero_grad();
  const Variable part = loss(), whole = ops::add(part, part);
  part.backward();
  CHECK(relative_error(vx.grad(), once) < kTolerance);
  CHECK_THROWS_WITH(whole.backward(), ContainsSubstring("a second time"));
  // Without a gradient only a loss marked as backward's root, and only alone.
  const Variable y = ops::log_softmax(vx);
  const BackwardRoot unknown[] = {{y.edge(), Tensor()}};
  CHECK_THROWS_WITH(run_backward(unknown), ContainsSubstring("backward of log_softmax got no gradient"));
  const BackwardRoot two[] = {{loss().edge(), Tensor()}, {loss().edge(), from_values<float>({}, {1})}};
  CHECK_THROWS_WITH(run_backward(two), ContainsSubstring("backward of nll_loss got no gradient"));
  const NoGrad off;
  CHECK_FALSE(ops::nll_loss(y, labels).requires_grad());
}

TEST_CASE("linear_log_softmax has the bits of its operators one by one, forward and back") {
  Mt19937 generator(57);
  for (int i = 0; i < 40; ++i) {
    const std::int64_t rows = generator.randint(1, 140), in = generator.randint(1, 150),
                       classes = i % 4 == 0 ? generator.randint(33, 300) : generator.randint(1, 33);
    const Array x = random_array({rows, in}, generator), w = random_array({classes, in}, generator),
                b = random_array({classes}, generator), dy = random_array({rows, classes}, generator);
    const Tensor labels = labels_of(random_labels(rows, classes, generator));
    const bool biased = i % 5 != 0, with_loss = i % 2 == 0;
    CAPTURE(i, rows, in, classes, biased, with_loss);
    Variable vx[2], vw[2], vb[2], y[2];
    for (int k = 0; k < 2; ++k) {
      vx[k] = Variable(to_tensor(x).set_stamp({3, 40, 400}), i % 3 != 0);
      vw[k] = leaf(w);
      vb[k] = biased ? leaf(b) : Variable();
      y[k] = k == 0 ? ops::linear_log_softmax(vx[k], vw[k], vb[k]) : ops::log_softmax(ops::linear(vx[k], vw[k], vb[k]));
      if (with_loss) {
        ops::nll_loss(y[k], labels).backward();
      } else {
        backward(y[k], dy);
      }
    }
    CHECK(y[0].value().stamp() == y[1].value().stamp());
    CHECK(same_bits(y[0].value(), y[1].value()));
    CHECK(relative_error(y[0].value(), reference::log_softmax(reference::linear(x, w, biased ? b : Array()))) <
          kTolerance);
    if (i % 3 != 0) CHECK(same_bits(vx[0].grad(), vx[1].grad()));
    CHECK(same_bits(vw[0].grad(), vw[1].grad()));
    if (biased) CHECK(same_bits(vb[0].grad(), vb[1].grad()));
  }
  CHECK_FALSE(ops::linear_log_softmax(zeros({2, 3}), zeros({4, 3}), Variable()).requires_grad());
  CHECK_THROWS_WITH(ops::linear_log_softmax(zeros({2, 3}), zeros({4, 2}), Variable()),
                    ContainsSubstring("linear_log_softmax: input [2, 3] and weights [4, 2] disagree"));
}

TEST_CASE("the gradients of linear_log_softmax and nll_loss are the loss's slopes") {
  Mt19937 generator(58);
  const Array x = random_array({6, 5}, generator), w = random_array({4, 5}, generator),
              b = random_array({4}, generator);
  const Tensor labels = labels_of(random_labels(6, 4, generator));
  const Variable vx = leaf(x), vw = leaf(w), vb = leaf(b);
  const auto loss = [&] { return ops::nll_loss(ops::linear_log_softmax(vx, vw, vb), labels); };
  loss().backward();
  constexpr float kStep = 1.0f / 128;  // exact, and far above the rounding of the loss
  for (const Variable& v : {vx, vw, vb})
    for (std::int64_t i = 0; i < v.value().count(); ++i) {
      float& entry = v.value().data<float>()[i];
      const float middle = entry;
      entry = middle + kStep;
      const float above = loss().item();
      entry = middle - kStep;
      const float below = loss().item();
      entry = middle;
      CHECK(std::abs((above - below) / (2 * kStep) - v.grad().data<float>()[i]) < 1e-3f);
    }
}
