// Recorded draws of PyTorch (2.15, CPU), CPython 3.11 and Random123.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/random.h"
#include "tests/support/catch2.h"

using namespace duet;
using Longs = std::vector<std::int64_t>;
using Words = std::vector<std::uint32_t>;

namespace {

template <class Draw>
auto draws(int n, Draw draw) {
  std::vector<decltype(draw())> out;
  for (int i = 0; i < n; ++i) out.push_back(draw());
  return out;
}

Words bits(const std::vector<float>& values) {
  Words out;
  for (const float value : values) out.push_back(std::bit_cast<std::uint32_t>(value));
  return out;
}

std::vector<float> randn(Mt19937& generator, std::size_t n) {
  std::vector<float> out(n);
  generator.randn(out);
  return out;
}

Longs python_shuffle(std::uint64_t seed, std::size_t n) {
  Longs items(n);
  std::iota(items.begin(), items.end(), 0);
  PythonRandom(seed).shuffle(std::span(items));
  return items;
}

Longs slice(const Longs& all, std::size_t begin, std::size_t end) {
  return Longs(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
}

}  // namespace

TEST_CASE("mt19937 draws PyTorch's words") {
  const Words expected{822569775, 2137449171, 2671936806, 3512589365, 1880026316};
  Mt19937 generator(1234);
  CHECK(draws(5, [&] { return generator.random(); }) == expected);
  Mt19937 masked((7ULL << 32) + 1234);
  CHECK(masked.random() == expected[0]);
  masked.seed(1234);
  CHECK(masked.random64() == (822569775ULL << 32 | 2137449171ULL));
}

TEST_CASE("the engine runs through many refills") {  // the standard's own check value: the 10000th word of seed 5489
  Mt19937 engine(5489);
  for (int i = 0; i < 9999; ++i) engine.random();
  CHECK(engine.random() == 4123659995U);
}

TEST_CASE("integers of PyTorch") {
  Mt19937 generator(1234);
  CHECK(draws(5, [&] { return generator.randint(-5, 100); }) == Longs{85, 76, 16, 0, 51});
  CHECK(draws(3, [&] { return generator.randint(-5, 1LL << 40); }) == Longs{501537948098, 1072732120919, 761307789520});
  CHECK(draws(3, [&] { return generator.randint(0, 1 << 28); }) == Longs{113663130, 222789291, 88645356});
  CHECK(draws(3, [&] { return generator.randint(0, (1LL << 31) + 7); }) == Longs{655058535, 995949915, 1375633632});
  CHECK_THROWS_AS(generator.randint(3, 3), UsageError);
}

TEST_CASE("randperm of PyTorch") {
  CHECK(Mt19937(0).randperm(10) == Longs{4, 1, 7, 5, 3, 9, 0, 8, 6, 2});
  CHECK(Mt19937(1).randperm(10) == Longs{5, 6, 1, 2, 0, 8, 9, 3, 7, 4});
  CHECK(Mt19937(42).randperm(10) == Longs{2, 6, 1, 8, 4, 5, 0, 9, 3, 7});
  CHECK(Mt19937(1234).randperm(10) == Longs{5, 4, 8, 2, 6, 9, 1, 7, 0, 3});
  const Longs all = Mt19937(0).randperm(60000);
  CHECK(slice(all, 0, 5) == Longs{36044, 10678, 57327, 55074, 21567});
  CHECK(slice(all, 59995, 60000) == Longs{6024, 6465, 31951, 27130, 1544});
  CHECK(Mt19937(0).randperm(0).empty());
  CHECK(Mt19937(0).randperm(1) == Longs{0});
  CHECK_THROWS_AS(Mt19937(0).randperm(-1), UsageError);
}

TEST_CASE("randperm draws one word less than it has elements") {
  Mt19937 permuted(3), skipped(3);
  permuted.randperm(7);
  draws(6, [&] { return skipped.random(); });
  CHECK(permuted.random() == skipped.random());
}

TEST_CASE("the rule for large permutations makes a permutation and draws two words an element") {
  Mt19937 permuted(3), skipped(3);
  Longs all(1000), sorted(1000);
  permuted.randperm_large(all);
  draws(1000, [&] { return skipped.random64(); });
  CHECK(permuted.random() == skipped.random());
  CHECK(all != Mt19937(3).randperm(1000));
  std::iota(sorted.begin(), sorted.end(), 0);
  std::sort(all.begin(), all.end());
  CHECK(all == sorted);
}

TEST_CASE("uniforms of PyTorch") {
  std::vector<float> values(6);
  Mt19937(1234).uniform(values, -0.3, 0.7);
  CHECK(bits(values) == Words{0xbe8ac33c, 0x3dd0b030, 0xbd247a70, 0x3d887b40, 0xbe778004, 0x3ecd214e});

  // The weights of conv1: 9 inputs each, so a bound of 1/3.
  Mt19937(1234).uniform(values, -1.0 / 3, 1.0 / 3);
  CHECK(bits({values[0], values[1], values[2], values[3]}) == Words{0xbea0c66c, 0xbd85f0f0, 0xbe23f246, 0xbdb6143b});
}

TEST_CASE("a bernoulli mask draws two words an element") {
  const std::vector<std::uint8_t> expected{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                           1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1};
  std::vector<std::uint8_t> mask(expected.size());
  Mt19937 generator(1234), skipped(1234);
  generator.bernoulli(mask, 0.75);
  CHECK(mask == expected);
  draws(40, [&] { return skipped.random64(); });
  CHECK(generator.random() == skipped.random());
}

TEST_CASE("small randn is PyTorch's bit for bit, and keeps half a pair") {
  Mt19937 generator(1234);
  CHECK(bits(randn(generator, 5)) == Words{0x3d3cf34c, 0x3ece07be, 0xbf8179c9, 0x3e5df0a1, 0xbf1cbdee});
  CHECK(bits(randn(generator, 4)) == Words{0x3f00eca2, 0x3e6c8290, 0x3f316d84, 0xbe88a1f3});
  randn(generator, 20);  // leaves the kept half alone
  CHECK(bits(randn(generator, 3)) == Words{0x400b6bfc, 0x3f518387, 0xbf43cfee});
}

TEST_CASE("large randn is PyTorch's bit for bit") {
  Mt19937 generator(7);
  CHECK(bits(randn(generator, 16)) == Words{0xbf51f456, 0x3eca902b, 0x3f661ede, 0xbfb1b738, 0xbe2b0101, 0x3e91ff2d,
                                            0xbf241e93, 0xbf64c69a, 0x3f6d31ec, 0xbf091754, 0xbf9471b7, 0xbeeb99b8,
                                            0x3f3562d1, 0x3f81a1f8, 0x3e6bed28, 0x3f8b8a88});
  const Words more = bits(randn(generator, 35));  // the last 16 of 35 are drawn again
  CHECK(Words{more[0], more[18], more[19], more[34]} == Words{0xbfca94c1, 0x3e328f74, 0xbec48d5c, 0x3fce578c});
  CHECK(generator.random_int64() == 6433419655845182986);
}

// SHA-256 of numpy's bytes of torch.randn(n, generator=torch.Generator().manual_seed(seed)).
TEST_CASE("randn has PyTorch's bits for many seeds and sizes") {
  const auto digest = [](std::uint64_t seed, std::size_t n) {
    Mt19937 generator(seed);
    const auto values = randn(generator, n);
    return sha256_hex(std::as_bytes(std::span(values)));
  };
  CHECK(digest(0, 16) == "7648137a31024642604465428f1598d06f595259ac993612918498d7cde9b70c");
  CHECK(digest(1, 17) == "9e976497df1a5075f4c5b44202da15cf3e2b518883881af8a93fe23e525271d4");
  CHECK(digest(123, 31) == "291d5b1d2a930faef4be082f994be66eda8c873ae058ab4edc7d67464f489469");
  CHECK(digest(5, 100003) == "bac22a44b4afdb986a66599356d9ad7c6086cd1779370848ea1ed65e050d6fb7");
  Sha256 large, small;  // seeds 0 to 999: 35 numbers; 1, 2, ..., 15 numbers, one after the other
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Mt19937 generator(seed), other(seed);
    const auto values = randn(generator, 35);
    large.update(std::as_bytes(std::span(values)));
    for (std::size_t n = 1; n < 16; ++n) {
      const auto few = randn(other, n);
      small.update(std::as_bytes(std::span(few)));
    }
  }
  CHECK(large.hex() == "d7c92268b3b7402d11f15fc8c0a823417ca6a8a4a1cf0f14633664226d70aaa0");
  CHECK(small.hex() == "100a483ab60264310fc376f347e0272fe16fbeb4d20fedeaaa505316355adcd5");
}

