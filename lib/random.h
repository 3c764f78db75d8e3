// The three random generators of duet.
//
// Mt19937 draws what PyTorch's CPU generator draws, PythonRandom what CPython's `random.Random` draws: both bit for
// bit, so that splits, shuffles and initial weights equal the tutorials'. Philox is counter-based: any element of its
// stream is computed alone, so dropout masks do not depend on which device holds a row. No standard-library
// distribution is used anywhere: their results are not fixed by the standard.
//
// None of the classes is thread-safe; a generator belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace duet {

/// std::mt19937, but in words of 32 bits: libstdc++'s own, of 64, is four times slower.
using MersenneTwister = std::mersenne_twister_engine<std::uint32_t, 32, 624, 397, 31, 0x9908b0df, 11, 0xffffffff, 7,
                                                     0x9d2c5680, 15, 0xefc60000, 18, 1812433253>;

/// PyTorch's CPU generator (ATen/core/MT19937RNGEngine.h, DistributionsHelper.h).
class Mt19937 {
 public:
  /// Seeds the generator as torch.manual_seed does: only the low 32 bits of the seed count.
  explicit Mt19937(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}
  void seed(std::uint64_t seed) { *this = Mt19937(seed); }

  /// One word.
  std::uint32_t random() { return engine_(); }
  /// Two words, the first one on top.
  std::uint64_t random64() {
    const std::uint64_t high = engine_();
    return high << 32 | engine_();
  }
  /// An element of an int64 `tensor.random_()`: 63 bits.
  std::int64_t random_int64() { return static_cast<std::int64_t>(random64() & 0x7fffffffffffffffU); }
  /// An element of torch.randint(low, high): one word, or two for ranges from 2^28 on (PyTorch 1.x: from 2^32 on).
  /// Throws UsageError unless low < high.
  std::int64_t randint(std::int64_t low, std::int64_t high);

  /// torch.randperm(out.size()). From 2^32 / 20 elements on it follows another rule, as in PyTorch.
  void randperm(std::span<std::int64_t> out);
  std::vector<std::int64_t> randperm(std::int64_t n);
  /// The rule for large n, for any n.
  void randperm_large(std::span<std::int64_t> out);

  /// float `tensor.uniform_(a, b)`: one word each, in memory order. a and b are rounded to float first. The last step,
  /// x * (b - a) + a, is fused, as PyTorch fuses it on CPUs with AVX2 and newer, and so do its published initial
  /// weights.
  void uniform(std::span<float> out, double a, double b);
  /// A double in [0, 1): two words.
  double uniform() { return static_cast<double>(random64() & ((1ULL << 53) - 1)) * 0x1p-53; }

  /// True with probability p: two words, as `tensor.bernoulli_(p)` draws on CPUs (except Intel's with MKL).
  bool bernoulli(double p) { return uniform() < p; }
  /// A mask of zeros and ones.
  void bernoulli(std::span<std::uint8_t> mask, double p);

  /// float `tensor.normal_(mean, deviation)`, bit for bit as on CPUs with AVX2 and newer; on others 61 % of
  /// torch.randn's own values have these bits, and the largest difference is 2.4e-6. Below 16 elements all agree, and
  /// the second half of a pair is kept for the next call.
  void normal(std::span<float> out, double mean, double deviation);
  /// torch.randn.
  void randn(std::span<float> out) { normal(out, 0, 1); }

 private:
  float uniform_float() { return static_cast<float>(engine_() & 0xffffffU) * 0x1p-24f; }
  double standard_normal();

  MersenneTwister engine_;
  double kept_normal_ = 0;
  bool has_kept_normal_ = false;
};

/// CPython's random.Random(seed) (Lib/random.py, Modules/_randommodule.c).
class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);

  /// One whole word: getrandbits(32).
  std::uint32_t word() { return engine_(); }
  /// 1 <= bits <= 64, else UsageError.
  std::uint64_t getrandbits(int bits);
  /// Random._randbelow: uniform in [0, n), redrawing what falls outside. n >= 1, else UsageError.
  std::uint64_t randbelow(std::uint64_t n);
  /// Random.shuffle.
  template <class T>
  void shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i-- > 1;) {
      using std::swap;
      swap(items[i], items[static_cast<std::size_t>(randbelow(i + 1))]);
    }
  }

 private:
  MersenneTwister engine_;
};

/// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): four random
/// words for every (counter, key). Plain scalar code, the oracle for vector and GPU versions.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = 0xd2511f53ULL * counter[0], second = 0xcd9e8d57ULL * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key[0] += 0x9e3779b9U;  // golden ratio
    key[1] += 0xbb67ae85U;  // sqrt(3) - 1
  }
  return counter;
}

/// A stream of Philox words: word i of (seed, stream) is element i % 4 of philox4x32 at counter i / 4.
class Philox {
 public:
  explicit Philox(std::uint64_t seed, std::uint64_t stream = 0)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}, stream_(stream) {}

  std::uint32_t word() {
    const auto lane = static_cast<std::size_t>(position_ % 4);
    if (lane == 0) block_ = block(position_ / 4);
    ++position_;
    return block_[lane];
  }
  /// Two words, the first one on top.
  std::uint64_t word64() {
    const std::uint64_t high = word();
    return high << 32 | word();
  }
  /// A float in [0, 1) of 24 bits.
  float uniform() { return static_cast<float>(word() >> 8) * 0x1p-24f; }
  float uniform(float low, float high) { return low + (high - low) * uniform(); }
  /// Uniform in [0, n) for n >= 1; the skew of n / 2^32 is not removed.
  std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(word()) * n >> 32);
  }

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                       static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                      key_);
  }

  std::array<std::uint32_t, 2> key_;
  std::uint64_t stream_;
  std::uint64_t position_ = 0;
  std::array<std::uint32_t, 4> block_{};
};

}  // namespace duet
