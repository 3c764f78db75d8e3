// Linear layers, pools, elementwise operators and batch norm on a GPU against the reference and the CPU.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/ops/ops.h"
#include "tests/cuda/gpu.h"
#include "tests/support/difference.h"

using namespace duet;
using namespace duet_test;

DUET_CUDA_TEST("cuda: linear and its gradients equal the reference, in every precision") {
  Mt19937 generator(111);
  struct Sizes {
    std::int64_t rows, in, out;
  };
  for (const Sizes& s : {Sizes{1, 7, 3}, Sizes{3, 65, 33}, Sizes{17, 31, 10}, Sizes{17, 1, 1}, Sizes{128, 10, 40}})
    for (const Precision precision : kPrecisions) {
      if (precision != Precision::fp32 && s.in < 5) continue;  // one rounded product alone may be off by more
      const WithPrecision set(precision);
      const double allowed = tolerance(precision);
      const Array x = random_array({s.rows, s.in}, generator), w = random_array({s.out, s.in}, generator),
                  b = random_array({s.out}, generator), dy = random_array({s.rows, s.out}, generator);
      const auto g = reference::linear_backward(x, w, dy);
      CAPTURE(s.rows, s.in, s.out, name(precision));
      // Not at aligned places, as in a flat buffer.
      const Variable vx = gpu_leaf(x), vw(gpu_view(w, 1), true), vb(gpu_view(b, 3), true);
      const Variable vy = ops::linear(vx, vw, vb);
      CHECK(gpu_error(vy.value(), reference::linear(x, w, b)) < allowed);
      vy.backward(on_gpu(dy));
      CHECK(gpu_error(vx.grad(), g.x) < allowed);
      CHECK(gpu_error(vw.grad(), g.w) < allowed);
      CHECK(gpu_error(vb.grad(), g.b) < kTolerance);
      CHECK(gpu_error(ops::linear(vx, vw, Variable()).value(), reference::linear(x, w, Array())) < allowed);
    }
}

DUET_CUDA_TEST("cuda: linear_relu_dropout equals its operators one by one, and drops what the CPU drops") {
  Mt19937 generator(116);
  struct Sizes {
    std::int64_t rows, in, out;
  };
  for (const Sizes& s : {Sizes{1, 7, 3}, Sizes{3, 65, 33}, Sizes{17, 10, 128}, Sizes{5, 8, 300}})
    for (const float p : {0.0f, 0.4f}) {
      const DropoutKey key = {7, 12, 3, p};
      const Array x = random_array({s.rows, s.in}, generator), w = random_array({s.out, s.in}, generator),
                  b = random_array({s.out}, generator), dy = random_array({s.rows, s.out}, generator);
      CAPTURE(s.rows, s.in, s.out, p);
      Variable vx[3], vw[3], vb[3], y[3];
      for (int k = 0; k < 3; ++k) {  // fused, one by one, and fused on the CPU
        Tensor rows = k < 2 ? on_gpu(x) : to_tensor(x);
        rows.set_stamp({12, 8, 64});
        vx[k] = Variable(rows, true);
        vw[k] = Variable(k < 2 ? gpu_view(w, 1) : to_tensor(w), true);
        vb[k] = Variable(k < 2 ? gpu_view(b, 3) : to_tensor(b), true);
        y[k] = k == 1 ? ops::dropout(ops::relu(ops::linear(vx[k], vw[k], vb[k])), key)
                      : ops::linear_relu_dropout(vx[k], vw[k], vb[k], key);
        y[k].backward(k < 2 ? on_gpu(dy) : to_tensor(dy));
      }
      for (const int k : {1, 2}) {  // to rounding: small layers alone are products of an own kernel, not of cuBLAS
        CHECK(gpu_error(y[0].value(), as_array(y[k].value())) < kTolerance);
        CHECK(gpu_error(vx[0].grad(), as_array(vx[k].grad())) < kTolerance);
        CHECK(gpu_error(vw[0].grad(), as_array(vw[k].grad())) < kTolerance);
        CHECK(gpu_error(vb[0].grad(), as_array(vb[k].grad())) < kTolerance);
      }
      // Without a bias, and with only some of the gradients.
      const Variable bare = ops::linear_relu_dropout(vx[0], vw[0].detach(), Variable(), key);
      const Variable apart = ops::dropout(ops::relu(ops::linear(vx[0], vw[0], Variable())), key);
      CHECK(gpu_error(bare.value(), as_array(apart.value())) < kTolerance);
      vx[0].zero_grad();
      bare.backward(on_gpu(dy));
      CHECK(vx[0].grad().defined());
    }
}

