// softmax, log_softmax and their gradients, row by row.
#include <cstdint>

#include "lib/backend/cpu/kernels/functions.h"

namespace duet::cpu::DUET_ISA {
namespace {

/// The largest number of a row in all lanes; of a row with a NaN, any.
[[gnu::always_inline]] inline Vec largest_of(const float* x, std::int64_t n) {
  Vec most = broadcast(x[0]);
  std::int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) most = load(x + i) > most ? load(x + i) : most;
  float largest = x[0];
  for (int lane = 0; lane < kWidth; ++lane) largest = most[lane] > largest ? most[lane] : largest;
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return broadcast(largest);
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

}  // namespace duet::cpu::DUET_ISA
