// A view of an image, as bytes: cropped and resized as Pillow does it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/data/images/image_file.h"
#include "lib/data/images/view.h"

namespace duet::data {

/// The sources of each output pixel of one axis, as Pillow's Resample.c combines rows of bytes. Output i is the sum of
/// source pixels begin[i] .. begin[i] + taps[i] - 1 times its weights, in units of 2^-22, rounded.
struct Axis {
  std::int64_t first = 0, end = 0;     // the source pixels that are used are first .. end - 1
  std::int64_t stride = 0;             // weights of one output in memory, a multiple of kGroup; zeros fill them up
  std::vector<std::int64_t> begin;     // source pixel, counted from `first`
  std::vector<std::int64_t> taps;      // at least 1
  std::vector<std::int32_t> weights;   // 0 .. 2^22
  std::vector<std::int16_t> in_pairs;  // the weights, in the order in which vector code takes them

  static constexpr std::int64_t kGroup = 4;
  std::int64_t size() const { return static_cast<std::int64_t>(begin.size()); }
};

/// Weights of the outputs first .. first + count - 1 of `in` pixels resized to `out` by a triangle as wide as two
/// source or two output pixels, whichever is more: Pillow's BILINEAR.
void weigh(Axis& axis, std::int64_t in, std::int64_t out, std::int64_t first, std::int64_t count);

/// Rows of pixels of three bytes. May be read and written Pixels::kSlack bytes past their last one.
struct RowsIn {
  const std::uint8_t* data;  // at the source pixel Axis::first
  std::int64_t stride;       // bytes
};

/// `rows` rows of axis.size() pixels each, without gaps.
void resample_across(const Axis& axis, RowsIn in, std::int64_t rows, std::uint8_t* out);
/// axis.size() rows of `bytes` bytes, without gaps.
void resample_down(const Axis& axis, RowsIn in, std::int64_t bytes, std::uint8_t* out);

/// resample_across and resample_down without vector instructions: the oracle, and for processors without AVX2.
void resample_across_plain(const Axis& axis, RowsIn in, std::int64_t rows, std::uint8_t* out);
void resample_down_plain(const Axis& axis, RowsIn in, std::int64_t bytes, std::uint8_t* out);

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
