// Images in folders, a folder a class.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/data/dataset.h"
#include "lib/data/images/view.h"

namespace duet::data {

/// The statistics of red, green and blue.
using ChannelStatistics = std::array<PixelStatistics, 3>;
/// The statistics with which all of torchvision's networks were trained.
inline constexpr ChannelStatistics kImageNetPixels = {{{0.485f, 0.229f}, {0.456f, 0.224f}, {0.406f, 0.225f}}};

struct ImageFolderOptions {
  std::variant<ResizeCentreCrop, RandomResizedCrop> transform = ResizeCentreCrop{};
  ChannelStatistics pixels = kImageNetPixels;
  /// Reads JPEGs at a half, a quarter or an eighth where the crop still has at least the pixels of the sample: several
  /// times faster for photographs of several megapixels. The pixels are then not Pillow's.
  bool scaled_decoding = false;
  /// In place of an image that cannot be decoded takes the next one of its class that can, also behind its last the
  /// first. This depends on the files alone, so all ranks, workers and epochs agree, and sizes stay. An evaluation
  /// counts the stand-in twice. Without it such an image is a DataError. A file that cannot be read at all is one in
  /// any case.
  bool skip_broken = false;
  /// Called once for each image that is skipped, by the thread that reads it, but once in all, by the constructor, for
  /// those of formats that are not read; unset: one line on the standard error.
  std::function<void(const std::string&)> warn{};
};

/// torchvision's ImageFolder: DIR/CLASS/.../NAME. Classes are the folders in DIR by name, without hidden ones and those
/// that systems make (see class_names()), which are left out with a warning on the standard error; samples are the
/// files of each whose names end, in any case, in .jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff or .webp, in
/// torchvision's order; links are followed. Of these formats JPEG and PNG are read (lib/data/images/image_file.h), by
/// their first bytes; others are broken images, and not left out in silence. Labels are the classes' numbers.
///
/// Rank 0 of a job warns about images that lose something when they're decoded (ImageFile::Loss): once for each kind in
/// a set, when the folder is listed if the beginnings of the files tell it. It also warns about images that are left
/// out by the ends of their names, such as .gif.
///
/// fetch decodes, crops, resizes and normalises: f32 (n, 3, size, size), with the bits of torchvision on Pillow 13.0.0
/// for the same crop. Random crops are keyed by (seed, epoch, number of the sample). Give the loader worker threads.
class ImageFolder : public Dataset {
 public:
  /// Lists the folder; reads no image, but the first 8 KB of its files: of more than 200,000 only those of hidden
  /// files, and of files that are named as of another format than JPEG and PNG.
  /// Throws DataError: no folder, no class in it, a class without images, a folder that cannot be listed, a link that
  /// leads nowhere or back to a folder around it, files of other formats (unless skip_broken), or a duet that was built
  /// without images; UsageError as check(transform) and Normaliser.
  explicit ImageFolder(const std::filesystem::path& root, const ImageFolderOptions& options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Shape sample_shape() const override { return {3, side_, side_}; }
  /// Hashes the labels and the files' names below the root.
  std::uint64_t data_hash() const override;
  /// In current_epoch().
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override {
    fetch_in_epoch(current_epoch(), indices, samples, labels);
  }
  /// Throws DataError that names the file, for an image that cannot be read. With random crops, warns once if a loader
  /// is in another epoch: a set between them has replaced it.
  void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                      const Tensor& labels) const override;

  const std::vector<std::string>& classes() const { return classes_; }
  /// Lists the classes of a folder, without hidden folders, such as .ipynb_checkpoints, and those of macOS, NAS devices
  /// and file systems (such as __MACOSX and lost+found).
  static std::vector<std::string> class_names(const std::filesystem::path& root);
  /// The path and the label of a sample. Both throw DataError for a number that no sample has.
  std::filesystem::path path(std::int64_t index) const;
  std::int64_t label(std::int64_t index) const;
  /// The samples skipped so far, in their order: file and reason.
  std::vector<std::string> broken() const;

 private:
  class Workspace;
  void add_class(const std::string& name, std::vector<std::string>& left_out);
  void look_at_files();
  /// `count`: images of this loss; 0: unknown.
  void warn_of_losses(unsigned losses, std::int64_t file, std::int64_t count) const;
  /// Its path below the root.
  std::string_view name_of(std::int64_t index) const;
  View view_of(std::int64_t width, std::int64_t height, std::int64_t epoch, std::int64_t index) const;
  void make_sample(Workspace& work, std::int64_t file, std::int64_t epoch, std::int64_t index, float* out) const;
  bool try_sample(Workspace& work, std::int64_t file, std::int64_t epoch, std::int64_t index, float* out) const;

  std::filesystem::path root_;
  ImageFolderOptions options_;
  std::int64_t side_;
  std::array<Normaliser, 3> normalisers_;
  std::vector<std::string> classes_;
  std::vector<std::int64_t> begins_;  // first sample of each class, and the number of samples
  std::string names_;                 // all files' paths below the root: millions of strings would be large
  std::vector<std::size_t> ends_;     // end of each path in names_
  std::vector<std::int32_t> labels_;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::string> broken_;  // by sample
  mutable std::once_flag warned_;                       // of another epoch
  mutable std::atomic<unsigned> warned_losses_ = 0;
};

/// Throws DataError that begins with `subject` and names the classes that only one of two sets has, unless they agree.
void require_same_classes(const std::string& subject, const ImageFolder& train, const ImageFolder& val);

}  // namespace duet::data
