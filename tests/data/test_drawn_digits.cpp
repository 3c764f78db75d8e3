#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::data;

TEST_CASE("drawn digits are the same bytes everywhere") {
  const ImageDataset digits = draw_digits(1234, 1000);
  CHECK(sha256_hex(std::as_bytes(digits.images().span<std::uint8_t>())) ==
        "8b02f300b70c61e74e979aeeeb93690c9c0f0ab415727691f8d748201e9f88dc");
  const std::int64_t* const labels = digits.labels().data<std::int64_t>();
  CHECK(std::vector<std::int64_t>(labels, labels + 8) == std::vector<std::int64_t>{1, 8, 5, 6, 2, 9, 3, 3});
}

TEST_CASE("an image depends on its number only") {
  const ImageDataset all = draw_digits(1, 20), tail = draw_digits(1, 5, 15), other = draw_digits(2, 20);
  const auto same = [](const Tensor& a, const Tensor& b) {
    return std::equal(a.span<std::uint8_t>().begin(), a.span<std::uint8_t>().end(), b.span<std::uint8_t>().begin());
  };
  CHECK(same(all.images().rows(15, 20), tail.images()));
  CHECK(!same(all.images(), other.images()));
  CHECK(draw_digits(1, 0).size() == 0);
  CHECK_THROWS_AS(draw_digits(1, -1), UsageError);
}

TEST_CASE("all ten digits appear about equally often, with ink in every image") {
  const ImageDataset digits = draw_digits(5, 2000);
  std::array<int, 10> count{};
  int blank = 0;
  for (std::int64_t i = 0; i < digits.size(); ++i) {
    ++count[static_cast<std::size_t>(digits.labels().data<std::int64_t>()[i])];
    int dark = 0;
    const Tensor image = digits.images().rows(i, i + 1);
    for (const std::uint8_t pixel : image.span<std::uint8_t>()) dark += pixel > 100;
    blank += dark < 8;
  }
  for (const int n : count) CHECK(std::abs(n - 200) < 70);  // five standard deviations
  CHECK(blank == 0);
}
