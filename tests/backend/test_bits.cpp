// Bit-equality of gradients over shards and threads: what "the same parameters on 1, 2, 4, 8 devices" rests on.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/random.h"
#include "tests/backend/bits.h"
#include "tests/support/catch2.h"
#include "tests/support/difference.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Relative to the largest entry of `expected`.
double difference(const Tensor& got, const Tensor& expected) {
  return relative_difference(got.span<float>(), expected.span<float>());
}

/// Those in which this machine's CPU computes.
std::vector<Precision> precisions() {
  Backend& cpu = backend(DeviceKind::cpu);
  try {
    cpu.set_precision(Precision::bf16);
  } catch (const UsageError&) {
    return {Precision::fp32};
  }
  cpu.set_precision(Precision::fp32);
  return {Precision::fp32, Precision::bf16};
}

}  // namespace

TEST_CASE("gradients of 2, 4 and 8 shards sum to the very bits of the whole batch") {
  nn::SimpleCNN model(1234);
  Mt19937 generator(31);
  std::vector<std::int64_t> sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 96, 100, 128};
  for (int i = 0; i < 4; ++i) sizes.push_back(generator.randint(10, 70));
  for (const bool fused : {true, false}) {
    model.context().fuse = fused;
    for (const std::int64_t rows : sizes) {
      if (!fused && rows > 20) continue;
      const Batch batch = random_batch(rows, static_cast<std::uint64_t>(rows));
      const Tensor whole = gradient_of(model, batch);
      for (const int shards : {2, 4, 8}) {
        CAPTURE(fused, rows, shards);
        CHECK(same_bits(whole, gradient_in_shards(model, batch, shards)));
      }
    }
  }
}

TEST_CASE("a row of a linear layer has the same bits whatever the other rows of the batch are") {
  Mt19937 generator(31);
  const auto random = [&](const Shape& shape) {
    Tensor x = empty(shape);
    generator.uniform(x.span<float>(), -1, 1);
    return x;
  };
  for (const std::int64_t in : {1, 3, 5, 7, 9, 13, 16, 31, 67, 128, 800})
    for (const std::int64_t out : {1, 2, 3, 4, 5, 9, 10, 17, 67}) {
      constexpr std::int64_t kRows = 7;
      CAPTURE(in, out);
      const Tensor w = random({out, in}), b = random({out}), x = random({kRows, in}), dy = random({kRows, out});
      const Tensor y = empty({kRows, out}), dx = empty({kRows, in});
      Backend& kernels = backend(w);
      kernels.linear_forward(x, w, b, y);
      kernels.linear_backward(dy, x, w, dx, {}, {});
      for (std::int64_t rows = 1; rows < kRows; ++rows)
        for (std::int64_t first = 0; first + rows <= kRows; first += rows) {
          const Tensor part_y = empty({rows, out}), part_dx = empty({rows, in});
          kernels.linear_forward(x.rows(first, first + rows), w, b, part_y);
          kernels.linear_backward(dy.rows(first, first + rows), x.rows(first, first + rows), w, part_dx, {}, {});
          CAPTURE(first, rows);
          CHECK(same_bits(y.rows(first, first + rows), part_y));
          CHECK(same_bits(dx.rows(first, first + rows), part_dx));
        }
    }
}

namespace {

struct ConvCase {
  std::int64_t in, out, size, kernel, stride;
};

/// The gradients of weights and bias, if there is one, of rows of a batch, in one tensor.
struct ConvBatch {
  ConvBatch(const ConvCase& c, std::int64_t rows, bool has_bias, Mt19937& generator)
      : w({c.out, c.in, c.kernel, c.kernel}),
        window{c.kernel, c.kernel, c.stride, c.stride, c.kernel / 2, c.kernel / 2},
        with_bias(has_bias) {
    const auto random = [&](const Shape& shape) {
      Tensor values = empty(shape);
      generator.uniform(values.span<float>(), -1, 1);
      return values;
    };
    const Shape image = {rows, c.in, c.size, c.size};
    const Layout layout = backend(DeviceKind::cpu).conv2d_layout(image, w);
    x = in_layout(random(image), c.in == 3 ? Layout::plain : layout);
    dy = in_layout(random({rows, c.out, window.out_h(c.size), window.out_w(c.size)}), layout);
    x.set_stamp({3, 0, rows});
    dy.set_stamp({3, 0, rows});
  }

