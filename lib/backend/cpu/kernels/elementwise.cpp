// Elementwise operators, updates of parameters by SGD, and dropout.
#include <cstdint>
#include <cstring>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {

void relu(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : (x[i] != x[i] ? x[i] : 0.0f);
}

void relu_backward(const float* y, const float* dy, float* dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float gradient = dy[i];  // read always: SSE2 cannot read some lanes only
    dx[i] = arithmetic::relu_stops(y[i]) ? 0.0f : gradient;
  }
}

void add(const float* a, const float* b, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void scale(float* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

void mask_scale(const float* x, const std::uint8_t* mask, float factor, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * (mask[i] ? factor : 0.0f);
}

void relu_dropout_backward(const float* y, const float* dy, float scale, float* dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float gradient = dy[i];
    const float passed = arithmetic::relu_stops(y[i]) ? 0.0f : gradient;
    dx[i] = passed * scale;  // outside the choice, which then takes no branch
  }
}

namespace {

template <class Sum>
void write_sum(Sum sum, bool accumulate, float* y, std::int64_t n) {
  if (accumulate) {
    for (std::int64_t i = 0; i < n; ++i) y[i] += sum(i);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = sum(i);
  }
}

/// The sum of `count` parts, a power of two up to 8, by the tree of Note [Sums over samples].
void sum_few(const float* const* p, int count, bool accumulate, float* y, std::int64_t n) {
  const float* const a = p[0];
  const float* const b = p[count > 1 ? 1 : 0];
  const float* const c = p[count > 2 ? 2 : 0];
  const float* const d = p[count > 2 ? 3 : 0];
  if (count == 1) return write_sum([=](std::int64_t i) { return a[i]; }, accumulate, y, n);
  if (count == 2) return write_sum([=](std::int64_t i) { return a[i] + b[i]; }, accumulate, y, n);
  if (count == 4) return write_sum([=](std::int64_t i) { return (a[i] + b[i]) + (c[i] + d[i]); }, accumulate, y, n);
  const float *const e = p[4], *const f = p[5], *const g = p[6], *const h = p[7];
  write_sum([=](std::int64_t i) { return ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i])); },
            accumulate, y, n);
}

constexpr std::int64_t kTile = 256;

/// The same of any power of two, for elements [begin, begin + n) of the parts; n is at most kTile.
void sum_tile(const float* const* p, int count, std::int64_t begin, float* y, std::int64_t n) {
  if (count <= 8) {
    const float* at[8];
    for (int k = 0; k < count; ++k) at[k] = p[k] + begin;
    return sum_few(at, count, false, y, n);
  }
  float right[kTile];
  sum_tile(p, count / 2, begin, y, n);
  sum_tile(p + count / 2, count / 2, begin, right, n);
  add(y, right, y, n);
}

}  // namespace

void sum_parts(const float* const* p, int count, bool accumulate, float* y, std::int64_t n) {
  const bool by_tree = (count & (count - 1)) == 0;
  if (by_tree && count <= 8) return sum_few(p, count, accumulate, y, n);
  for (std::int64_t begin = 0; begin < n; begin += kTile) {
    const std::int64_t size = n - begin < kTile ? n - begin : kTile;
    float total[kTile];
    if (by_tree) {
      sum_tile(p, count, begin, total, size);
    } else {
      write_sum([=](std::int64_t i) { return p[0][begin + i]; }, false, total, size);
      for (int k = 1; k < count; ++k) add(total, p[k] + begin, total, size);
    }
    const float* const sum = total;
    write_sum([=](std::int64_t i) { return sum[i]; }, accumulate, y + begin, size);
  }
}

namespace {

/// Elements before the first that begins a cache line: vectors from there on do not reach into two lines.
std::int64_t first_line(const float* p, std::int64_t n) {
  const auto before = static_cast<std::int64_t>((-reinterpret_cast<std::uintptr_t>(p) % 64) / sizeof(float));
  return before < n ? before : n;
}

template <bool kPlain>
void sgd_loop(float* value, const float* gradient, float* buffer, std::int64_t n, float lr, float momentum,
              float dampening, float weight_decay, bool nesterov, bool first) {
  const float keep = first ? 0.0f : momentum, take = first ? 1.0f : 1.0f - dampening;
  const auto update = [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      arithmetic::sgd_with_momentum<kPlain>(value[i], gradient[i], buffer[i], lr, momentum, keep, take, weight_decay,
                                            nesterov);
  };
  const std::int64_t whole = first_line(value, n);
  update(0, whole);
  update(whole, n);
}

}  // namespace

