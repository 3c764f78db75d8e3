#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/difference.h"

namespace duet_test {

using duet::Window2d;

Array random_array(const duet::Shape& shape, duet::Mt19937& generator) {
  Array array(shape);
  std::vector<float> floats(array.values.size());
  generator.uniform(floats, -1.0, 1.0);
  std::copy(floats.begin(), floats.end(), array.values.begin());
  return array;
}

Array random_grid(const duet::Shape& shape, int limit, int denominator, duet::Mt19937& generator) {
  Array array(shape);
  for (double& value : array.values) value = static_cast<double>(generator.randint(-limit, limit + 1)) / denominator;
  return array;
}

duet::Tensor to_tensor(const Array& array) {
  const duet::Tensor tensor = duet::empty(array.shape);
  std::transform(array.values.begin(), array.values.end(), tensor.data<float>(),
                 [](double value) { return static_cast<float>(value); });
  return tensor;
}

namespace reference {
namespace {

/// Calls visit(n, k, p, q, c, r, s, h, w) for every product of a convolution.
template <class Visit>
void for_each_product(const Array& x, const Array& w, const duet::Shape& y, const Window2d& window, Visit visit) {
  const std::int64_t groups = x.shape[1] / w.shape[1];
  const auto first_of = [&](std::int64_t k) { return k / (y[1] / groups) * w.shape[1]; };  // channel of its group
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t k = 0; k < y[1]; ++k)
      for (std::int64_t c = 0; c < w.shape[1]; ++c)
        for (std::int64_t p = 0; p < y[2]; ++p)
          for (std::int64_t r = 0; r < window.kernel_h; ++r) {
            const std::int64_t h = p * window.stride_h - window.pad_h + r;
            if (h < 0 || h >= x.shape[2]) continue;
            for (std::int64_t q = 0; q < y[3]; ++q)
              for (std::int64_t s = 0; s < window.kernel_w; ++s) {
                const std::int64_t v = q * window.stride_w - window.pad_w + s;
                if (v < 0 || v >= x.shape[3]) continue;
                visit(((n * y[1] + k) * y[2] + p) * y[3] + q,
                      ((n * x.shape[1] + first_of(k) + c) * x.shape[2] + h) * x.shape[3] + v,
                      ((k * w.shape[1] + c) * w.shape[2] + r) * w.shape[3] + s);
              }
          }
}

/// Offset in x of the maximum of each window.
std::vector<std::int64_t> places_of_maxima(const Array& x, const Window2d& window, const duet::Shape& y) {
  std::vector<std::int64_t> places;
  for (std::int64_t image = 0; image < y[0] * y[1]; ++image)
    for (std::int64_t p = 0; p < y[2]; ++p)
      for (std::int64_t q = 0; q < y[3]; ++q) {
        std::int64_t best = -1;
        for (std::int64_t r = 0; r < window.kernel_h; ++r)
          for (std::int64_t s = 0; s < window.kernel_w; ++s) {
            const std::int64_t h = p * window.stride_h - window.pad_h + r, v = q * window.stride_w - window.pad_w + s;
            if (h < 0 || h >= x.shape[2] || v < 0 || v >= x.shape[3]) continue;
            const std::int64_t at = (image * x.shape[2] + h) * x.shape[3] + v;
            if (best < 0 || x[at] > x[best]) best = at;
          }
        places.push_back(best);
      }
  return places;
}

duet::Shape pooled_shape(const Array& x, const Window2d& window) {
  return {x.shape[0], x.shape[1], window.out_h(x.shape[2]), window.out_w(x.shape[3])};
}

}  // namespace

Array conv2d(const Array& x, const Array& w, const Array& b, const Window2d& window) {
  Array y({x.shape[0], w.shape[0], window.out_h(x.shape[2]), window.out_w(x.shape[3])});
  const std::int64_t pixels = y.shape.count_from(2);
  for (std::int64_t i = 0; i < y.shape.count() && !b.values.empty(); ++i) y[i] = b[i / pixels % w.shape[0]];
  for_each_product(x, w, y.shape, window,
                   [&](std::int64_t to, std::int64_t from, std::int64_t tap) { y[to] += x[from] * w[tap]; });
  return y;
}

Gradients conv2d_backward(const Array& x, const Array& w, const Array& dy, const Window2d& window) {
  Gradients g = {Array(x.shape), Array(w.shape), Array({w.shape[0]})};
  for_each_product(x, w, dy.shape, window, [&](std::int64_t to, std::int64_t from, std::int64_t tap) {
    g.x[from] += dy[to] * w[tap];
    g.w[tap] += dy[to] * x[from];
  });
  const std::int64_t pixels = dy.shape.count_from(2);
  for (std::int64_t i = 0; i < dy.shape.count(); ++i) g.b[i / pixels % w.shape[0]] += dy[i];
  return g;
}

Array max_pool2d(const Array& x, const Window2d& window) {
  Array y(pooled_shape(x, window));
  const std::vector<std::int64_t> places = places_of_maxima(x, window, y.shape);
  for (std::size_t i = 0; i < places.size(); ++i) y.values[i] = x[places[i]];
  return y;
}

Array max_pool2d_backward(const Array& x, const Array& dy, const Window2d& window) {
  Array dx(x.shape);
  const std::vector<std::int64_t> places = places_of_maxima(x, window, dy.shape);
  for (std::size_t i = 0; i < places.size(); ++i) dx[places[i]] += dy.values[i];
  return dx;
}

Array relu(const Array& x) {
  Array y = x;
  for (double& value : y.values) value = std::max(value, 0.0);
  return y;
}

Array relu_backward(const Array& x, const Array& dy) {
  Array dx = dy;
  for (std::size_t i = 0; i < x.values.size(); ++i)
    if (x.values[i] <= 0) dx.values[i] = 0;
  return dx;
}

Array dropout(const Array& x, const std::vector<std::uint8_t>& mask, double p) {
  Array y = x;
  for (std::size_t i = 0; i < mask.size(); ++i) y.values[i] *= mask[i] ? 1 / (1 - p) : 0.0;
  return y;
}

Array linear(const Array& x, const Array& w, const Array& b) {
  const std::int64_t in = w.shape[1], out = w.shape[0];
  Array y({x.shape[0], out});
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    for (std::int64_t o = 0; o < out; ++o) {
      double total = b.values.empty() ? 0.0 : b[o];
      for (std::int64_t i = 0; i < in; ++i) total += x[n * in + i] * w[o * in + i];
      y[n * out + o] = total;
    }
  return y;
}

Gradients linear_backward(const Array& x, const Array& w, const Array& dy) {
  const std::int64_t in = w.shape[1], out = w.shape[0];
  Gradients g = {Array(x.shape), Array(w.shape), Array({out})};
  for (std::int64_t n = 0; n < x.shape[0]; ++n)
    for (std::int64_t o = 0; o < out; ++o) {
      g.b[o] += dy[n * out + o];
      for (std::int64_t i = 0; i < in; ++i) {
        g.x[n * in + i] += dy[n * out + o] * w[o * in + i];
        g.w[o * in + i] += dy[n * out + o] * x[n * in + i];
      }
    }
  return g;
}

Array log_softmax(const Array& x) {
  Array y = x;
  const std::int64_t classes = x.shape[1];
  for (std::int64_t n = 0; n < x.shape[0]; ++n) {
    double largest = x[n * classes], total = 0;
    for (std::int64_t c = 0; c < classes; ++c) largest = std::max(largest, x[n * classes + c]);
    for (std::int64_t c = 0; c < classes; ++c) total += std::exp(x[n * classes + c] - largest);
    for (std::int64_t c = 0; c < classes; ++c) y[n * classes + c] -= largest + std::log(total);
  }
  return y;
}

Array log_softmax_backward(const Array& x, const Array& dy) {
  const Array y = log_softmax(x);
  Array dx = dy;
  const std::int64_t classes = x.shape[1];
  for (std::int64_t n = 0; n < x.shape[0]; ++n) {
    double total = 0;
    for (std::int64_t c = 0; c < classes; ++c) total += dy[n * classes + c];
    for (std::int64_t c = 0; c < classes; ++c) dx[n * classes + c] -= std::exp(y[n * classes + c]) * total;
  }
  return dx;
}

double nll_loss(const Array& x, const std::vector<std::int64_t>& labels) {
  double total = 0;
  for (std::size_t n = 0; n < labels.size(); ++n) total -= x[static_cast<std::int64_t>(n) * x.shape[1] + labels[n]];
  return total / static_cast<double>(labels.size());
}

Array nll_loss_backward(const Array& x, const std::vector<std::int64_t>& labels) {
  Array dx(x.shape);
  for (std::size_t n = 0; n < labels.size(); ++n)
    dx[static_cast<std::int64_t>(n) * x.shape[1] + labels[n]] = -1 / static_cast<double>(labels.size());
  return dx;
}

double mse_loss(const Array& x, const Array& target) {
  double total = 0;
  for (std::size_t i = 0; i < x.values.size(); ++i)
    total += (x.values[i] - target.values[i]) * (x.values[i] - target.values[i]);
  return total / static_cast<double>(x.values.size());
}

Array mse_loss_backward(const Array& x, const Array& target) {
  Array dx(x.shape);
  for (std::size_t i = 0; i < x.values.size(); ++i)
    dx.values[i] = 2 * (x.values[i] - target.values[i]) / static_cast<double>(x.values.size());
  return dx;
}

Array add(const Array& a, const Array& b) {
  Array y = a;
  for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] += b.values[i];
  return y;
}