  Tensor gradient(std::int64_t begin, std::int64_t end) const {
    const Tensor all = zeros({w.count() + w[0]});
    if (begin == end) return all;
    backend(x).conv2d_backward_weights(x.rows(begin, end), dy.rows(begin, end), all.slice(0, w),
                                       with_bias ? all.slice(w.count(), {w[0]}) : Tensor(), window);
    return all;
  }

  /// Outputs for rows of the batch, and the gradients of its images unless these are plain.
  std::vector<Tensor> rows(const Tensor& weights, std::int64_t begin, std::int64_t end) const {
    const Tensor y = empty(dy.rows(begin, end).shape(), DType::f32, {}, dy.layout());
    backend(x).conv2d_forward(x.rows(begin, end), weights, {}, y, window);
    if (x.layout() != dy.layout()) return {y};
    const Tensor dx = empty(x.rows(begin, end).shape(), DType::f32, {}, x.layout());
    backend(x).conv2d_backward_data(dy.rows(begin, end), weights, dx, window);
    return {y, dx};
  }

  Tensor gradient_in_shards(int shards) const {
    std::vector<Tensor> parts;
    for (int i = 0; i < shards; ++i)
      parts.push_back(gradient(block_begin(i, x.size(0), shards), block_begin(i + 1, x.size(0), shards)));
    const Tensor sum = empty(parts[0].shape());
    backend(sum).sum_devices(parts, sum, false, 0, 1);
    return sum;
  }

  Shape w;
  Window2d window;
  bool with_bias;
  Tensor x, dy;
};

// Images of few pixels, and of so many that oneDNN takes them; the plain images of a first layer; channels for tiles.
constexpr ConvCase kConvCases[] = {{16, 32, 3, 3, 1}, {32, 16, 5, 1, 2}, {16, 16, 24, 3, 2}, {32, 32, 24, 1, 1},
                                   {3, 16, 9, 7, 2},  {64, 32, 2, 3, 1}, {32, 96, 5, 3, 2},  {32, 96, 18, 3, 1}};

}  // namespace

TEST_CASE("weight gradients of convolutions of 2, 4 and 8 shards sum to the very bits of the whole batch") {
  Mt19937 generator(31);
  for (const ConvCase& c : kConvCases)
    for (const std::int64_t rows : {5, 8, 19})
      for (const bool with_bias : {true, false})
        for (const Precision precision : precisions()) {
          const ConvBatch batch(c, rows, with_bias, generator);
          backend(DeviceKind::cpu).set_precision(precision);
          const Tensor whole = batch.gradient(0, rows);
          for (const int shards : {2, 4, 8}) {
            CAPTURE(c.in, c.out, c.size, c.kernel, rows, with_bias, name(precision), shards);
            CHECK(same_bits(whole, batch.gradient_in_shards(shards)));
          }
          backend(DeviceKind::cpu).set_precision(Precision::fp32);
        }
}

TEST_CASE("outputs and gradients of the images of a convolution have the same bits in shards") {
  Mt19937 generator(33);
  for (const ConvCase& c : kConvCases)
    for (const std::int64_t rows : {5, 19, 40})
      for (const Precision precision : precisions()) {
        const ConvBatch batch(c, rows, false, generator);
        const Tensor weights = empty(batch.w);
        generator.uniform(weights.span<float>(), -1, 1);
        backend(DeviceKind::cpu).set_precision(precision);
        const std::vector<Tensor> whole = batch.rows(weights, 0, rows);
        for (const int shards : {2, 4, 8})
          for (int i = 0; i < shards; ++i) {
            const std::int64_t begin = block_begin(i, rows, shards), end = block_begin(i + 1, rows, shards);
            if (begin == end) continue;
            const std::vector<Tensor> part = batch.rows(weights, begin, end);
            CAPTURE(c.in, c.out, c.size, c.kernel, rows, name(precision), shards, i);
            for (std::size_t k = 0; k < part.size(); ++k) CHECK(same_bits(whole[k].rows(begin, end), part[k]));
          }
        backend(DeviceKind::cpu).set_precision(Precision::fp32);
      }
}