TEST_CASE("CPython's Random") {
  PythonRandom random(1234);
  CHECK(draws(5, [&] { return random.word(); }) == Words{4150886329, 3342196574, 1892932127, 501869158, 32175636});

  CHECK(PythonRandom(0).word() == 3626764237U);
  CHECK(PythonRandom(1).word() == 577090037U);
  CHECK(PythonRandom(42).word() == 2746317213U);
  CHECK(PythonRandom(1ULL << 32).word() == 485306839U);
  CHECK(PythonRandom((1ULL << 32) + 1).word() == 991850117U);
}

TEST_CASE("seeds of 64 bits, numbers of any width") {
  CHECK(PythonRandom((1ULL << 63) + 12345).word() == 1308997459U);
  CHECK(PythonRandom(~0ULL).word() == 93740670U);
  PythonRandom random(1234);
  const std::vector<std::uint64_t> expected{
      1, 99, 946466063, 501869158, 32175636, 8489599478642800, 7443283460211601105, 644274044980223449};
  std::vector<std::uint64_t> got;
  for (const int width : {1, 7, 31, 32, 33, 53, 63, 64}) got.push_back(random.getrandbits(width));
  CHECK(got == expected);
  got.clear();
  for (const std::uint64_t n : {1ULL, 2ULL, 10ULL, 1000ULL, 1ULL << 32, (1ULL << 32) + 1, 1ULL << 63}) {
    got.push_back(random.randbelow(n));
  }
  CHECK(got == std::vector<std::uint64_t>{0, 0, 5, 242, 74852898, 68034096, 2740349523802657909});
  CHECK_THROWS_AS(random.getrandbits(0), UsageError);
  CHECK_THROWS_AS(random.getrandbits(65), UsageError);
  CHECK_THROWS_AS(random.randbelow(0), UsageError);
}

