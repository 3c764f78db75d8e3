// JPEG by libjpeg-turbo, and PNG by libpng.
// clang-format off
#include <stdio.h>  // jpeglib.h needs it, and does not include it
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/images/image_file.h"
#include "lib/error.h"

namespace duet::data {
namespace {

using Bytes = std::span<const std::uint8_t>;

// Pillow has no such limit; without one a small progressive file can take minutes.
constexpr int kMostScans = 500;

/// The error state of libjpeg, which jumps to `jump` when it gives up: its functions must not return then.
struct Failure {
  jpeg_error_mgr manager;  // first: libjpeg hands out its address
  std::jmp_buf jump;
  char reason[JMSG_LENGTH_MAX];
};

[[noreturn]] void give_up(j_common_ptr info) {
  auto* const failure = reinterpret_cast<Failure*>(info->err);
  info->err->format_message(info, failure->reason);
  std::longjmp(failure->jump, 1);
}

/// Warnings are passed over, as Pillow does, but that the data ended: libjpeg would fill in the rest.
void note(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) give_up(info);
}

void count_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostScans) return;
  auto* const failure = reinterpret_cast<Failure*>(info->err);
  std::snprintf(failure->reason, sizeof failure->reason, "more than %d scans", kMostScans);
  std::longjmp(failure->jump, 1);
}

void prepare(Failure& failure) {
  jpeg_std_error(&failure.manager);
  failure.manager.error_exit = give_up;
  failure.manager.emit_message = note;
}

/// Runs an action that calls libjpeg or libpng, which jump to `target`, and owns nothing: a jump out of it destroys
/// nothing. Returns whether it ended.
template <class Target, class Action>
bool completes(Target& target, const Action& action) {
  if (setjmp(target.jump) != 0) return false;
  action();
  return true;
}

/// Four inks, inverted, to three colours in place, as Pillow rounds them.
void inks_to_colours(const std::uint8_t* inks, std::int64_t width, std::uint8_t* out) {
  for (std::int64_t i = 0; i < width; ++i, inks += 4, out += 3) {
    const int white = inks[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - inks[c]) * white + 128;
      out[c] = static_cast<std::uint8_t>(std::max(white - ((product + (product >> 8)) >> 8), 0));
    }
  }
}

class JpegFile : public ImageFile {
 public:
  JpegFile(Bytes content, std::string name, std::int64_t most_pixels)
      : ImageFile(std::move(name)),
        ends_whole_(content.size() >= 2 && content[content.size() - 2] == 0xff && content.back() == JPEG_EOI) {
    prepare(failure_);
    info_.err = &failure_.manager;
    check(completes(failure_, [&] { jpeg_create_decompress(&info_); }));
    try {
      progress_.progress_monitor = count_scans;
      info_.progress = &progress_;
      check(completes(failure_, [&] {
        jpeg_mem_src(&info_, content.data(), content.size());
        jpeg_read_header(&info_, TRUE);
      }));
      require<DataError>(info_.num_components == 1 || info_.num_components == 3 || info_.num_components == 4, name_,
                         ": has ", info_.num_components, " components, expected 1, 3 or 4");
      set_size(info_.image_width, info_.image_height, most_pixels);
    } catch (...) {
      jpeg_destroy_decompress(&info_);
      throw;
    }
    info_.out_color_space = info_.num_components == 4 ? JCS_CMYK : JCS_RGB;
  }
  ~JpegFile() override { jpeg_destroy_decompress(&info_); }

  int shrink(int divisor) override {
    require<UsageError>(divisor == 1 || divisor == 2 || divisor == 4 || divisor == 8,
                        "an image shrinks by 1, 2, 4 or 8, got ", divisor);
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(divisor);
    check(completes(failure_, [&] { jpeg_calc_output_dimensions(&info_); }));
    width_ = info_.output_width;
    height_ = info_.output_height;
    return divisor;
  }

