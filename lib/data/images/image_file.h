// JPEG and PNG files as pixels of three bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace duet::data {

/// A rectangle of an image, in pixels from its upper left corner.
struct Region {
  std::int64_t x = 0, y = 0, width = 0, height = 0;
  bool operator==(const Region&) const = default;
};

/// A part of an image: its rows from the top down, pixels of three bytes: red, green, blue.
struct Pixels {
  Region region;                    // where it lies in the image
  std::vector<std::uint8_t> bytes;  // the rows without gaps, then kSlack bytes or more that mean nothing

  static constexpr std::size_t kSlack = 32;  // vector code may read as far past the last pixel
  std::size_t row_bytes() const { return 3 * static_cast<std::size_t>(region.width); }
  /// Makes room, and keeps what is there for the next image.
  void lay_out(const Region& part) {
    region = part;
    const std::size_t needed = row_bytes() * static_cast<std::size_t>(part.height) + kSlack;
    if (bytes.size() < needed) bytes.resize(needed);
  }
  /// Row `y` of the image, from pixel `x` on.
  const std::uint8_t* at(std::int64_t x, std::int64_t y) const {
    return bytes.data() + static_cast<std::size_t>(y - region.y) * row_bytes() +
           3 * static_cast<std::size_t>(x - region.x);
  }
  std::uint8_t* at(std::int64_t x, std::int64_t y) {
    return const_cast<std::uint8_t*>(static_cast<const Pixels*>(this)->at(x, y));
  }
};

/// Images of more pixels are refused, as Pillow refuses them: a small file can announce any size.
inline constexpr std::int64_t kMostPixels = 178'956'970;

/// An image whose header was read. The pixels are those that Pillow 13's convert('RGB') gives, byte for byte: of grey
/// and CMYK JPEGs (with inverted inks, as Adobe writes them), and of grey, palette, 16-bit and transparent PNGs, whose
/// alpha is dropped and whose 16-bit grey is cut at 255. Orientation tags are ignored, as there. Not thread-safe.
class ImageFile {
 public:
  /// JPEG or PNG by its first bytes, as Pillow decides, whatever the name's ending. The content must outlive the
  /// result. Throws DataError that begins with `name`: empty, of another format, damaged, or of more than
  /// `most_pixels`.
  static std::unique_ptr<ImageFile> open(std::span<const std::uint8_t> content, std::string name,
                                         std::int64_t most_pixels = kMostPixels);
  /// Properties of an image that the pixels lose: bits of a set.
  enum Loss : unsigned { kWideGrey = 1, kWideColour = 2, kAlpha = 4, kInks = 8, kOrientation = 16 };
  /// Returns the Loss bits of a file with this content, or of which it is the beginning: those that are seen there.
  static unsigned losses_of(std::span<const std::uint8_t> content);
  virtual ~ImageFile() = default;
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  std::int64_t width() const { return width_; }
  std::int64_t height() const { return height_; }

  /// Divides width and height by 2, 4 or 8, rounding up, where the format can do that cheaply: JPEG's transform at a
  /// smaller scale. Before read(). Returns the divisor, 1 for a PNG. The pixels are not Pillow's.
  virtual int shrink(int divisor) = 0;
  /// Reads pixels that contain `wanted`, which lies in the image; of a JPEG little more, of a PNG all. At most once.
  /// Throws DataError that begins with the name, for a file that ends early, and where its library gives up; damage
  /// that the library passes over, and Pillow with it, is not found.
  virtual void read(const Region& wanted, Pixels& out) = 0;

 protected:
  explicit ImageFile(std::string name) : name_(std::move(name)) {}
  /// Throws DataError for a size that is not positive or has more pixels than that.
  void set_size(std::int64_t width, std::int64_t height, std::int64_t most_pixels);

  std::string name_;
  std::int64_t width_ = 0, height_ = 0;

 private:
  /// open() for one format: codecs.cpp, or no_codecs.cpp where duet is built without their libraries.
  static std::unique_ptr<ImageFile> open_jpeg(std::span<const std::uint8_t> content, std::string name,
                                              std::int64_t most_pixels);
  static std::unique_ptr<ImageFile> open_png(std::span<const std::uint8_t> content, std::string name,
                                             std::int64_t most_pixels);
};

/// Whether a file that begins with these bytes is one that ImageFile::open() reads, damage apart.
bool has_read_format(std::span<const std::uint8_t> content);
inline constexpr std::size_t kFormatBytes = 8;  // as many as has_read_format() looks at
/// Bytes at the beginning of a file that show what nearly every image loses. Some losses are only seen further on.
inline constexpr std::size_t kLossBytes = 8191;

/// Whether this duet was built with libjpeg-turbo and libpng (Meson option `images`). Else open() and encode_jpeg()
/// throw DataError.
bool has_image_codecs();

/// A file's content, into `content`. Throws DataError that names it: no regular file, or not readable.
void read_content(const std::filesystem::path& path, std::vector<std::uint8_t>& content);

/// A whole image. Throws as ImageFile and read_content.
Pixels read_image(const std::filesystem::path& path);

/// A JPEG of this quality (1 to 100, as libjpeg counts), with colours at half the resolution. Throws DataError for
/// sizes that JPEG cannot hold.
std::vector<std::uint8_t> encode_jpeg(const Pixels& pixels, int quality = 90);

}  // namespace duet::data