DUET_CUDA_TEST("cuda: relu and linear_relu_dropout pass the gradient of NaN and infinity") {
  const float nan = std::nanf(""), inf = INFINITY;
  const auto passed = [](const Tensor& gradient) { return as_array(gradient).values; };
  const Variable x(on_gpu(from_values<float>({1, 5}, {nan, inf, -inf, 0, 2})), true);
  ops::relu(x).backward(on_gpu(from_values<float>({1, 5}, {1, 2, 3, 4, 5})));
  CHECK(passed(x.grad()) == std::vector<double>{1, 2, 0, 0, 5});
  // Weights of zero: an output is its bias.
  const Variable b(on_gpu(from_values<float>({5}, {nan, inf, -inf, 0, 2})), true);
  const Variable w(zeros({5, 5}, DType::f32, kGpu), true), image(zeros({1, 5}, DType::f32, kGpu), true);
  const Variable y = ops::linear_relu_dropout(image, w, b, {});
  CHECK(std::isnan(as_array(y.value())[0]));
  y.backward(on_gpu(from_values<float>({1, 5}, {1, 2, 3, 4, 5})));
  CHECK(passed(b.grad()) == std::vector<double>{1, 2, 0, 0, 5});
}

DUET_CUDA_TEST("cuda: linear of no rows has gradients of zero") {
  const Variable x(zeros({0, 5}, DType::f32, kGpu), true), w(zeros({3, 5}, DType::f32, kGpu), true),
      b(zeros({3}, DType::f32, kGpu), true);
  const Variable y = ops::linear(x, w, b);
  CHECK(y.shape() == Shape{0, 3});
  y.backward(zeros({0, 3}, DType::f32, kGpu));
  CHECK(gpu_error(w.grad(), Array({3, 5})) == 0);
  CHECK(gpu_error(b.grad(), Array({3})) == 0);
}

DUET_CUDA_TEST("cuda: max_pool2d equals the reference, ties and overlapping windows included") {
  Mt19937 generator(112);
  struct Case {
    Shape x;
    Window2d window;
  };
  const Case cases[] = {{{1, 1, 2, 2}, {2, 2, 2, 2, 0, 0}}, {{3, 2, 7, 9}, {2, 2, 2, 2, 0, 0}},
                        {{2, 3, 8, 7}, {3, 3, 1, 1, 1, 1}}, {{17, 1, 5, 6}, {3, 2, 2, 1, 1, 0}},
                        {{1, 2, 9, 9}, {2, 2, 3, 3, 0, 0}}, {{2, 1, 6, 5}, {1, 3, 1, 2, 0, 1}}};
  for (const Case& c : cases)
    for (const bool ties : {false, true}) {
      const Array x = ties ? random_grid(c.x, 2, 1, generator) : random_array(c.x, generator);
      const Array y = reference::max_pool2d(x, c.window), dy = random_array(y.shape, generator);
      CAPTURE(c.x.str(), c.window.kernel_h, c.window.kernel_w, c.window.stride_h, c.window.pad_h, ties);
      const Variable vx = gpu_leaf(x), vy = ops::max_pool2d(vx, c.window);
      CHECK(gpu_error(vy.value(), y) == 0);
      vy.backward(on_gpu(dy));
      CHECK(gpu_error(vx.grad(), reference::max_pool2d_backward(x, dy, c.window)) < kTolerance);
      const Tensor cpu_y = empty(y.shape), cpu_index = empty(y.shape, DType::u8),
                   index = empty(y.shape, DType::u8, kGpu);
      backend(DeviceKind::cpu).max_pool2d_forward(to_tensor(x), cpu_y, cpu_index, c.window);
      backend(DeviceKind::cuda).max_pool2d_forward(vx.value(), empty(y.shape, DType::f32, kGpu), index, c.window);
      CHECK(bytes_of(index) == bytes_of(cpu_index));
    }
}

DUET_CUDA_TEST("cuda: max_pool2d lets NaN through and sends the gradient of -infinity into the image") {
  const float nan = std::nanf(""), inf = INFINITY;
  const Variable x(on_gpu(from_values<float>({1, 2, 2, 2}, {1, nan, 3, 2, -inf, -inf, -inf, -inf})), true);
  const Variable y = ops::max_pool2d(x, {2, 2, 2, 2, 0, 0});
  const Array values = as_array(y.value());
  CHECK(std::isnan(values[0]));
  CHECK(values[1] == -INFINITY);
  y.backward(on_gpu(from_values<float>({1, 2, 1, 1}, {5, 7})));
  CHECK(as_array(x.grad()).values == std::vector<double>{0, 5, 0, 0, 7, 0, 0, 0});
  const Variable padded(on_gpu(from_values<float>({1, 1, 2, 2}, {-inf, -inf, -inf, -inf})), true);
  ops::max_pool2d(padded, {2, 2, 2, 2, 1, 1}).backward(on_gpu(from_values<float>({1, 1, 2, 2}, {1, 2, 3, 4})));
  CHECK(as_array(padded.grad()).values == std::vector<double>{1, 2, 3, 4});
}

