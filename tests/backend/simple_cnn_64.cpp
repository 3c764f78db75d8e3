#include "tests/backend/simple_cnn_64.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>

namespace duet_test {
namespace {

constexpr int kTaps = 9, kHidden = 128, kClasses = 10, kFlat = 3136;
constexpr double kScale1 = 1 / (1 - 0.25), kScale2 = 1 / (1 - 0.5);

/// One 3x3 convolution with padding 1, bias, 2x2 pool, relu and dropout of one row.
struct PooledConv {
  int in, out, size;  // channels; side of the image

  int pooled() const { return out * size * size / 4; }

  /// Calls visit(offset in the image, tap) for the pixels that reach output (row, column) from one channel.
  template <class Visit>
  void for_taps(int row, int column, Visit visit) const {
    for (int t = 0; t < kTaps; ++t) {
      const int r = row + t / 3 - 1, c = column + t % 3 - 1;
      if (r >= 0 && r < size && c >= 0 && c < size) visit(r * size + c, t);
    }
  }

  double output(const double* x, const double* w, double bias, int row, int column) const {
    double total = bias;
    for (int c = 0; c < in; ++c)
      for_taps(row, column, [&](int pixel, int t) { total += x[c * size * size + pixel] * w[c * kTaps + t]; });
    return total;
  }

  /// places: chosen here unless `given`.
  void forward(const double* x, const double* w, const double* b, const std::uint8_t* keep, double scale, bool given,
               std::uint8_t* places, double* y) const {
    const int half = size / 2;
    for (int k = 0; k < out; ++k)
      for (int p = 0; p < half * half; ++p) {
        const int at = k * half * half + p, row = 2 * (p / half), column = 2 * (p % half);
        const auto value = [&](int i) { return output(x, w + k * in * kTaps, b[k], row + i / 2, column + i % 2); };
        if (given) {
          y[at] = places[at] == 255 ? 0 : scale * value(places[at]);
          continue;
        }
        double best = value(0);
        places[at] = 0;
        for (int i = 1; i < 4; ++i)
          if (const double next = value(i); next > best) best = next, places[at] = static_cast<std::uint8_t>(i);
        if (best <= 0 || (keep != nullptr && keep[at] == 0)) best = 0, places[at] = 255;
        y[at] = scale * best;
      }
  }

