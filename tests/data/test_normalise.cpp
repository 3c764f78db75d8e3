#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "lib/data/dataset.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet::data;

namespace {

/// Written with volatile steps so that nothing is fused or folded.
float reference(std::uint8_t byte, const PixelStatistics& pixels) {
  volatile float x = static_cast<float>(byte) / 255.0f;
  x = x - pixels.mean;
  x = x / pixels.deviation;
  return x;
}

}  // namespace

TEST_CASE("every byte is normalised to the bits of two true divisions") {
  std::vector<std::uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  const std::vector<std::int64_t> first{0};
  // With the last, 1 / deviation is infinite.
  for (const PixelStatistics& pixels :
       {PixelStatistics{0.1307f, 0.3081f}, kFashionMnistPixels, PixelStatistics{0, 1}, PixelStatistics{-0.5f, 1e-6f},
        PixelStatistics{0.5f, 3e38f}, PixelStatistics{0.5f, 1e-42f}}) {
    const duet::data::Normaliser normaliser(pixels);
    std::vector<float> fast(256), table(256);
    normaliser.gather(bytes.data(), 256, first, fast.data());
    normaliser.gather_by_table(bytes.data(), 256, first, table.data());
    for (std::size_t byte = 0; byte < 256; ++byte) {
      CAPTURE(pixels.mean, pixels.deviation, byte);
      const float expected = reference(static_cast<std::uint8_t>(byte), pixels);
      CHECK(std::memcmp(&fast[byte], &expected, sizeof expected) == 0);
      CHECK(std::memcmp(&table[byte], &expected, sizeof expected) == 0);
    }
  }
}

TEST_CASE("rows of any length are gathered in the order asked for") {
  for (const std::size_t width : {1UL, 7UL, 8UL, 9UL, 31UL, 784UL}) {
    std::vector<std::uint8_t> rows(5 * width);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint8_t>(37 * i);
    const std::vector<std::int64_t> indices{4, 0, 0, 3, 1};
    std::vector<float> out(indices.size() * width, -1);
    duet::data::Normaliser(kMnistPixels).gather(rows.data(), width, indices, out.data());
    bool same = true;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        const std::uint8_t byte = rows[static_cast<std::size_t>(indices[i]) * width + j];
        same = same && out[i * width + j] == reference(byte, kMnistPixels);
      }
    }
    CHECK(same);
  }
}

TEST_CASE("a mean or deviation that normalises nothing is refused") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const PixelStatistics& bad : {PixelStatistics{kNan, 1}, PixelStatistics{-kInfinity, 1}, PixelStatistics{0, 0},
                                     PixelStatistics{0, -1}, PixelStatistics{0, kNan}, PixelStatistics{0, kInfinity}})
    CHECK_THROWS_AS(duet::data::Normaliser(bad), duet::UsageError);
  CHECK_THROWS_WITH(duet::data::Normaliser({0.5f, 0}),
                    "pixels have mean 0.5 and deviation 0, expected finite numbers and a "
                    "deviation above 0");
}