DUET_CUDA_TEST("cuda: relu and add equal the reference") {
  Mt19937 generator(113);
  for (const Shape& shape : {Shape{1}, Shape{3, 7}, Shape{17, 1, 5, 3}, Shape{2, 8, 16, 16}}) {
    const Array a = random_grid(shape, 3, 2, generator), b = random_array(shape, generator),
                dy = random_array(shape, generator);
    CAPTURE(shape.str());
    const Variable va(gpu_view(a, 1), true), vb = gpu_leaf(b), vc = gpu_leaf(a);
    const Variable rectified = ops::relu(vc), sum = ops::add(va, vb);
    CHECK(gpu_error(rectified.value(), reference::relu(a)) == 0);
    CHECK(gpu_error(sum.value(), reference::add(a, b)) < kTolerance);
    rectified.backward(on_gpu(dy));
    sum.backward(on_gpu(dy));
    CHECK(gpu_error(vc.grad(), reference::relu_backward(a, dy)) == 0);
    CHECK(gpu_error(va.grad(), dy) == 0);
    CHECK(gpu_error(vb.grad(), dy) == 0);
  }
}

DUET_CUDA_TEST("cuda: dropout's masks are the CPU's, bit for bit") {
  for (const std::int64_t columns : {1, 16, 100, 128, 129, 300, 1000})
    for (const std::int64_t rows : {1, 3, 17}) {
      Tensor mask = empty({rows, columns}, DType::u8), gpu_mask = empty({rows, columns}, DType::u8, kGpu);
      mask.set_stamp({41, 1000, 4096});
      gpu_mask.set_stamp(mask.stamp());
      const DropoutKey key = {0x123456789abcdefULL, 41, 9, 0.3f};
      backend(DeviceKind::cpu).dropout_mask(mask, key);
      backend(DeviceKind::cuda).dropout_mask(gpu_mask, key);
      CAPTURE(rows, columns);
      CHECK(bytes_of(gpu_mask) == bytes_of(mask));
    }
}

DUET_CUDA_TEST("cuda: dropout applies its mask in both directions") {
  Mt19937 generator(114);
  const Array x = random_array({5, 300}, generator), dy = random_array(x.shape, generator);
  const DropoutKey key = {7, 1, 3, 0.4f};
  const Tensor mask = empty(x.shape, DType::u8);
  backend(DeviceKind::cpu).dropout_mask(mask, key);
  const Variable vx = gpu_leaf(x), vy = ops::dropout(vx, key);
  CHECK(gpu_error(vy.value(), reference::dropout(x, bytes_of(mask), key.p)) < kTolerance);
  vy.backward(on_gpu(dy));
  CHECK(gpu_error(vx.grad(), reference::dropout(dy, bytes_of(mask), key.p)) < kTolerance);
}

DUET_CUDA_TEST("cuda: batch_norm2d with relu and a residual has the values and gradients of the operators one by one") {
  Mt19937 generator(117);
  const Shape shape = {3, 5, 4, 3};
  const Array x = random_array(shape, generator), second = random_array(shape, generator),
              dy = random_array(shape, generator), scale = random_array({5}, generator);
  for (const bool with_residual : {true, false})
    for (const bool training : {true, false}) {
      const auto run = [&](bool fused) {
        const Variable vx = gpu_leaf(x), residual = gpu_leaf(second), weight = gpu_leaf(scale), bias = gpu_leaf(scale);
        const Tensor mean = on_gpu(Array({5})), variance = on_gpu(scale);
        backend(variance).fill(variance, 2);
        Variable y = ops::batch_norm2d(vx, weight, bias, mean, variance, {.training = training, .relu = fused},
                                       fused && with_residual ? residual : Variable());
        if (!fused) y = ops::relu(with_residual ? ops::add(y, residual) : y);
        y.backward(on_gpu(dy));
        std::vector<Tensor> all = {y.value(), vx.grad(), weight.grad(), bias.grad()};
        if (with_residual) all.push_back(residual.grad());
        return all;
      };
      const std::vector<Tensor> fused = run(true), plain = run(false);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        CAPTURE(with_residual, training, i);
        const Tensor got = fused[i].to(Device{}), expected = plain[i].to(Device{});
        CHECK(relative_difference(got.span<float>(), expected.span<float>()) < kTolerance);
      }
    }
}

