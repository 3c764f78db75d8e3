// Losses, accuracy, updates and the gathering of images on a GPU against the reference and the CPU.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "tests/cuda/gpu.h"

using namespace duet;
using namespace duet_test;

DUET_CUDA_TEST("cuda: log_softmax and nll_loss equal the reference, and stay finite for large inputs") {
  Mt19937 generator(121);
  struct Sizes {
    std::int64_t rows, classes;
  };
  for (const Sizes& s : {Sizes{1, 1}, Sizes{3, 10}, Sizes{17, 33}, Sizes{128, 10}, Sizes{600, 2}})
    for (const bool large : {false, true}) {
      Array x = random_array({s.rows, s.classes}, generator);
      if (large)
        for (double& value : x.values) value = 8 * std::round(value * 100);  // up to 800: exp overflows
      const Array dy = random_array(x.shape, generator), y = reference::log_softmax(x);
      const std::vector<std::int64_t> labels = random_labels(s.rows, s.classes, generator);
      CAPTURE(s.rows, s.classes, large);
      const Variable vx = gpu_leaf(x), vy = ops::log_softmax(vx);
      CHECK(gpu_error(vy.value(), y) < kTolerance);
      vy.backward(on_gpu(dy));
      CHECK(gpu_error(vx.grad(), reference::log_softmax_backward(x, dy)) < kTolerance);
      const Variable vz = gpu_leaf(x), loss = ops::nll_loss(vz, on_gpu(label_tensor(labels)));
      const double expected = reference::nll_loss(x, labels);
      CHECK(std::abs(static_cast<double>(loss.item()) - expected) <= kTolerance * std::max(1.0, std::abs(expected)));
      loss.backward();
      CHECK(gpu_error(vz.grad(), reference::nll_loss_backward(x, labels)) < kTolerance);
    }
}

DUET_CUDA_TEST("cuda: the gradient of nll_loss behind log_softmax equals that of the two one by one") {
  Mt19937 generator(128);
  for (const std::int64_t rows : {1, 17, 600})
    for (const std::int64_t classes : {1, 10, 33}) {
      const Array x = random_array({rows, classes}, generator);
      const std::vector<std::int64_t> list = random_labels(rows, classes, generator);
      const Tensor labels = on_gpu(label_tensor(list)), start = on_gpu(from_values<float>({}, {-2.5f}));
      const Variable vx = gpu_leaf(x), y = ops::log_softmax(vx), loss = ops::nll_loss(y, labels);
      loss.backward(start);
      const Tensor dy = empty(x.shape, DType::f32, kGpu), dx = empty(x.shape, DType::f32, kGpu);
      backend(dy).nll_loss_backward(start, labels, 1.0f / static_cast<float>(rows), dy);
      backend(dy).log_softmax_backward(y.value(), dy, dx);
      CAPTURE(rows, classes);
      CHECK(gpu_error(vx.grad(), as_array(dx)) < 1e-6);
      Array expected = reference::log_softmax_backward(x, reference::nll_loss_backward(x, list));
      for (double& value : expected.values) value *= -2.5;
      CHECK(gpu_error(vx.grad(), expected) < kTolerance);
    }
}

DUET_CUDA_TEST("cuda: nll_loss and its gradient for a start from 1, in one kernel, have the bits of two") {
  Backend &gpu = backend(DeviceKind::cuda), &cpu = backend(DeviceKind::cpu);
  Mt19937 generator(129);
  struct Sizes {
    std::int64_t rows, classes;
  };
  // One row and one class, more classes than threads, whole blocks and one more, many blocks, no rows.
  for (const Sizes& s : {Sizes{1, 1}, Sizes{1, 1000}, Sizes{3, 10}, Sizes{17, 33}, Sizes{128, 10}, Sizes{129, 1},
                         Sizes{130, 2}, Sizes{600, 7}, Sizes{0, 10}}) {
    const Array y = reference::log_softmax(random_array({s.rows, s.classes}, generator));
    const std::vector<std::int64_t> list = random_labels(s.rows, s.classes, generator);
    const Tensor place = gpu_view(y, 1), labels = on_gpu(label_tensor(list)), one = on_gpu(Array({1}));
    gpu.fill(one, 1.0f);
    const float factor = 1.0f / static_cast<float>(s.rows), shared = factor / 4;
    const auto scalar = [] { return empty({}, DType::f32, kGpu); };
    const auto gradient = [&] { return empty(y.shape, DType::f32, kGpu); };
    const Tensor loss = scalar(), dx = gradient(), loss_alone = scalar(), dx_alone = gradient();
    gpu.log_softmax_nll_forward(place, labels, factor, loss, shared, dx);
    gpu.nll_loss_forward(place, labels, factor, loss_alone);
    gpu.log_softmax_nll_backward(one.reshape({}), place, labels, shared, dx_alone);
    CAPTURE(s.rows, s.classes);
    CHECK(std::memcmp(on_cpu(loss).raw(), on_cpu(loss_alone).raw(), sizeof(float)) == 0);
    CHECK(as_array(dx).values == as_array(dx_alone).values);
    const Tensor cpu_loss = empty({}), cpu_dx = empty(y.shape);
    cpu.log_softmax_nll_forward(to_tensor(y), label_tensor(list), factor, cpu_loss, shared, cpu_dx);
    CHECK(gpu_error(dx, as_array(cpu_dx)) < kTolerance);
    if (s.rows > 0) CHECK(gpu_error(loss, as_array(cpu_loss)) < kTolerance);
  }
}