TEST_CASE("CPython's shuffle") {
  CHECK(python_shuffle(1234, 10) == Longs{2, 8, 3, 5, 6, 4, 9, 0, 1, 7});
  CHECK(python_shuffle(0, 8) == Longs{4, 1, 5, 2, 0, 3, 7, 6});
  CHECK(python_shuffle(42, 8) == Longs{3, 4, 6, 7, 2, 5, 0, 1});
  CHECK(python_shuffle(1ULL << 40, 8) == Longs{6, 7, 4, 3, 0, 5, 2, 1});
  CHECK(python_shuffle(1, 0).empty());
  CHECK(python_shuffle(1, 1) == Longs{0});
  const Longs all = python_shuffle(1234, 60000);
  CHECK(slice(all, 0, 5) == Longs{33712, 36159, 45528, 25849, 53734});
  CHECK(slice(all, 30000, 30003) == Longs{31044, 14995, 40895});
  CHECK(slice(all, 59995, 60000) == Longs{5940, 490, 7657, 28883, 50997});
}

TEST_CASE("Philox gives the known answers of Random123") {
  using Counter = std::array<std::uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) == Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  static_assert(philox4x32({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);
}

TEST_CASE("a Philox stream is its counters in a row") {
  Philox stream(0x299f31d0a4093822ULL, 0x0370734413198a2eULL);
  const auto first = philox4x32({0, 0, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  const auto second = philox4x32({1, 0, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  for (const auto& block : {first, second}) {
    for (const std::uint32_t word : block) CHECK(stream.word() == word);
  }
  Philox other(1);
  for (int i = 0; i < 1000; ++i) {
    const float u = other.uniform();
    CHECK((0 <= u && u < 1));
    CHECK(other.below(7) < 7);
  }
}