DUET_CUDA_TEST("cuda: batch_norm2d equals the reference in training and evaluation") {
  Mt19937 generator(115);
  for (const Shape& shape : {Shape{1, 2, 3, 5}, Shape{3, 3, 7, 1}, Shape{17, 1, 4, 4}})
    for (const bool training : {true, false}) {
      const Shape channels = {shape[1]};
      reference::BatchNorm norm = {random_array(channels, generator), random_array(channels, generator),
                                   random_array(channels, generator), Array(channels), training};
      for (double& value : norm.running_var.values) value = 0.5 + static_cast<double>(generator.randint(0, 100)) / 64;
      Array x = random_array(shape, generator);
      for (double& value : x.values) value = static_cast<double>(static_cast<float>(value + 0.75));
      const Array dy = random_array(shape, generator);
      const auto g = reference::batch_norm2d_backward(x, norm, dy);
      const Variable vx = gpu_leaf(x), weight = gpu_leaf(norm.weight), bias = gpu_leaf(norm.bias);
      const Tensor mean = on_gpu(norm.running_mean), variance = on_gpu(norm.running_var);
      const Array y = reference::batch_norm2d(x, norm);
      CAPTURE(shape.str(), training);
      const Variable vy = ops::batch_norm2d(vx, weight, bias, mean, variance, {.training = training});
      CHECK(gpu_error(vy.value(), y) < kTolerance);
      CHECK(gpu_error(mean, norm.running_mean) < kTolerance);
      CHECK(gpu_error(variance, norm.running_var) < kTolerance);
      vy.backward(on_gpu(dy));
      CHECK(gpu_error(vx.grad(), g.x) < kTolerance);
      CHECK(gpu_error(weight.grad(), g.w) < kTolerance);
      CHECK(gpu_error(bias.grad(), g.b) < kTolerance);
    }
}