DUET_CUDA_TEST("cuda: linear_log_softmax equals its operators one by one, and the CPU's") {
  Mt19937 generator(130);
  struct Sizes {
    std::int64_t rows, in, classes;
  };
  for (const Sizes& s :
       {Sizes{1, 7, 1}, Sizes{3, 65, 10}, Sizes{17, 31, 33}, Sizes{1, 5, 1000}, Sizes{130, 8, 10}, Sizes{5, 3, 129}})
    for (const bool biased : {true, false}) {
      const Array x = random_array({s.rows, s.in}, generator), w = random_array({s.classes, s.in}, generator),
                  b = random_array({s.classes}, generator);
      const std::vector<std::int64_t> list = random_labels(s.rows, s.classes, generator);
      CAPTURE(s.rows, s.in, s.classes, biased);
      Variable vx[3], vw[3], vb[3], y[3], loss[3];
      for (int k = 0; k < 3; ++k) {  // fused, one by one, and fused on the CPU
        vx[k] = Variable(k < 2 ? on_gpu(x) : to_tensor(x), true);
        vw[k] = Variable(k < 2 ? gpu_view(w, 1) : to_tensor(w), true);
        if (biased) vb[k] = Variable(k < 2 ? gpu_view(b, 3) : to_tensor(b), true);
        y[k] =
            k == 1 ? ops::log_softmax(ops::linear(vx[k], vw[k], vb[k])) : ops::linear_log_softmax(vx[k], vw[k], vb[k]);
        loss[k] = ops::nll_loss(y[k], k < 2 ? on_gpu(label_tensor(list)) : label_tensor(list));
        loss[k].backward();
      }
      CHECK(as_array(y[0].value()).values == as_array(y[1].value()).values);
      CHECK(loss[0].item() == loss[1].item());
      CHECK(as_array(vw[0].grad()).values == as_array(vw[1].grad()).values);
      CHECK(gpu_error(y[0].value(), reference::log_softmax(reference::linear(x, w, biased ? b : Array()))) <
            kTolerance);
      CHECK(gpu_error(y[0].value(), as_array(y[2].value())) < kTolerance);
      CHECK(gpu_error(vx[0].grad(), as_array(vx[2].grad())) < kTolerance);
      CHECK(gpu_error(vw[0].grad(), as_array(vw[2].grad())) < kTolerance);
      if (biased) CHECK(gpu_error(vb[0].grad(), as_array(vb[2].grad())) < kTolerance);
    }
  CHECK(ops::linear_log_softmax(Variable(zeros({0, 5}, DType::f32, kGpu)), Variable(zeros({3, 5}, DType::f32, kGpu)),
                                Variable(zeros({3}, DType::f32, kGpu)))
            .shape() == Shape{0, 3});
}

DUET_CUDA_TEST("cuda: a label out of bounds has no gradient, and is reported") {
  const float sixth = 1.0f / 6.0f;
  const double values[] = {-sixth, sixth, 0, 0, sixth, -sixth};
  for (const bool from_one : {true, false}) {
    const Variable x = gpu_leaf(Array({3, 2}));
    const Variable loss = ops::nll_loss(ops::log_softmax(x), on_gpu(label_tensor({0, 2, 1})));
    if (from_one) {
      loss.backward();
    } else {
      const Tensor one = empty({}, DType::f32, kGpu);
      backend(one).fill(one, 1.0f);
      loss.backward(one);
    }
    CAPTURE(from_one);
    CHECK_THROWS_AS(backend(DeviceKind::cuda).synchronize(kGpu), ShapeError);
    const Array gradient = as_array(x.grad());
    for (int i = 0; i < 6; ++i) CHECK(std::abs(gradient[i] - values[i]) < 1e-6);
  }
}

