// softmax, log_softmax, layer norm and their gradients, row by row.
#include <cstdint>

#include "lib/backend/cpu/kernels/functions.h"

namespace duet::cpu::DUET_ISA {
namespace {

/// The largest number of a row in all lanes; of a row with a NaN, any.
[[gnu::always_inline]] inline Vec largest_of(const float* x, std::int64_t n) {
  Vec most = broadcast(x[0]);
  for_each_vector(n, [&](std::int64_t i, int count) {
    const Vec next = load_first(x + i, count);
    most = ((next > most) & first_lanes(count)) ? next : most;
  });
  float lanes[kWidth];
  store(lanes, most);
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
  return broadcast(lanes[0]);
}

}  // namespace

void softmax(const float* x, float* y, std::int64_t rows, std::int64_t n) {
  for (; rows > 0; --rows, x += n, y += n) {
    const Vec largest = largest_of(x, n);
    const Vec total = broadcast(sum_of(n, [=](std::int64_t i, int count) {
      const Vec power = exp(load_first(x + i, count) - largest);
      store_first(y + i, power, count);
      return power;
    }));
    for_each_vector(n, [=](std::int64_t i, int count) { store_first(y + i, load_first(y + i, count) / total, count); });
  }
}

void softmax_backward(const float* y, const float* dy, float* dx, std::int64_t rows, std::int64_t n) {
  for (; rows > 0; --rows, y += n, dy += n, dx += n) {
    const auto product = [=](std::int64_t i, int count) {
      return load_first(y + i, count) * load_first(dy + i, count);
    };
    const Vec total = broadcast(sum_of(n, product));
    for_each_vector(n, [=](std::int64_t i, int count) {
      store_first(dx + i, load_first(y + i, count) * (load_first(dy + i, count) - total), count);
    });
  }
}

void log_softmax(const float* x, float* y, std::int64_t rows, std::int64_t n) {
  for (; rows > 0; --rows, x += n, y += n) {
    const Vec largest = largest_of(x, n);
    const auto power = [=](std::int64_t i, int count) { return exp(load_first(x + i, count) - largest); };
    const Vec total = log(broadcast(sum_of(n, power)));
    // In PyTorch's order: one shift of largest + total would lose the digits of the total for large inputs.
    for_each_vector(
        n, [=](std::int64_t i, int count) { store_first(y + i, load_first(x + i, count) - largest - total, count); });
  }
}

void log_softmax_backward(const float* y, const float* dy, float* dx, std::int64_t rows, std::int64_t n) {
  for (; rows > 0; --rows, y += n, dy += n, dx += n) {
    const Vec total = broadcast(sum_of(n, [=](std::int64_t i, int count) { return load_first(dy + i, count); }));
    for_each_vector(n, [=](std::int64_t i, int count) {
      store_first(dx + i, load_first(dy + i, count) - exp(load_first(y + i, count)) * total, count);
    });
  }
}

namespace {

/// A row of x as layer norm makes it, before weight and bias: (x - mean) / sqrt(variance + eps).
class Normalised {
 public:
  [[gnu::always_inline]] Normalised(const float* x, std::int64_t n, float eps) : x_(x) {
    const auto count = static_cast<float>(n);
    mean_ = broadcast(sum_of(n, [x](std::int64_t i, int lanes) { return load_first(x + i, lanes); }) / count);
    const auto square = [this](std::int64_t i, int lanes) {
      const Vec centred = load_first(x_ + i, lanes) - mean_;
      return centred * centred;
    };
    scale_ = broadcast(1 / __builtin_sqrtf(sum_of(n, square) / count + eps));
  }
  [[gnu::always_inline]] Vec operator()(std::int64_t i, int lanes) const {
    return (load_first(x_ + i, lanes) - mean_) * scale_;
  }
  Vec scale() const { return scale_; }

 private:
  const float* x_;
  Vec mean_, scale_;
};

}  // namespace

void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, std::int64_t rows,
                std::int64_t n) {
  for (const float* const end = x + rows * n; x != end; x += n, y += n) {
    const Normalised normalised(x, n, eps);
    for_each_vector(n, [&](std::int64_t i, int lanes) {
      Vec v = normalised(i, lanes);
      if (weight != nullptr) v = v * load_first(weight + i, lanes);
      if (bias != nullptr) v = v + load_first(bias + i, lanes);
      store_first(y + i, v, lanes);
    });
  }
}

void layer_norm_backward(const float* x, const float* weight, const float* dy, float eps, float* dx, float* dweight,
                         float* dbias, std::int64_t rows, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, int lanes) {
    store_first(dweight + i, Vec{}, lanes);
    store_first(dbias + i, Vec{}, lanes);
  });
  const Vec count = broadcast(static_cast<float>(n));
  for (const float* const end = x + rows * n; x != end; x += n, dy += n) {
    const Normalised normalised(x, n, eps);
    for_each_vector(n, [&](std::int64_t i, int lanes) {
      const Vec gradient = load_first(dy + i, lanes);
      store_first(dweight + i, load_first(dweight + i, lanes) + gradient * normalised(i, lanes), lanes);
      store_first(dbias + i, load_first(dbias + i, lanes) + gradient, lanes);
    });
    if (dx == nullptr) continue;
    const auto inner = [&](std::int64_t i, int lanes) {
      const Vec gradient = load_first(dy + i, lanes);
      return weight != nullptr ? gradient * load_first(weight + i, lanes) : gradient;
    };
    const Vec mean = broadcast(sum_of(n, inner)) / count;
    const Vec slope =
        broadcast(sum_of(n, [&](std::int64_t i, int lanes) { return inner(i, lanes) * normalised(i, lanes); })) / count;
    for_each_vector(n, [&](std::int64_t i, int lanes) {
      const Vec v = (inner(i, lanes) - mean - normalised(i, lanes) * slope) * normalised.scale();
      store_first(dx + i, v, lanes);
    });
    dx += n;
  }
}

}  // namespace duet::cpu::DUET_ISA