DUET_CUDA_TEST("cuda: every operator refuses arguments of two devices, and says which") {
  Backend& gpu = backend(DeviceKind::cuda);
  const auto on = [](const Shape& shape, DType dtype = DType::f32) { return zeros(shape, dtype, kGpu); };
  const Tensor image = on({2, 2, 4, 4}), pooled = on({2, 2, 2, 2}), index = on({2, 2, 2, 2}, DType::u8),
               w = on({2, 2, 3, 3}), c = on({2}), rows = on({2, 3}), labels = on({2}, DType::i64), one = on({});
  const Device second{DeviceKind::cuda, 0, 1};
  const Tensor image2 = image.to(second), c2 = c.to(second), rows2 = rows.to(second), labels2 = labels.to(second),
               index2 = index.to(second), one2 = one.to(second);
  const Window2d three = {3, 3, 1, 1, 1, 1}, two = {2, 2, 2, 2, 0, 0};
  const ConvPoolRelu op = {.conv = three, .pool = two, .dropout = {}};
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"conv2d_forward", [&] { gpu.conv2d_forward(image, w, c2, image, three); }},
      {"conv2d_backward_data", [&] { gpu.conv2d_backward_data(image, w, image2, three); }},
      {"conv2d_backward_weights", [&] { gpu.conv2d_backward_weights(image, image, w, c2, three); }},
      {"max_pool2d_forward", [&] { gpu.max_pool2d_forward(image, pooled, index2, two); }},
      {"max_pool2d_backward", [&] { gpu.max_pool2d_backward(pooled, index, image2, two); }},
      {"avg_pool2d_forward", [&] { gpu.avg_pool2d_forward(image, image2, {}); }},
      {"avg_pool2d_backward", [&] { gpu.avg_pool2d_backward(image2, image, {}); }},
      {"conv_pool_relu_forward", [&] { gpu.conv_pool_relu_forward(image, w, c, pooled, index2, op); }},
      {"conv_pool_relu_backward", [&] { gpu.conv_pool_relu_backward(pooled, index, image, w, image2, w, c, op); }},
      {"linear_forward",
       [&] {
         gpu.linear_forward(rows, rows, c2, on({2, 2}));
       }},
      {"linear_backward",
       [&] {
         gpu.linear_backward(on({2, 2}), rows, rows, rows2, rows, c);
       }},
      {"linear_relu_dropout_forward",
       [&] {
         gpu.linear_relu_dropout_forward(rows, rows, c2, on({2, 2}), {});
       }},
      {"linear_relu_dropout_backward",
       [&] {
         gpu.linear_relu_dropout_backward(on({2, 2}), on({2, 2}), rows, rows, rows2, rows, c, {});
       }},
      {"relu_forward", [&] { gpu.relu_forward(rows, rows2); }},
      {"relu_backward", [&] { gpu.relu_backward(rows, rows, rows2); }},
      {"batch_norm2d_forward", [&] { gpu.batch_norm2d_forward(image, {}, c, c, c2, c, c, c, image, {}); }},
      {"batch_norm2d_backward", [&] { gpu.batch_norm2d_backward(image, {}, image, c, c, c, c, image, {}, c2, c, {}); }},
      {"log_softmax_forward", [&] { gpu.log_softmax_forward(rows, rows2); }},
      {"log_softmax_backward", [&] { gpu.log_softmax_backward(rows, rows2, rows); }},
      {"nll_loss_forward", [&] { gpu.nll_loss_forward(rows, labels2, 1, one); }},
      {"nll_loss_backward", [&] { gpu.nll_loss_backward(one2, labels, 1, rows); }},
      {"log_softmax_nll_forward", [&] { gpu.log_softmax_nll_forward(rows, labels, 1, one2, 1, rows); }},
      {"linear_log_softmax_forward",
       [&] {
         gpu.linear_log_softmax_forward(rows, rows, c2, on({2, 2}));
       }},
      {"log_softmax_nll_backward", [&] { gpu.log_softmax_nll_backward(one, rows, labels2, 1, rows); }},
      {"mse_loss_forward", [&] { gpu.mse_loss_forward(rows, rows2, 1, one); }},
      {"mse_loss_backward", [&] { gpu.mse_loss_backward(one, rows, rows2, 1, rows); }},
      {"sgd_step", [&] { gpu.sgd_step(c, c2, {}, {}, 0, 1); }},
      {"adam_step", [&] { gpu.adam_step(c, c2, c, c, {}, 0, 1); }},
      {"all_reduce_devices",
       [&] {
         gpu.all_reduce_devices({&c, 1}, {&c2, 1});
       }},
      {"gather_images", [&] { gpu.gather_images(index, labels, labels2, 0, 1, image, {}); }},
      {"pointwise",
       [&] {
         gpu.pointwise(Pointwise::copy, {2, 2}, {{.tensor = rows}, {}, {}}, {.tensor = rows2});
       }},
      {"sum", [&] { gpu.sum(rows, true, rows2); }},
      {"matmul",
       [&] {
         gpu.matmul(rows, false, rows2, true, on({2, 2}));
       }},
      {"gather_rows", [&] { gpu.gather_rows(rows, labels2, rows); }},
      {"sum_gathered_rows", [&] { gpu.sum_gathered_rows(rows, labels2, rows); }},
      {"softmax_forward", [&] { gpu.softmax_forward(rows, rows2); }},
      {"softmax_backward", [&] { gpu.softmax_backward(rows, rows2, rows); }},
      {"smoothed_nll_forward", [&] { gpu.smoothed_nll_forward(rows, labels2, 0.1f, 1, one); }},
      {"smoothed_nll_backward", [&] { gpu.smoothed_nll_backward(one2, rows, labels, 0.1f, 1, rows); }},
      {"count_in_top", [&] { gpu.count_in_top(rows, labels2, 1); }}};
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    CHECK_THROWS_AS(call(), DeviceError);
    CHECK_THROWS_WITH(call(), ContainsSubstring(name) && ContainsSubstring("cuda:0.1"));
  }
}

DUET_CUDA_TEST("cuda: an environment variable that would change the precision is refused") {
  constexpr const char* kVariable = "NVIDIA_TF32_OVERRIDE";
  Backend& gpu = backend(DeviceKind::cuda);
  const Device fresh = {DeviceKind::cuda, 0, 40};       // without handles of libraries
  const Tensor x = zeros({64, 64}, DType::f32, fresh);  // not so small that it needs no library
  ::setenv(kVariable, "1", 1);
  const std::string why =
      "NVIDIA_TF32_OVERRIDE=1 makes NVIDIA's libraries compute with TF32 whatever their settings, but precision fp32";
  CHECK_THROWS_WITH(gpu.linear_forward(x, x, {}, x), ContainsSubstring(why));
  CHECK_THROWS_WITH(gpu.set_precision(Precision::fp32), ContainsSubstring(why));
  gpu.set_precision(Precision::bf16);
  CHECK_NOTHROW(gpu.linear_forward(x, x, {}, x));
  ::setenv(kVariable, "0", 1);
  CHECK_THROWS_WITH(gpu.set_precision(Precision::tf32), ContainsSubstring("compute without TF32"));
  CHECK_NOTHROW(gpu.set_precision(Precision::fp32));
  ::unsetenv(kVariable);
}