void sgd(float* value, const float* gradient, float* buffer, std::int64_t n, float lr, float momentum, float dampening,
         float weight_decay, bool nesterov, bool first) {
  if (buffer == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) arithmetic::sgd_without_momentum(value[i], gradient[i], lr, weight_decay);
  } else if (dampening == 0 && weight_decay == 0 && !nesterov && !first) {
    sgd_loop<true>(value, gradient, buffer, n, lr, momentum, 0, 0, false, false);
  } else {
    sgd_loop<false>(value, gradient, buffer, n, lr, momentum, dampening, weight_decay, nesterov, first);
  }
}

namespace {

constexpr int kLanes = 16;          // Philox calls made in parallel
constexpr int kChunk = kLanes * 8;  // decisions that they give: eight 16-bit numbers each

typedef std::uint32_t Words __attribute__((vector_size(kWidth * 4)));

/// Products of the 32-bit lanes with a constant: high and low halves.
[[gnu::always_inline]] inline void multiply(Words x, std::uint32_t factor, Words& high, Words& low) {
  constexpr std::uint64_t kLow = 0xFFFFFFFFu;
  const Wide f = Wide{} + factor;
  const Wide even = multiply_low((Wide)x, f), odd = multiply_low((Wide)x >> 32, f);
  high = (Words)(even >> 32 | (odd & ~kLow));
  low = (Words)((even & kLow) | odd << 32);
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) on all lanes.
[[gnu::always_inline]] inline void philox(Words (&x)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    Words high_a, low_a, high_b, low_b;
    multiply(x[0], 0xD2511F53u, high_a, low_a);
    multiply(x[2], 0xCD9E8D57u, high_b, low_b);
    x[0] = high_b ^ x[1] ^ key0;
    x[1] = low_b;
    x[2] = high_a ^ x[3] ^ key1;
    x[3] = low_a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// The 128 decisions of one chunk.
void chunk_mask(std::uint8_t* keep, std::uint32_t chunk, std::uint64_t seed, std::uint64_t step, std::uint64_t row,
                std::uint32_t layer, std::uint32_t threshold) {
  std::uint32_t lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = chunk * kLanes + static_cast<std::uint32_t>(i);
  for (int begin = 0; begin < kLanes; begin += kWidth) {
    Words x[4] = {Words{}, Words{} + static_cast<std::uint32_t>(row), Words{} + static_cast<std::uint32_t>(step),
                  Words{} + layer};
    std::memcpy(&x[0], lane + begin, sizeof x[0]);
    philox(x, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    for (int j = 0; j < 8; ++j) {
      const Words number = j % 2 ? x[j / 2] >> 16 : x[j / 2] & 0xFFFFu;
      typedef std::uint8_t Bytes __attribute__((vector_size(kWidth)));
      const Words one = number >= threshold ? Words{} + 1u : Words{};
      const Bytes bytes = __builtin_convertvector(one, Bytes);
      std::memcpy(keep + j * kLanes + begin, &bytes, sizeof bytes);
    }
  }
}

}  // namespace

// Decision e of a row: chunk e / 128; in it, lane e % 16 of the eight numbers' j-th, j = (e % 128) / 16: the low half
// of word j / 2 for even j, else the high half. Counter: (16 * chunk + lane, row, step, layer); key: the seed.
void dropout_mask(std::uint8_t* mask, std::int64_t n, std::uint64_t seed, std::uint64_t step, std::uint64_t row,
                  std::uint32_t layer, std::uint32_t threshold) {
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const auto chunk = static_cast<std::uint32_t>(begin / kChunk);
    if (begin + kChunk <= n) {
      chunk_mask(mask + begin, chunk, seed, step, row, layer, threshold);
      continue;
    }
    std::uint8_t keep[kChunk];
    chunk_mask(keep, chunk, seed, step, row, layer, threshold);
    for (std::int64_t i = begin; i < n; ++i) mask[i] = keep[i - begin];
  }
}

}  // namespace duet::cpu::DUET_ISA