DUET_CUDA_TEST("cuda: the gradient of a stamped shard is its share of the global mean") {
  Mt19937 generator(122);
  const Array x = random_array({4, 5}, generator);
  Tensor shard = on_gpu(x);
  shard.set_stamp({0, 8, 16});
  const std::vector<std::int64_t> labels = random_labels(4, 5, generator);
  const Variable vx(shard, true), loss = ops::nll_loss(vx, on_gpu(label_tensor(labels)));
  CHECK(std::abs(static_cast<double>(loss.item()) - reference::nll_loss(x, labels)) < kTolerance);
  loss.backward();
  Array dx = reference::nll_loss_backward(x, labels);
  for (double& value : dx.values) value /= 4;
  CHECK(gpu_error(vx.grad(), dx) < kTolerance);
}

DUET_CUDA_TEST("cuda: a label out of bounds is an error at the next synchronisation, and only once") {
  Mt19937 generator(123);
  const Variable x = gpu_leaf(random_array({4, 3}, generator));
  for (const std::int64_t bad : {3, -1, 1000}) {
    CAPTURE(bad);
    const Variable loss = ops::nll_loss(x, on_gpu(label_tensor({0, 1, bad, 7})));
    try {
      loss.item();
      FAIL("nothing was thrown");
    } catch (const ShapeError& error) {
      CHECK_THAT(error.what(),
                 ContainsSubstring(concat("Target ", bad, " is out of bounds. (row 2, expected 0 to 2)")));
    }
    const Variable good = ops::nll_loss(x, on_gpu(label_tensor({0, 1, 2, 0})));
    CHECK(std::isfinite(good.item()));
  }
}

DUET_CUDA_TEST("cuda: mse_loss equals the reference, also over many blocks") {
  Mt19937 generator(124);
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{17, 2, 3, 5}, Shape{10, 1000}}) {
    const Array x = random_array(shape, generator), target = random_array(shape, generator);
    CAPTURE(shape.str());
    const Variable vx = gpu_leaf(x), loss = ops::mse_loss(vx, on_gpu(target));
    CHECK(std::abs(static_cast<double>(loss.item()) - reference::mse_loss(x, target)) < kTolerance);
    loss.backward();
    CHECK(gpu_error(vx.grad(), reference::mse_loss_backward(x, target)) < kTolerance);
  }
}

DUET_CUDA_TEST("cuda: losses of an empty batch are nan, as in PyTorch") {
  const Variable x(zeros({0, 10}, DType::f32, kGpu));
  CHECK(std::isnan(ops::nll_loss(x, empty({0}, DType::i64, kGpu)).item()));
  CHECK(std::isnan(ops::mse_loss(x, zeros({0, 10}, DType::f32, kGpu)).item()));
}

DUET_CUDA_TEST("cuda: count_correct counts as the CPU does, ties and NaN included") {
  Mt19937 generator(125);
  for (const std::int64_t rows : {0, 1, 17, 700}) {
    const Tensor x = to_tensor(random_grid({rows, 5}, 2, 1, generator));
    if (rows == 17) x.data<float>()[5] = x.data<float>()[12] = std::nanf("");  // first of its row, and not
    const Tensor labels = label_tensor(random_labels(rows, 5, generator));
    CAPTURE(rows);
    CHECK(backend(DeviceKind::cuda).count_correct(on_gpu(x), on_gpu(labels)) ==
          backend(DeviceKind::cpu).count_correct(x, labels));
  }
}

DUET_CUDA_TEST("cuda: fill, scale and sgd_step do what the CPU does") {
  Mt19937 generator(126);
  Backend &cpu = backend(DeviceKind::cpu), &gpu = backend(DeviceKind::cuda);
  const SGDRule rules[] = {{.lr = 0.1f},
                           {.lr = 0.01f, .momentum = 0.5f},
                           {.lr = 0.01f, .momentum = 0.9f, .first = true},
                           {.lr = 0.1f, .momentum = 0.9f, .dampening = 0.1f, .weight_decay = 0.01f},
                           {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true}};
  for (const SGDRule& rule : rules)
    for (const std::int64_t count : {1, 5, 64, 1003}) {
      const Array value = random_array({count}, generator), gradient = random_array({count}, generator),
                  buffer = random_array({count}, generator);
      const Tensor v = to_tensor(value), m = rule.momentum != 0 ? to_tensor(buffer) : Tensor();
      const Tensor gv = gpu_view(value, 1), gm = m.defined() ? gpu_view(buffer, 2) : Tensor();
      cpu.sgd_step(v, to_tensor(gradient), m, rule, 0, 1);
      gpu.sgd_step(gv, gpu_view(gradient, 3), gm, rule, 0, 1);
      CAPTURE(rule.momentum, rule.dampening, rule.nesterov, rule.first, count);
      CHECK(gpu_error(gv, as_array(v)) < 1e-6);
      if (m.defined()) CHECK(gpu_error(gm, as_array(m)) < 1e-6);
    }
  const Tensor x = gpu_view(Array({37}), 1);
  gpu.fill(x, 3.0f);
  gpu.scale(x, 0.5f);
  for (const double entry : as_array(x).values) CHECK(entry == 1.5);
}

