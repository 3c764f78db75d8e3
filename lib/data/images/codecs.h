// The readers behind ImageFile::open.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lib/data/images/image_file.h"

namespace duet::data {

std::unique_ptr<ImageFile> open_jpeg(std::span<const std::uint8_t> content, std::string name, std::int64_t most_pixels);
std::unique_ptr<ImageFile> open_png(std::span<const std::uint8_t> content, std::string name, std::int64_t most_pixels);

}  // namespace duet::data