namespace {

/// Mean and biased variance of one channel.
struct Statistics {
  Statistics(const Array& x, std::int64_t channel) {
    const double samples = static_cast<double>(x.shape[0] * x.shape.count_from(2));
    for_each(x, channel, [&](std::int64_t i) { mean += x[i] / samples; });
    for_each(x, channel, [&](std::int64_t i) { variance += (x[i] - mean) * (x[i] - mean) / samples; });
  }
  /// Calls visit(offset) for every element of a channel.
  template <class Visit>
  static void for_each(const Array& x, std::int64_t channel, Visit visit) {
    const std::int64_t pixels = x.shape.count_from(2);
    for (std::int64_t n = 0; n < x.shape[0]; ++n)
      for (std::int64_t i = 0; i < pixels; ++i) visit((n * x.shape[1] + channel) * pixels + i);
  }
  double mean = 0, variance = 0;
};

}  // namespace

Array batch_norm2d(const Array& x, BatchNorm& norm) {
  Array y(x.shape);
  const double samples = static_cast<double>(x.shape[0] * x.shape.count_from(2));
  for (std::int64_t c = 0; c < x.shape[1]; ++c) {
    double mean = norm.running_mean[c], variance = norm.running_var[c];
    if (norm.training) {
      const Statistics own(x, c);
      mean = own.mean, variance = own.variance;
      norm.running_mean[c] += norm.momentum * (mean - norm.running_mean[c]);
      norm.running_var[c] += norm.momentum * (variance * samples / (samples - 1) - norm.running_var[c]);
    }
    Statistics::for_each(x, c, [&](std::int64_t i) {
      y[i] = (x[i] - mean) / std::sqrt(variance + norm.eps) * norm.weight[c] + norm.bias[c];
    });
  }
  return y;
}

