// Small image files of many kinds, with what Pillow makes of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lib/data/images/image_file.h"
#include "tests/data/files.h"

namespace duet_test {

struct ImageSample {
  const char* name;
  int width, height;
  const char* hash;  // first 16 digits of the SHA-256 of the pixels: Image.open(file).convert('RGB').tobytes()
  const char* base64;
  Bytes content() const;
};

/// JPEGs first.
std::span<const ImageSample> image_samples();

/// Empty if images can be read.
inline std::string why_no_images() { return duet::data::has_image_codecs() ? "" : "built without images"; }

/// First 16 digits of the SHA-256.
std::string short_hash(std::span<const std::uint8_t> bytes);

}  // namespace duet_test