TEST_CASE("a convolution in groups has the same bits in shards: outputs, and gradients of inputs and weights") {
  Mt19937 generator(32);
  const auto random = [&](const Shape& shape, Layout layout) {
    Tensor x = empty(shape);
    generator.uniform(x.span<float>(), -1, 1);
    return in_layout(x, layout);
  };
  struct Groups {
    std::int64_t groups, in, out;  // channels of a group
  };
  for (const Groups& c : {Groups{2, 16, 16}, Groups{32, 1, 1}, Groups{8, 4, 4}, Groups{3, 2, 5}, Groups{16, 1, 2}})
    for (const std::int64_t rows : {3, 8, 21}) {
      const Window2d window = {3, 3, 1, 1, 1, 1};
      const Tensor w = random({c.groups * c.out, c.in, 3, 3}, Layout::plain);
      Backend& kernels = backend(w);
      const Shape in = {rows, c.groups * c.in, 6, 7}, out = {rows, c.groups * c.out, 6, 7};
      const Layout layout = kernels.conv2d_layout(in, w.shape());
      Tensor x = random(in, layout), dy = random(out, layout);
      const auto run = [&](const Tensor& image, const Tensor& gradient) {
        const std::vector<Tensor> results = {empty(gradient.shape(), DType::f32, w.device(), layout),
                                             empty(image.shape(), DType::f32, w.device(), layout), empty(w.shape()),
                                             empty({w.size(0)})};
        Tensor y = results[0];
        y.set_stamp(image.stamp());
        kernels.conv2d_forward(image, w, {}, y, window);
        kernels.conv2d_backward_data(gradient, w, results[1], window);
        kernels.conv2d_backward_weights(image, gradient, results[2], results[3], window);
        return results;
      };
      x.set_stamp({0, 0, rows});
      dy.set_stamp({0, 0, rows});
      const std::vector<Tensor> whole = run(x, dy);
      for (const int shards : {2, 4, 8}) {
        CAPTURE(c.groups, c.in, c.out, rows, shards);
        std::vector<Tensor> weights, biases;
        for (int i = 0; i < shards; ++i) {
          const std::int64_t begin = block_begin(i, rows, shards), end = block_begin(i + 1, rows, shards);
          const std::vector<Tensor> part = run(x.rows(begin, end), dy.rows(begin, end));
          CHECK(same_bits(whole[0].rows(begin, end), part[0]));
          CHECK(same_bits(whole[1].rows(begin, end), part[1]));
          weights.push_back(part[2]);
          biases.push_back(part[3]);
        }
        const Tensor dw = empty(w.shape()), db = empty({w.size(0)});
        kernels.sum_devices(weights, dw, false, 0, 1);
        kernels.sum_devices(biases, db, false, 0, 1);
        CHECK(same_bits(whole[2], dw));
        CHECK(same_bits(whole[3], db));
      }
    }
}

TEST_CASE("the comparison of bits sees dropout that counts its rows from the shard") {
  // A shard that forgot its place in the batch drops other elements: the gradients are far apart, not just unequal.
  nn::SimpleCNN model(1234);
  const Batch batch = random_batch(16, 5);
  Tensor images = batch.images.rows(8, 16), labels = batch.labels.rows(8, 16);
  const Tensor right = gradient_of(model, {images, labels});
  images.set_stamp({3, 0, 16});
  labels.set_stamp({3, 0, 16});
  const double wrong = difference(gradient_of(model, {images, labels}), right);
  CHECK((wrong > 1e-2 && std::isfinite(wrong)));
}
