// PNG by libpng.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/images/codecs.h"
#include "lib/error.h"

namespace duet::data {
namespace {

using Bytes = std::span<const std::uint8_t>;

/// What libpng's calls back see.
struct Stream {
  Bytes left;
  std::jmp_buf jump;
  char reason[200];
};

[[noreturn]] void give_up(png_structp png, png_const_charp reason) {
  auto* const stream = static_cast<Stream*>(png_get_error_ptr(png));
  std::snprintf(stream->reason, sizeof stream->reason, "%s", reason);
  std::longjmp(stream->jump, 1);
}

void pass_over(png_structp, png_const_charp) {}

void take(png_structp png, png_bytep out, std::size_t bytes) {
  auto* const stream = static_cast<Stream*>(png_get_io_ptr(png));
  if (bytes > stream->left.size()) png_error(png, "the file ends early");
  std::memcpy(out, stream->left.data(), bytes);
  stream->left = stream->left.subspan(bytes);
}

/// Runs an action that calls libpng and owns nothing: a jump out of it destroys nothing. Returns whether it ended.
template <class Action>
bool completes(Stream& stream, const Action& action) {
  if (setjmp(stream.jump) != 0) return false;
  action();
  return true;
}

class PngFile : public ImageFile {
 public:
  PngFile(Bytes content, std::string name, std::int64_t most_pixels) : ImageFile(std::move(name)) {
    stream_.left = content;
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &stream_, give_up, pass_over);
    info_ = png_ != nullptr ? png_create_info_struct(png_) : nullptr;
    try {
      require<Error>(info_ != nullptr, name_, ": libpng has no memory, or is not version ", PNG_LIBPNG_VER_STRING);
      check(completes(stream_, [&] {
        png_set_read_fn(png_, &stream_, take);
        png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // texts, profiles
        png_read_info(png_, info_);
      }));
      set_size(png_get_image_width(png_, info_), png_get_image_height(png_, info_), most_pixels);
      check(completes(stream_, [&] { choose_colours(); }));
    } catch (...) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      throw;
    }
  }
  ~PngFile() override { png_destroy_read_struct(&png_, &info_, nullptr); }

  int shrink(int) override { return 1; }

  void read(const Region&, Pixels& out) override {
    out.lay_out({0, 0, width_, height_});
    const std::size_t row_bytes = wide_grey_ ? 2 * static_cast<std::size_t>(width_) : out.row_bytes();
    if (wide_grey_) wide_.resize(row_bytes * static_cast<std::size_t>(height_));
    rows_.resize(static_cast<std::size_t>(height_));
    for (std::size_t y = 0; y < rows_.size(); ++y)
      rows_[y] = (wide_grey_ ? wide_.data() : out.bytes.data()) + y * row_bytes;
    check(completes(stream_, [&] {
      png_read_update_info(png_, info_);
      if (png_get_rowbytes(png_, info_) != row_bytes) png_error(png_, "rows have another size than its header says");
      png_read_image(png_, rows_.data());
    }));
    for (std::size_t i = 0; i < wide_.size() / 2; ++i) {
      const std::uint8_t grey = wide_[2 * i] == 0 ? wide_[2 * i + 1] : std::uint8_t{255};
      std::fill_n(out.bytes.begin() + static_cast<std::ptrdiff_t>(3 * i), 3, grey);
    }
  }

 private:
  void check(bool completed) const { require<DataError>(completed, name_, ": ", stream_.reason); }

  void choose_colours() {
    const int depth = png_get_bit_depth(png_, info_), colours = png_get_color_type(png_, info_);
    wide_grey_ = depth == 16 && colours == PNG_COLOR_TYPE_GRAY;
    if (wide_grey_) {
      png_set_interlace_handling(png_);
      return;
    }
    if (colours == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (colours == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png_);
    if ((colours & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
  }

  Stream stream_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  bool wide_grey_ = false;  // 16 bits, which are cut and not scaled
  std::vector<std::uint8_t> wide_;
  std::vector<png_bytep> rows_;
};

}  // namespace

std::unique_ptr<ImageFile> open_png(Bytes content, std::string name, std::int64_t most_pixels) {
  return std::make_unique<PngFile>(content, std::move(name), most_pixels);
}

}  // namespace duet::data
