// Random-access sets of samples, and how stored bytes become the network's input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/tensor.h"

namespace duet::data {

/// Mean and standard deviation of training pixels, which are numbers from 0 to 1.
struct PixelStatistics {
  float mean, deviation;
};
/// The mean and deviation by which the tutorials normalise.
inline constexpr PixelStatistics kMnistPixels = {0.1307f, 0.3081f}, kFashionMnistPixels = {0.2860f, 0.3530f};

/// Turns bytes into (byte / 255 - mean) / deviation in float, rounded after every operation: the bits of torchvision's
/// ToTensor and Normalize. Never changes: any threads may use one.
class Normaliser {
 public:
  /// Throws UsageError unless both numbers are finite and the deviation is above 0.
  explicit Normaliser(const PixelStatistics& pixels);
  const PixelStatistics& pixels() const { return pixels_; }
  float operator()(std::uint8_t byte) const { return table_[byte]; }

  /// out[i] = row indices[i] of `rows` (row_bytes bytes each). The indices are not checked.
  void gather(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices, float* out) const;
  /// gather() by a table of the 256 results: the version for processors without FMA, and the oracle of the other one.
  void gather_by_table(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                       float* out) const;

 private:
  PixelStatistics pixels_;
  std::array<float, 256> table_;
  bool by_table_;  // without FMA, or where its division does not give the table's bits
};

/// Samples with numbers 0 .. size()-1, read-only: all functions may be called from many threads, but fetch of a set
/// that lies on a GPU by that GPU's one thread only.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// Shape of one sample, as fetch writes it.
  virtual Shape sample_shape() const = 0;
  virtual bool has_labels() const { return true; }
  /// A hash of the labels in their order, and of the samples' names or what they are drawn from, which are not read: so
  /// that another set of the same size is noticed where a run goes on, or between ranks. 0: unknown.
  virtual std::uint64_t data_hash() const { return 0; }
  /// The device to which fetch() writes.
  virtual Device device() const { return {}; }
  /// On device(), row i of `samples` (f32, (n, sample_shape...)) and entry i of `labels` (i64, (n)) become sample
  /// indices[i]; `labels` is not looked at without labels. Throws DataError for an index outside [0, size()). A set
  /// with random changes keys them by current_epoch().
  virtual void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const = 0;
  /// Fetches samples in an epoch, counted from 0; loaders call this. Random changes of samples are keyed by the epoch;
  /// sets without any ignore it. Calls fetch() unless overridden.
  virtual void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                              const Tensor& labels) const;
  /// Returns the epoch for which a loader, or fetch_in_epoch(), has called this thread; 0 if none has. So a set that
  /// calls fetch() of another one can't lose the epoch.
  static std::int64_t current_epoch();

 protected:
  void check(std::span<const std::int64_t> indices) const;
  /// Throws ShapeError unless such samples, and labels if they are defined, have room for what `set` writes: one around
  /// it may have another sample_shape().
  static void check(const Dataset& set, std::span<const std::int64_t> indices, const Tensor& samples,
                    const Tensor& labels);
};

/// Keeps Dataset::current_epoch() of this thread at `epoch` for as long as it lives.
class EpochScope {
 public:
  explicit EpochScope(std::int64_t epoch);
  ~EpochScope();
  EpochScope(const EpochScope&) = delete;
  EpochScope& operator=(const EpochScope&) = delete;

 private:
  std::int64_t before_;
};