DUET_CUDA_TEST("cuda: updates by fours have the bits of updates one by one, and leave their neighbours alone") {
  Backend& gpu = backend(DeviceKind::cuda);
  Mt19937 generator(131);
  // Alike, the arrays are updated by fours, behind those before the first multiple of 16 bytes; else one by one.
  for (const std::int64_t skip : {0, 1, 3})
    for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 1030}) {
      Array start[4];
      for (Array& array : start) array = random_array({count}, generator);
      for (double& entry : start[3].values) entry *= entry;
      CAPTURE(skip, count);
      for (int rule = 0; rule < 4; ++rule) {
        std::vector<double> updated[2];
        for (const bool alike : {true, false}) {
          Tensor flat[4], view[4];
          for (int i = 0; i < 4; ++i) {
            const std::int64_t at = skip + (alike || i != 1 ? 0 : 1);
            flat[i] = on_gpu(Array({count + 8}));
            view[i] = flat[i].slice(at, {count});
            copy(to_tensor(start[i]), view[i]);
          }
          const auto& [value, gradient, first, second] = view;
          if (rule == 0) gpu.sgd_step(value, gradient, {}, {.lr = 0.1f, .weight_decay = 0.01f}, 0, 1);
          if (rule == 1) gpu.sgd_step(value, gradient, first, {.lr = 0.1f, .momentum = 0.9f}, 0, 1);
          if (rule == 2) gpu.sgd_step(value, gradient, first, {.lr = 0.1f, .momentum = 0.9f, .first = true}, 0, 1);
          if (rule == 3) gpu.adam_step(value, gradient, first, second, {.step = 3}, 0, 1);
          for (const int i : {0, 2, 3}) {
            const std::vector<double> all = as_array(flat[i]).values;
            CHECK(std::all_of(all.begin(), all.begin() + skip, [](double entry) { return entry == 0; }));
            CHECK(std::all_of(all.begin() + skip + count, all.end(), [](double entry) { return entry == 0; }));
            updated[alike].insert(updated[alike].end(), all.begin() + skip, all.begin() + skip + count);
          }
        }
        CAPTURE(rule);
        CHECK(updated[0] == updated[1]);
      }
    }
}

DUET_CUDA_TEST("cuda: adam_step does what the CPU does") {
  Mt19937 generator(128);
  Backend &cpu = backend(DeviceKind::cpu), &gpu = backend(DeviceKind::cuda);
  const AdamRule rules[] = {{},
                            {.weight_decay = 0.1, .step = 3},
                            {.lr = 0.03, .beta1 = 0.8, .weight_decay = 0.3, .decoupled = true, .step = 20}};
  for (const AdamRule& rule : rules)
    for (const std::int64_t count : {1, 5, 64, 1003}) {
      const Array value = random_array({count}, generator), gradient = random_array({count}, generator),
                  first = random_array({count}, generator);
      Array second = random_array({count}, generator);
      for (double& entry : second.values) entry *= entry;
      const Tensor v = to_tensor(value), m = to_tensor(first), s = to_tensor(second);
      const Tensor gv = gpu_view(value, 1), gm = gpu_view(first, 2), gs = gpu_view(second, 3);
      cpu.adam_step(v, to_tensor(gradient), m, s, rule, 0, 1);
      gpu.adam_step(gv, gpu_view(gradient, 1), gm, gs, rule, 0, 1);
      CAPTURE(rule.step, count);
      CHECK(gpu_error(gv, as_array(v)) < 1e-6);
      CHECK(gpu_error(gm, as_array(m)) < 1e-6);
      CHECK(gpu_error(gs, as_array(s)) < 1e-6);
    }
}

DUET_CUDA_TEST("cuda: images are gathered with the CPU's bits") {
  Mt19937 generator(127);
  for (const Shape& image : {Shape{7, 28, 28}, Shape{5, 3, 3}, Shape{4, 1, 1}}) {
    const Tensor rows = empty(image, DType::u8);
    for (std::uint8_t& byte : rows.span<std::uint8_t>()) byte = static_cast<std::uint8_t>(generator.randint(0, 256));
    const Tensor indices = label_tensor(random_labels(17, image[0], generator));
    const Shape shape = {17, 1, image[1], image[2]};
    const Tensor y = empty(shape), gpu_y = empty(shape, DType::f32, kGpu);
    backend(DeviceKind::cpu).gather_images(rows, {}, indices, 0.1307f, 0.3081f, y, {});
    backend(DeviceKind::cuda).gather_images(on_gpu(rows), {}, on_gpu(indices), 0.1307f, 0.3081f, gpu_y, {});
    CAPTURE(image.str());
    CHECK(std::memcmp(on_cpu(gpu_y).raw(), y.raw(), y.bytes()) == 0);
  }
}