  /// Adds to dw, db and, unless it is null, dx.
  void backward(const double* x, const double* w, const double* dy, const std::uint8_t* places, double scale,
                double* dw, double* db, double* dx) const {
    const int half = size / 2;
    for (int k = 0; k < out; ++k)
      for (int p = 0; p < half * half; ++p) {
        const int at = k * half * half + p, place = places[at];
        if (place == 255) continue;
        const double gradient = scale * dy[at];
        db[k] += gradient;
        for (int c = 0; c < in; ++c)
          for_taps(2 * (p / half) + place / 2, 2 * (p % half) + place % 2, [&](int pixel, int t) {
            const int weight = (k * in + c) * kTaps + t;
            dw[weight] += gradient * x[c * size * size + pixel];
            if (dx != nullptr) dx[c * size * size + pixel] += gradient * w[weight];
          });
      }
  }
};

/// y = w x + b.
Doubles linear(const double* x, const Doubles& w, const Doubles& b) {
  Doubles y = b;
  const std::size_t in = w.size() / b.size();
  for (std::size_t o = 0; o < y.size(); ++o)
    for (std::size_t i = 0; i < in; ++i) y[o] += w[o * in + i] * x[i];
  return y;
}

/// Adds to dw and db; returns dx.
Doubles linear_backward(const double* x, const Doubles& w, const Doubles& dy, Doubles& dw, Doubles& db) {
  const std::size_t in = w.size() / dy.size();
  Doubles dx(in, 0);
  for (std::size_t o = 0; o < dy.size(); ++o) {
    db[o] += dy[o];
    for (std::size_t i = 0; i < in; ++i) dw[o * in + i] += dy[o] * x[i], dx[i] += dy[o] * w[o * in + i];
  }
  return dx;
}

}  // namespace

SimpleCNN64::SimpleCNN64(const duet::nn::FlatParameters& store) {
  for (int i = 0; i < store.slot_count(); ++i) {
    const auto values = store.value(i).span<float>();
    const Doubles zeros(values.size(), 0);
    parameters_.push_back(
        {store.slots()[static_cast<std::size_t>(i)].name, Doubles(values.begin(), values.end()), zeros, zeros});
  }
}

SimpleCNN64::Parameter& SimpleCNN64::parameter(const std::string& name) {
  for (Parameter& one : parameters_)
    if (one.name == name) return one;
  throw std::logic_error("no parameter " + name);
}

const Doubles& SimpleCNN64::gradient(const std::string& name) const {
  return const_cast<SimpleCNN64*>(this)->parameter(name).gradient;
}

double SimpleCNN64::run(const StepInput& input) {
  for (Parameter& one : parameters_) std::fill(one.gradient.begin(), one.gradient.end(), 0.0);
  Parameter &w1 = parameter("conv1.weight"), &b1 = parameter("conv1.bias"), &w2 = parameter("conv2.weight"),
            &b2 = parameter("conv2.bias"), &f1 = parameter("fc1.weight"), &g1 = parameter("fc1.bias"),
            &f2 = parameter("fc2.weight"), &g2 = parameter("fc2.bias");
  const PooledConv first = {1, 32, 28}, second = {32, 64, 14};
  const bool given = !input.places1.empty();
  const auto rows = static_cast<double>(input.labels.size());
  double loss = 0;
  for (std::size_t row = 0; row < input.labels.size(); ++row) {
    const double* const image = input.images.data() + row * 784;
    const std::uint8_t* const keep2 = input.keep2.data() + row * kHidden;
    Places places1(static_cast<std::size_t>(first.pooled())), places2(kFlat);
    if (given) {
      std::copy_n(input.places1.begin() + static_cast<std::ptrdiff_t>(row * places1.size()), places1.size(),
                  places1.begin());
      std::copy_n(input.places2.begin() + static_cast<std::ptrdiff_t>(row * kFlat), kFlat, places2.begin());
    }
    Doubles y1(places1.size()), y2(kFlat);
    first.forward(image, w1.value.data(), b1.value.data(), nullptr, 1, given, places1.data(), y1.data());
    second.forward(y1.data(), w2.value.data(), b2.value.data(), input.keep1.data() + row * kFlat, kScale1, given,
                   places2.data(), y2.data());
    Doubles hidden = linear(y2.data(), f1.value, g1.value);
    for (std::size_t i = 0; i < kHidden; ++i) hidden[i] = hidden[i] > 0 && keep2[i] ? kScale2 * hidden[i] : 0;
    const Doubles logits = linear(hidden.data(), f2.value, g2.value);
    double total = 0;
    for (const double logit : logits) total += std::exp(logit);
    const auto label = static_cast<std::size_t>(input.labels[row]);
    loss += (std::log(total) - logits[label]) / rows;

    Doubles d_logits(kClasses);
    for (std::size_t i = 0; i < kClasses; ++i) d_logits[i] = (std::exp(logits[i]) / total - (i == label)) / rows;
    Doubles d_hidden = linear_backward(hidden.data(), f2.value, d_logits, f2.gradient, g2.gradient);
    for (std::size_t i = 0; i < kHidden; ++i) d_hidden[i] = hidden[i] > 0 ? kScale2 * d_hidden[i] : 0;
    const Doubles d_y2 = linear_backward(y2.data(), f1.value, d_hidden, f1.gradient, g1.gradient);
    Doubles d_y1(y1.size(), 0);
    second.backward(y1.data(), w2.value.data(), d_y2.data(), places2.data(), kScale1, w2.gradient.data(),
                    b2.gradient.data(), d_y1.data());
    first.backward(image, w1.value.data(), d_y1.data(), places1.data(), 1, w1.gradient.data(), b1.gradient.data(),
                   nullptr);
  }
  return loss;
}

void SimpleCNN64::update(double lr, double momentum) {
  for (Parameter& one : parameters_)
    for (std::size_t i = 0; i < one.value.size(); ++i) {
      one.momentum[i] = first_ ? one.gradient[i] : momentum * one.momentum[i] + one.gradient[i];
      one.value[i] -= lr * one.momentum[i];
    }
  first_ = false;
}

}  // namespace duet_test
