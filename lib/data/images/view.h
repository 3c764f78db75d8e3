// Which part of an image becomes a sample, as torchvision's transforms choose it.
#pragma once

#include <cstdint>

#include "lib/data/images/image_file.h"

namespace duet::data {

/// A part of an image, resized; a window of that, from left to right or mirrored.
struct View {
  Region crop;                         // part of the image
  std::int64_t width = 0, height = 0;  // to which the crop is resized
  Region window;                       // part of the resized crop
  bool mirrored = false;
  bool operator==(const View&) const = default;
};

/// torchvision's RandomResizedCrop and RandomHorizontalFlip: a part of the image of random area and ratio of width to
/// height, resized to size x size. The draws are keyed by (seed, epoch, number of the image): they depend on no order,
/// worker or rank. They have torchvision's distribution, not its values, which depend on its workers.
struct RandomResizedCrop {
  std::int64_t size = 224;
  double least_area = 0.08, most_area = 1;             // shares of the image's area
  double least_ratio = 3.0 / 4, most_ratio = 4.0 / 3;  // uniform in its logarithm
  double flip = 0.5;                                   // probability
  std::uint64_t seed = 0;
};

/// torchvision's Resize(resize), of the shorter side, and CenterCrop(size).
struct ResizeCentreCrop {
  std::int64_t resize = 256, size = 224;
};

/// Throws UsageError for numbers that make no sense: a size below 1, an area that is not in (0, 1], a ratio that is not
/// positive, bounds in the wrong order, a probability outside of [0, 1]; a crop larger than the resized image.
void check(const RandomResizedCrop& transform);
void check(const ResizeCentreCrop& transform);

/// For an image of this size. `image` is below 2^32.
View view_of(const RandomResizedCrop& transform, std::int64_t width, std::int64_t height, std::int64_t epoch,
             std::int64_t image);
View view_of(const ResizeCentreCrop& transform, std::int64_t width, std::int64_t height);

}  // namespace duet::data