  void read(const Region& wanted, Pixels& out) override {
    // Chroma of the outermost column is not interpolated, so a column more is read on either side, and whole blocks.
    constexpr std::int64_t kMargin = 2;
    const std::int64_t left = std::max<std::int64_t>(wanted.x - kMargin, 0);
    const std::int64_t right = std::min(wanted.x + wanted.width + kMargin, width_);
    JDIMENSION x = static_cast<JDIMENSION>(left), width = static_cast<JDIMENSION>(right - left);
    check(completes(failure_, [&] {
      jpeg_start_decompress(&info_);
      if (right - left < width_) jpeg_crop_scanline(&info_, &x, &width);
      if (wanted.y > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(wanted.y));
    }));
    out.lay_out({x, wanted.y, width, wanted.height});
    line_.resize(4 * static_cast<std::size_t>(width));
    check(completes(failure_, [&] { read_rows(out); }));
  }

 private:
  void check(bool completed) const { require<DataError>(completed, name_, ": ", failure_.reason); }

  void read_rows(Pixels& out) {
    const bool inks = info_.num_components == 4;
    for (std::int64_t row = 0; row < out.region.height; ++row) {
      std::uint8_t* const to = out.bytes.data() + static_cast<std::size_t>(row) * out.row_bytes();
      JSAMPROW line = inks ? line_.data() : to;
      jpeg_read_scanlines(&info_, &line, 1);
      if (inks) inks_to_colours(line, out.region.width, to);
    }
    // A file that ends with its last marker was not cut. Of others the end is read, too; the last row is not skipped,
    // because libjpeg skips to the end without a look at the data.
    const JDIMENSION left = info_.output_height - info_.output_scanline;
    if (ends_whole_ || left == 0) return;
    if (left > 1) jpeg_skip_scanlines(&info_, left - 1);
    JSAMPROW line = line_.data();
    jpeg_read_scanlines(&info_, &line, 1);
  }

  bool ends_whole_;
  Failure failure_;
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_{};
  std::vector<std::uint8_t> line_;  // a row of inks, or one that is discarded
};

}  // namespace

std::unique_ptr<ImageFile> ImageFile::open_jpeg(Bytes content, std::string name, std::int64_t most_pixels) {
  return std::make_unique<JpegFile>(content, std::move(name), most_pixels);
}

bool has_image_codecs() { return true; }

std::vector<std::uint8_t> encode_jpeg(const Pixels& pixels, int quality) {
  require<UsageError>(1 <= quality && quality <= 100, "a JPEG's quality is 1 to 100, got ", quality);
  const Region& region = pixels.region;
  require<DataError>(1 <= region.width && region.width <= JPEG_MAX_DIMENSION && 1 <= region.height &&
                         region.height <= JPEG_MAX_DIMENSION,
                     "a JPEG has 1 to ", JPEG_MAX_DIMENSION, " rows and columns, got ", region.height, " x ",
                     region.width);
  require<UsageError>(pixels.bytes.size() >= pixels.row_bytes() * static_cast<std::size_t>(region.height), "pixels of ",
                      pixels.bytes.size(), " bytes, expected ", region.height, " rows of ", pixels.row_bytes());
  struct Encoder {
    Failure failure;
    jpeg_compress_struct info{};
    unsigned char* memory = nullptr;
    unsigned long bytes = 0;
    bool finished = false;  // before that libjpeg may have moved the memory
    ~Encoder() {
      jpeg_destroy_compress(&info);
      if (finished) std::free(memory);
    }
  } encoder;
  prepare(encoder.failure);
  encoder.info.err = &encoder.failure.manager;
  const bool complete = completes(encoder.failure, [&] {
    jpeg_compress_struct& info = encoder.info;
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &encoder.memory, &encoder.bytes);
    info.image_width = static_cast<JDIMENSION>(region.width);
    info.image_height = static_cast<JDIMENSION>(region.height);
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    for (std::int64_t y = 0; y < region.height; ++y) {
      JSAMPROW row = const_cast<JSAMPROW>(pixels.at(region.x, region.y + y));
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    encoder.finished = true;
  });
  require<DataError>(complete, "a JPEG cannot be made: ", encoder.failure.reason);
  return {encoder.memory, encoder.memory + encoder.bytes};
}

namespace {

/// The state that libpng's callbacks see.
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

std::unique_ptr<ImageFile> ImageFile::open_png(Bytes content, std::string name, std::int64_t most_pixels) {
  return std::make_unique<PngFile>(content, std::move(name), most_pixels);
}

}  // namespace duet::data
