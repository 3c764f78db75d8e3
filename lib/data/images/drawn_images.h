// Colour images drawn by the program, for networks of ImageNet's kind on machines without its files.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "lib/data/dataset.h"
#include "lib/data/images/image_file.h"
#include "lib/data/images/image_folder.h"

namespace duet::data {

struct DrawnImagesOptions {
  std::int64_t classes = 10;    // 1 to 1000
  std::int64_t size = 224;      // rows and columns, 8 to 4096
  std::int64_t count = 10'000;  // samples; sample i is of class i % classes
  std::uint64_t seed = 0;
  std::int64_t first = 0;  // sample i is drawing first + i: sets of one seed that must differ begin apart
  ChannelStatistics pixels = kImageNetPixels;
};

/// Samples are drawn when they are fetched. Class c shows shape c % 10, filled with texture (c / 10 + c) % 10, in any
/// colour up to 100 classes, of hue c / 100 above that; place, size, angle, colours, phase of the texture and noise are
/// random, keyed by (seed, number of the drawing). All classes look the same in a mirror. The bytes are the same on
/// every machine. fetch gives f32 (n, 3, size, size), normalised.
class DrawnImages : public Dataset {
 public:
  /// Throws UsageError for numbers out of range.
  explicit DrawnImages(const DrawnImagesOptions& options);

  std::int64_t size() const override { return options_.count; }
  Shape sample_shape() const override { return {3, options_.size, options_.size}; }
  std::uint64_t data_hash() const override;
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override;

  const DrawnImagesOptions& options() const { return options_; }
  std::int64_t label(std::int64_t index) const { return index % options_.classes; }
  /// A sample's bytes. Throws DataError for an index outside [0, size()).
  Pixels draw(std::int64_t index) const;

 private:
  void draw(std::int64_t index, Pixels& pixels) const;

  DrawnImagesOptions options_;
  std::array<Normaliser, 3> normalisers_;
};

/// Training and test images, which have no drawing in common.
struct DrawnSets {
  DrawnImagesOptions train, test;
};

/// Whether a data set of this name is drawn: "synthetic", or what begins with "synthetic:".
bool names_drawn_images(std::string_view text);

/// "synthetic", or "synthetic:" and fields with commas between them: classes, size, train, test (samples), seed; as in
/// "synthetic:classes=100,size=64". Fields that are not named: 10 classes, size 224, 10,000 and 1,000 samples, seed 0.
/// Throws UsageError that names the field that is unknown, given twice, or no number in its range.
DrawnSets parse_drawn_images(std::string_view text);

}  // namespace duet::data
