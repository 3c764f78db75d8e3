#include "lib/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "lib/error.h"

namespace duet {
namespace {

constexpr std::int64_t kLargePermutation = std::numeric_limits<std::uint32_t>::max() / 20;

// PyTorch's vector code takes log, sine and cosine from Cephes (Moshier, single/logf.c and sinf.c), where its compiler
// fused products and sums for AVX2. The fused operations here are those; every one of them shows in randn's bits.

/// log(x) for normal numbers above 0.
float cephes_log(float x) {
  constexpr float kFactors[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  constexpr float kLog2Upper = 0.693359375f, kLog2Lower = -2.12194440e-4f;
  int exponent = 0;
  float rest = std::frexp(x, &exponent);
  if (rest < std::numbers::sqrt2_v<float> / 2) {
    rest *= 2;
    --exponent;
  }
  rest -= 1;
  const auto e = static_cast<float>(exponent);
  const float square = rest * rest;
  float sum = kFactors[0];
  for (std::size_t i = 1; i < std::size(kFactors); ++i) sum = std::fma(sum, rest, kFactors[i]);
  sum = std::fma(sum * rest, square, e * kLog2Lower) - 0.5f * square;
  return std::fma(e, kLog2Upper, rest + sum);
}

struct SineCosine {
  float sine, cosine;
};

/// The sine and cosine of an angle from 0 to 2 pi.
SineCosine cephes_sine_cosine(float angle) {
  const int quarters = (static_cast<int>(angle * (4 / std::numbers::pi_v<float>)) + 1) / 2;
  const auto eighths = static_cast<float>(2 * quarters);
  float x = std::fma(eighths, -0.78515625f, angle);  // angle - eighths * pi / 4, with pi / 4 in three parts
  x = std::fma(eighths, -2.4187564849853515625e-4f, x);
  x = std::fma(eighths, -3.77489497744594108e-8f, x);
  const float square = x * x;
  const float even =
      std::fma(std::fma(2.443315711809948e-5f, square, -1.388731625493765e-3f), square, 4.166664568298827e-2f) * square;
  const float odd = std::fma(std::fma(-1.9515295891e-4f, square, 8.3321608736e-3f), square, -1.6666654611e-1f) * square;
  const float cosine = std::fma(even, square, -0.5f * square) + 1, sine = std::fma(odd, x, x);
  switch (quarters % 4) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

/// 16 uniforms to 16 normals in place (DistributionTemplates.h, NormalFill16).
void box_muller16(float* values, float mean, float deviation) {
  for (int j = 0; j < 8; ++j) {
    const float radius = std::sqrt(-2 * cephes_log(1 - values[j]));
    const auto [sine, cosine] = cephes_sine_cosine(2 * std::numbers::pi_v<float> * values[j + 8]);
    values[j] = std::fma(radius * cosine, deviation, mean);
    values[j + 8] = std::fma(radius * sine, deviation, mean);
  }
}

/// CPython's seeding by a number, whose 32-bit words are the key: init_by_array of Matsumoto and Nishimura. As a seed
/// sequence it gives the engine its whole state.
class KeyedState {
 public:
  using result_type = std::uint32_t;
  explicit KeyedState(std::uint64_t seed)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}, length_(seed >> 32 ? 2 : 1) {}

  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    constexpr std::size_t kWords = MersenneTwister::state_size;
    std::array<std::uint32_t, kWords> state{19650218U};
    const auto turned = [&](std::size_t i) { return state[i - 1] ^ (state[i - 1] >> 30); };
    for (std::size_t i = 1; i < kWords; ++i) state[i] = 1812433253U * turned(i) + static_cast<std::uint32_t>(i);
    std::size_t i = 1;
    const auto advance = [&] {
      if (++i < kWords) return;
      state[0] = state[kWords - 1];
      i = 1;
    };
    for (std::size_t k = 0; k < kWords; ++k, advance())
      state[i] = (state[i] ^ (turned(i) * 1664525U)) + key_[k % length_] + static_cast<std::uint32_t>(k % length_);
    for (std::size_t k = 1; k < kWords; ++k, advance())
      state[i] = (state[i] ^ (turned(i) * 1566083941U)) - static_cast<std::uint32_t>(i);
    state[0] = 0x80000000U;
    std::copy_n(state.begin(), std::min(state.size(), static_cast<std::size_t>(end - begin)), begin);
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::size_t length_;
};

MersenneTwister keyed(std::uint64_t seed) {
  KeyedState state(seed);
  return MersenneTwister(state);
}

}  // namespace

std::int64_t Mt19937::randint(std::int64_t low, std::int64_t high) {
  require<UsageError>(low < high, "randint needs low < high, got ", low, " and ", high);
  const auto range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const std::uint64_t drawn = range >= 1ULL << 28 ? random64() : random();
  return static_cast<std::int64_t>(drawn % range + static_cast<std::uint64_t>(low));
}

void Mt19937::randperm(std::span<std::int64_t> out) {
  if (std::ssize(out) >= kLargePermutation) return randperm_large(out);
  std::iota(out.begin(), out.end(), std::int64_t{0});
  for (std::size_t i = 0; i + 1 < out.size(); ++i) std::swap(out[i], out[i + random() % (out.size() - i)]);
}

std::vector<std::int64_t> Mt19937::randperm(std::int64_t n) {
  require<UsageError>(n >= 0, "randperm needs n >= 0, got ", n);
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  randperm(out);
  return out;
}

void Mt19937::randperm_large(std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t z = random64() % (i + 1);
    out[i] = static_cast<std::int64_t>(i);
    out[i] = out[z];
    out[z] = static_cast<std::int64_t>(i);
  }
}

void Mt19937::uniform(std::span<float> out, double a, double b) {
  const auto low = static_cast<float>(a), width = static_cast<float>(b) - low;
  for (float& value : out) value = std::fma(uniform_float(), width, low);
}

void Mt19937::bernoulli(std::span<std::uint8_t> mask, double p) {
  for (std::uint8_t& kept : mask) kept = bernoulli(p);
}

double Mt19937::standard_normal() {
  if (has_kept_normal_) {
    has_kept_normal_ = false;
    return kept_normal_;
  }
  const double u1 = uniform(), u2 = uniform();
  const double radius = std::sqrt(-2 * std::log1p(-u2)), theta = 2 * std::numbers::pi * u1;
  kept_normal_ = radius * std::sin(theta);
  has_kept_normal_ = true;
  return radius * std::cos(theta);
}

void Mt19937::normal(std::span<float> out, double mean, double deviation) {
  constexpr std::size_t kGroup = 16;
  if (out.size() < kGroup) {
    for (float& value : out) value = static_cast<float>(standard_normal() * deviation + mean);
    return;
  }
  const auto fill = [&](std::span<float> part) {
    for (float& value : part) value = uniform_float();
  };
  const auto transform = [&](float* group) {
    box_muller16(group, static_cast<float>(mean), static_cast<float>(deviation));
  };
  fill(out);
  for (std::size_t i = 0; i + kGroup <= out.size(); i += kGroup) transform(out.data() + i);
  if (out.size() % kGroup) {  // the last 16 are drawn again
    fill(out.last(kGroup));
    transform(out.data() + out.size() - kGroup);
  }
}

PythonRandom::PythonRandom(std::uint64_t seed) : engine_(keyed(seed)) {}

std::uint64_t PythonRandom::getrandbits(int bits) {
  require<UsageError>(1 <= bits && bits <= 64, "getrandbits takes 1 to 64 bits, got ", bits);
  if (bits <= 32) return word() >> (32 - bits);
  const std::uint64_t low = word();
  return static_cast<std::uint64_t>(word() >> (64 - bits)) << 32 | low;
}

std::uint64_t PythonRandom::randbelow(std::uint64_t n) {
  require<UsageError>(n >= 1, "randbelow needs n >= 1");
  const auto bits = static_cast<int>(std::bit_width(n));
  std::uint64_t drawn = getrandbits(bits);
  while (drawn >= n) drawn = getrandbits(bits);
  return drawn;
}

}  // namespace duet
