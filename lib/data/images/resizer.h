// A view of an image, as bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/data/images/image_file.h"
#include "lib/data/images/resample.h"
#include "lib/data/images/view.h"

namespace duet::data {

/// Crops and resizes as Pillow 13.0.0 does by Image.crop and Image.resize(BILINEAR), byte for byte; keeps its memory
/// for the next image. Not thread-safe.
class Resizer {
 public:
  /// Prepares for this view. Returns the part of the image that it is made of.
  Region prepare(const View& view);
  /// The window's rows without gaps, three bytes a pixel, not mirrored; `source` contains the part. Valid until the
  /// next call.
  const std::uint8_t* run(const Pixels& source);

 private:
  View view_;
  Axis across_, down_;
  std::vector<std::uint8_t> between_, out_;
};

}  // namespace duet::data
