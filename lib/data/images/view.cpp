#include "lib/data/images/view.h"

#include <algorithm>
#include <cmath>

#include "lib/error.h"
#include "lib/random.h"

namespace duet::data {
namespace {

constexpr std::uint64_t kCropPurpose = 0x63726f70;  // keeps the draws apart from others of the same seed
constexpr int kTries = 10;                          // torchvision's

/// Half to even, as Python rounds.
std::int64_t rounded(double value) { return std::lrint(value); }

/// The largest part in the middle whose ratio is within bounds.
Region fallback(const RandomResizedCrop& transform, std::int64_t width, std::int64_t height) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  std::int64_t w = width, h = height;
  if (ratio < transform.least_ratio) h = rounded(static_cast<double>(w) / transform.least_ratio);
  if (ratio > transform.most_ratio) w = rounded(static_cast<double>(h) * transform.most_ratio);
  w = std::max<std::int64_t>(w, 1), h = std::max<std::int64_t>(h, 1);
  return {(width - w) / 2, (height - h) / 2, w, h};
}

Region random_crop(const RandomResizedCrop& transform, std::int64_t width, std::int64_t height, Philox& random) {
  const auto between = [&](double low, double high) { return low + (high - low) * double{random.uniform()}; };
  const double area = static_cast<double>(width) * static_cast<double>(height);
  for (int i = 0; i < kTries; ++i) {
    const double target = area * between(transform.least_area, transform.most_area);
    const double ratio = std::exp(between(std::log(transform.least_ratio), std::log(transform.most_ratio)));
    const std::int64_t w = rounded(std::sqrt(target * ratio)), h = rounded(std::sqrt(target / ratio));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    const std::int64_t y = random.below(static_cast<std::uint32_t>(height - h + 1));
    return {random.below(static_cast<std::uint32_t>(width - w + 1)), y, w, h};
  }
  return fallback(transform, width, height);
}

}  // namespace

void check(const RandomResizedCrop& transform) {
  require<UsageError>(transform.size >= 1, "a random crop has size ", transform.size, ", expected 1 or more");
  require<UsageError>(
      0 < transform.least_area && transform.least_area <= transform.most_area && transform.most_area <= 1,
      "a random crop has areas from ", transform.least_area, " to ", transform.most_area,
      ", expected numbers above 0 and at most 1");
  require<UsageError>(
      0 < transform.least_ratio && transform.least_ratio <= transform.most_ratio && std::isfinite(transform.most_ratio),
      "a random crop has ratios from ", transform.least_ratio, " to ", transform.most_ratio,
      ", expected numbers above 0");
  require<UsageError>(0 <= transform.flip && transform.flip <= 1, "images are flipped with probability ",
                      transform.flip, ", expected 0 to 1");
}

void check(const ResizeCentreCrop& transform) {
  require<UsageError>(1 <= transform.size && transform.size <= transform.resize, "images are resized to ",
                      transform.resize, " and cropped to ", transform.size, ", expected 1 <= crop <= resize");
}

View view_of(const RandomResizedCrop& transform, std::int64_t width, std::int64_t height, std::int64_t epoch,
             std::int64_t image) {
  Philox random(transform.seed ^ kCropPurpose,
                (static_cast<std::uint64_t>(epoch) << 32) + static_cast<std::uint64_t>(image));
  View view{.crop = random_crop(transform, width, height, random),
            .width = transform.size,
            .height = transform.size,
            .window = {0, 0, transform.size, transform.size}};
  view.mirrored = double{random.uniform()} < transform.flip;
  return view;
}

View view_of(const ResizeCentreCrop& transform, std::int64_t width, std::int64_t height) {
  const std::int64_t shorter = std::min(width, height), longer = std::max(width, height);
  // The longer side, computed as Python does: the product is exact, the quotient rounded, then truncated.
  const auto other =
      static_cast<std::int64_t>(static_cast<double>(transform.resize * longer) / static_cast<double>(shorter));
  View view;
  view.crop = {0, 0, width, height};
  view.width = width <= height ? transform.resize : other;
  view.height = width <= height ? other : transform.resize;
  const auto middle = [&](std::int64_t all) { return rounded(static_cast<double>(all - transform.size) / 2); };
  view.window = {middle(view.width), middle(view.height), transform.size, transform.size};
  return view;
}

}  // namespace duet::data
