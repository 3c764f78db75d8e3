#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "lib/data/normalise.h"
#include "tests/support/catch2.h"

using namespace duet::data;

namespace {

/// Written with volatile steps so that nothing is fused or folded.
float reference(std::uint8_t byte) {
  volatile float x = static_cast<float>(byte) / 255.0f;
  x = x - 0.1307f;
  x = x / 0.3081f;
  return x;
}

}  // namespace

TEST_CASE("every byte is normalised to the bits of two true divisions") {
  std::vector<std::uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  const std::vector<std::int64_t> first{0};
  std::vector<float> fast(256), table(256);
  gather_normalised(bytes.data(), 256, first, fast.data());
  gather_normalised_by_table(bytes.data(), 256, first, table.data());
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const float expected = reference(static_cast<std::uint8_t>(byte));
    CHECK(std::memcmp(&fast[byte], &expected, sizeof expected) == 0);
    CHECK(std::memcmp(&table[byte], &expected, sizeof expected) == 0);
  }
}

TEST_CASE("rows of any length are gathered in the order asked for") {
  for (const std::size_t width : {1UL, 7UL, 8UL, 9UL, 31UL, 784UL}) {
    std::vector<std::uint8_t> rows(5 * width);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint8_t>(37 * i);
    const std::vector<std::int64_t> indices{4, 0, 0, 3, 1};
    std::vector<float> out(indices.size() * width, -1);
    gather_normalised(rows.data(), width, indices, out.data());
    bool same = true;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        same = same && out[i * width + j] == reference(rows[static_cast<std::size_t>(indices[i]) * width + j]);
      }
    }
    CHECK(same);
  }
}