/// Forwards everything to another data set: its epoch, labels, hash and device as well. Derive sets that change another
/// one's samples or labels from it, and override only what they change. To change samples, override fetch_in_epoch and
/// call DatasetWrapper's first; fetch() calls it with the current epoch. Can't be copied, because a copy of a wrapper
/// doesn't wrap it: to wrap one, pass it as `const Dataset&`.
class DatasetWrapper : public Dataset {
 public:
  /// Wraps a set that must outlive it, also a member of the derived class.
  explicit DatasetWrapper(const Dataset& inner)
      : DatasetWrapper(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &inner)) {}
  explicit DatasetWrapper(const Dataset&& inner) = delete;
  /// Shares a set. Throws UsageError for a null pointer.
  explicit DatasetWrapper(std::shared_ptr<const Dataset> inner);
  DatasetWrapper(const DatasetWrapper&) = delete;
  DatasetWrapper& operator=(const DatasetWrapper&) = delete;

  std::int64_t size() const override { return inner_->size(); }
  Shape sample_shape() const override { return inner_->sample_shape(); }
  bool has_labels() const override { return inner_->has_labels(); }
  std::uint64_t data_hash() const override { return inner_->data_hash(); }
  Device device() const override { return inner_->device(); }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const final {
    fetch_in_epoch(current_epoch(), indices, samples, labels);
  }
  /// Throws ShapeError for samples of another size than the wrapped set's. Its labels are dropped if `labels` is
  /// undefined.
  void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                      const Tensor& labels) const override;

 protected:
  const Dataset& inner() const { return *inner_; }

 private:
  std::shared_ptr<const Dataset> inner_;
};

/// Images as bytes with their labels: MNIST and its like. fetch normalises.
class ImageDataset : public Dataset {
 public:
  /// images: u8 (n, 1, h, w); labels: i64 (n). Throws DataError when the counts differ, UsageError as Normaliser.
  ImageDataset(Tensor images, Tensor labels, const PixelStatistics& pixels = kMnistPixels);

  std::int64_t size() const override { return images_.size(0); }
  Shape sample_shape() const override;
  std::uint64_t data_hash() const override;
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override;

  const Tensor& images() const { return images_; }
  const Tensor& labels() const { return labels_; }
  /// The mean that fetch() subtracts, and the deviation by which it divides.
  const PixelStatistics& pixels() const { return normaliser_.pixels(); }

 private:
  Tensor images_, labels_;
  Normaliser normaliser_;
};

/// The bytes and labels of an image data set, copied to a device once. Batches are made there, with the bits that the
/// data set itself gives: per batch only the numbers of its samples are copied.
///
/// Where one process drives several devices, the set lies on the first, which hands out the pieces of each batch as it
/// would those of a batch from the host: the wrapper needs no other way for its input, and the set is held once.
class ResidentImages : public ImageDataset {
 public:
  /// Copies; `set` may go afterwards. Throws DeviceError when the device has no room.
  ResidentImages(const ImageDataset& set, Device device)
      : ImageDataset(set.images().to(device), set.labels().to(device), set.pixels()) {}

  Device device() const override { return images().device(); }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override;

  /// Copies the numbers of samples to `numbers` (i64, (n)) on the device. Throws DataError for one outside [0, size()).
  void bring(std::span<const std::int64_t> indices, const Tensor& numbers) const;
  /// fetch for indices (i64, (n)) that lie on the device and are not checked.
  void gather(const Tensor& indices, const Tensor& samples, const Tensor& labels) const;
};

/// Ready float samples, (n, ...), with or without i64 labels (n).
class TensorDataset : public Dataset {
 public:
  explicit TensorDataset(Tensor samples, Tensor labels = {});

  std::int64_t size() const override { return samples_.size(0); }
  Shape sample_shape() const override;
  bool has_labels() const override { return labels_.defined(); }
  std::uint64_t data_hash() const override;
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override;

  const Tensor& samples() const { return samples_; }

 private:
  Tensor samples_, labels_;
};

/// The DataParallel tutorial's RandomDataset(size, length): torch.randn(length, size) from a generator of this seed.
class RandomDataset : public TensorDataset {
 public:
  RandomDataset(std::int64_t size, std::int64_t length, std::uint64_t seed);
};

/// Some samples of another set, renumbered from 0. The other set must outlive it.
class Subset : public DatasetWrapper {
 public:
  /// Throws DataError for an index outside the set.
  Subset(const Dataset& all, std::vector<std::int64_t> indices);
  Subset(const Dataset&& all, std::vector<std::int64_t> indices) = delete;

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  std::uint64_t data_hash() const override;
  void fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                      const Tensor& labels) const override;

  const std::vector<std::int64_t>& indices() const { return indices_; }

 private:
  std::vector<std::int64_t> indices_;
};

}  // namespace duet::data
