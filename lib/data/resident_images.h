// An image data set that lies on a device.
#pragma once

#include <cstdint>
#include <span>

#include "lib/data/dataset.h"
#include "lib/data/normalise.h"

namespace duet::data {

/// The bytes and labels of an image data set, copied to a device once. Batches are made there, with the bits that the
/// data set itself gives: per batch only the numbers of its samples are copied.
///
/// Where one process drives several devices, the set lies on the first, which hands out the pieces of each batch as it
/// would those of a batch from the host: the wrapper needs no other way for its input, and the set is held once.
class ResidentImages : public Dataset {
 public:
  /// Copies; `images` may go afterwards. Throws DeviceError when the device has no room.
  ResidentImages(const ImageDataset& images, Device device);

  std::int64_t size() const override { return images_.size(0); }
  Shape sample_shape() const override { return sample_shape_; }
  Device device() const override { return images_.device(); }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override;

  /// Copies the numbers of samples to `numbers` (i64, (n)) on the device. Throws DataError for one outside [0, size()).
  void bring(std::span<const std::int64_t> indices, const Tensor& numbers) const;
  /// fetch for indices (i64, (n)) that lie on the device and are not checked.
  void gather(const Tensor& indices, const Tensor& samples, const Tensor& labels) const;

 private:
  Tensor images_, labels_;
  Shape sample_shape_;
  PixelStatistics pixels_;
};

}  // namespace duet::data