Gradients batch_norm2d_backward(const Array& x, const BatchNorm& norm, const Array& dy) {
  Gradients g = {Array(x.shape), Array(norm.weight.shape), Array(norm.bias.shape)};
  const double samples = static_cast<double>(x.shape[0] * x.shape.count_from(2));
  for (std::int64_t c = 0; c < x.shape[1]; ++c) {
    const Statistics own(x, c);
    const double mean = norm.training ? own.mean : norm.running_mean[c];
    const double inverse = 1 / std::sqrt((norm.training ? own.variance : norm.running_var[c]) + norm.eps);
    Statistics::for_each(x, c, [&](std::int64_t i) {
      g.w[c] += dy[i] * (x[i] - mean) * inverse;
      g.b[c] += dy[i];
    });
    Statistics::for_each(x, c, [&](std::int64_t i) {
      const double through_statistics = norm.training ? (g.b[c] + (x[i] - mean) * inverse * g.w[c]) / samples : 0.0;
      g.x[i] = norm.weight[c] * inverse * (dy[i] - through_statistics);
    });
  }
  return g;
}

Array conv_pool_relu(const Array& x, const Array& w, const Array& b, const Window2d& conv, const Window2d& pool) {
  return relu(max_pool2d(conv2d(x, w, b, conv), pool));
}

Gradients conv_pool_relu_backward(const Array& x, const Array& w, const Array& b, const Array& dy, const Window2d& conv,
                                  const Window2d& pool) {
  const Array image = conv2d(x, w, b, conv);
  const Array pooled = max_pool2d(image, pool);
  return conv2d_backward(x, w, max_pool2d_backward(image, relu_backward(pooled, dy), pool), conv);
}

}  // namespace reference

double relative_error(const duet::Tensor& tensor, const Array& expected) {
  if (!tensor.defined() || tensor.shape() != expected.shape) return std::numeric_limits<double>::infinity();
  duet::Tensor plain = tensor;
  if (tensor.layout() != duet::Layout::plain) {
    plain = duet::empty(tensor.shape());
    duet::backend(tensor).to_plain(tensor, plain);
  }
  return relative_difference(plain.span<float>(), expected.values);
}

}  // namespace duet_test
