#include "lib/data/images/image_file.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/io/file_format.h"

namespace duet::data {
namespace {

using FileBytes = std::span<const std::uint8_t>;

bool begins_with(FileBytes content, std::initializer_list<std::uint8_t> magic) {
  return content.size() >= magic.size() && std::equal(magic.begin(), magic.end(), content.begin());
}

bool is_jpeg(FileBytes content) { return begins_with(content, {0xff, 0xd8, 0xff}); }
bool is_png(FileBytes content) { return begins_with(content, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}); }

}  // namespace

bool has_read_format(FileBytes content) { return is_jpeg(content) || is_png(content); }

std::unique_ptr<ImageFile> ImageFile::open(FileBytes content, std::string name, std::int64_t most_pixels) {
  require<DataError>(!content.empty(), name, ": is empty, expected a JPEG or PNG image");
  if (is_jpeg(content)) return open_jpeg(content, std::move(name), most_pixels);
  if (is_png(content)) return open_png(content, std::move(name), most_pixels);
  const std::string format = describe_format(std::as_bytes(content));
  throw DataError(concat(name, ": is no JPEG and no PNG image: it begins with the bytes ",
                         to_hex(std::as_bytes(content.first(std::min(content.size(), kFormatBytes)))),
                         format.empty() ? "" : " and is ", format));
}

void ImageFile::set_size(std::int64_t width, std::int64_t height, std::int64_t most_pixels) {
  require<DataError>(width > 0 && height > 0 && width <= most_pixels / height, name_, ": has ", width, " x ", height,
                     " pixels, expected 1 to ", most_pixels, " in all");
  width_ = width;
  height_ = height;
}

void read_content(const std::filesystem::path& path, std::vector<std::uint8_t>& content) {
  FileReader file(path.string());
  content.resize(file.size());
  file.read(std::as_writable_bytes(std::span(content)));
}

Pixels read_image(const std::filesystem::path& path) {
  std::vector<std::uint8_t> content;
  read_content(path, content);
  const auto file = ImageFile::open(content, path.string());
  Pixels pixels;
  file->read({0, 0, file->width(), file->height()}, pixels);
  return pixels;
}

}  // namespace duet::data
