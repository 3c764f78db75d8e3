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

std::size_t number_at(FileBytes bytes, std::size_t at, std::size_t count, bool big_endian = true) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < count; ++i)
    number = number << 8 | (at + count <= bytes.size() ? bytes[big_endian ? at + i : at + count - 1 - i] : 0);
  return number;
}

/// Calls visit(kind, data) for each segment of a JPEG before its pixels, or each chunk of a PNG; the last may be cut.
template <class Visit>
void for_each_part(FileBytes content, const Visit& visit) {
  const bool jpeg = is_jpeg(content);
  for (std::size_t at = jpeg ? 2 : 8; at + 8 <= content.size();) {
    const std::size_t length = jpeg ? number_at(content, at + 2, 2) : number_at(content, at, 4);
    const std::size_t kind = jpeg ? number_at(content, at, 2) : number_at(content, at + 4, 4);
    if (jpeg && (kind >> 8 != 0xff || kind == 0xffda || length < 2)) return;
    const std::size_t begin = at + (jpeg ? 4 : 8), end = begin + length - (jpeg ? 2 : 0);
    visit(kind, content.subspan(begin, std::min(end, content.size()) - begin));
    at = end + (jpeg ? 0 : 4);
  }
}

/// Whether Exif data, a TIFF file, says that the picture is to be turned or mirrored.
bool is_turned(FileBytes exif) {
  constexpr std::size_t kEntry = 12, kOrientationTag = 0x112, kShort = 3;
  const bool big = begins_with(exif, {'M', 'M'});
  const auto number = [&](std::size_t at, std::size_t count) { return number_at(exif, at, count, big); };
  const std::size_t list = number(4, 4);
  for (std::size_t i = 0, at = list + 2; i < number(list, 2) && at + kEntry <= exif.size(); ++i, at += kEntry)
    if (number(at, 2) == kOrientationTag) return number(at + 8, number(at + 2, 2) == kShort ? 2 : 4) > 1;
  return false;
}

}  // namespace

bool has_read_format(FileBytes content) { return is_jpeg(content) || is_png(content); }

unsigned ImageFile::losses_of(FileBytes content) {
  unsigned losses = 0;
  for_each_part(content, [&](std::size_t kind, FileBytes data) {
    constexpr std::size_t kExif = 0x45786966;
    const bool frame = kind >> 4 == 0xffc && kind != 0xffc4 && kind != 0xffc8 && kind != 0xffcc;  // of a JPEG
    if (frame && number_at(data, 5, 1) == 4) losses |= kInks;
    if (kind == 0xffe1 && data.size() > 6 && number_at(data, 0, 4) == kExif && is_turned(data.subspan(6)))
      losses |= kOrientation;
    if (kind == 0x65584966 && is_turned(data)) losses |= kOrientation;  // eXIf
    if (kind == 0x74524e53) losses |= kAlpha;                           // tRNS
    if (kind != 0x49484452) return;                                     // IHDR
    const std::size_t depth = number_at(data, 8, 1), colours = number_at(data, 9, 1);
    if (depth == 16) losses |= colours == 0 ? kWideGrey : kWideColour;
    if ((colours & 4) != 0) losses |= kAlpha;
  });
  return losses;
}

std::unique_ptr<ImageFile> ImageFile::open(FileBytes content, std::string name, std::int64_t most_pixels) {
  require<DataError>(!content.empty(), name, ": is empty, expected a JPEG or PNG image");
  if (!has_read_format(content)) {
    const std::string format = describe_format(std::as_bytes(content));
    throw DataError(concat(name, ": is neither a JPEG nor a PNG image: it begins with the bytes ",
                           to_hex(std::as_bytes(content.first(std::min(content.size(), kFormatBytes)))),
                           format.empty() ? "" : " and is ", format));
  }
  return is_jpeg(content) ? open_jpeg(content, std::move(name), most_pixels)
                          : open_png(content, std::move(name), most_pixels);
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
