#include <cstddef>
#include <cstdint>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

void gather_case(std::int64_t row_bytes, std::int64_t n, bool labelled) {
  constexpr std::int64_t kRows = 50;
  constexpr float kMean = 0.1307f, kDeviation = 0.3081f;
  Case c("gather_images", {row_bytes, n, labelled});
  const auto bytes = c.input<std::uint8_t>("images", size_of(kRows * row_bytes), 1,
                                           [&](std::size_t) { return static_cast<std::uint8_t>(c.below(256)); });
  const auto labels =
      c.input<std::int64_t>("labels", kRows, 0, [&](std::size_t) { return static_cast<std::int64_t>(c.below(10)); });
  const auto indices = c.input<std::int64_t>("indices", size_of(n), 0,
                                             [&](std::size_t) { return static_cast<std::int64_t>(c.below(kRows)); });
  const Floats y = c.output("y", size_of(n * row_bytes));
  Array<std::int64_t> picked;
  if (labelled) picked = c.output<std::int64_t>("picked", size_of(n));
  c.run([&] {
    kernels::gather_images({bytes.data(), row_bytes, labelled ? labels.data() : nullptr}, indices.data(), n, kMean,
                           kDeviation, y.data(), picked.data(), nullptr);
  });
  for (std::size_t i = 0; i < size_of(n); ++i) {
    const std::size_t row = size_of(indices.first(i));
    if (labelled) c.expect_equal("picked", i, picked[i], labels.first(row));
    for (std::size_t b = 0; b < size_of(row_bytes); ++b) {
      const double byte = bytes.first(row * size_of(row_bytes) + b);
      const std::size_t at = i * size_of(row_bytes) + b;
      c.expect("y", at, y[at], {(byte / 255 - double{kMean}) / double{kDeviation}, 4}, 3);
    }
  }
}

}  // namespace

TEST_CASE("ptx: gathering images") {
  for (const std::int64_t row_bytes : {1, 7, 99, 784})
    for (const std::int64_t n : {0, 1, 5, 37})
      for (const bool labelled : {false, true}) gather_case(row_bytes, n, labelled);
  check_launched({"gather_images_kernel"});
}
