// In place of codecs.cpp where duet is built without their libraries.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/data/images/image_file.h"
#include "lib/error.h"

namespace duet::data {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  throw DataError(name + ": this duet was built without libjpeg-turbo and libpng (Meson option `images`)");
}

}  // namespace

bool has_image_codecs() { return false; }

std::unique_ptr<ImageFile> ImageFile::open_jpeg(std::span<const std::uint8_t>, std::string name, std::int64_t) {
  refuse(name);
}
std::unique_ptr<ImageFile> ImageFile::open_png(std::span<const std::uint8_t>, std::string name, std::int64_t) {
  refuse(name);
}

std::vector<std::uint8_t> encode_jpeg(const Pixels&, int) { refuse("a JPEG"); }

}  // namespace duet::data
