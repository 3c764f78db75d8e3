#include "lib/data/resident_images.h"

#include <cstdint>
#include <span>

#include "lib/backend/backend.h"

namespace duet::data {

ResidentImages::ResidentImages(const ImageDataset& images, Device device)
    : images_(images.images().to(device)),
      labels_(images.labels().to(device)),
      sample_shape_(images.sample_shape()),
      pixels_(images.pixels()) {}

void ResidentImages::fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const {
  const Tensor numbers = empty({static_cast<std::int64_t>(indices.size())}, DType::i64, device());
  bring(indices, numbers);
  gather(numbers, samples, labels);
}

void ResidentImages::bring(std::span<const std::int64_t> indices, const Tensor& numbers) const {
  check(indices);
  // borrow takes what may be written; these are only read.
  copy(borrow(const_cast<std::int64_t*>(indices.data()), numbers.shape(), DType::i64), numbers);
}

void ResidentImages::gather(const Tensor& indices, const Tensor& samples, const Tensor& labels) const {
  backend(images_).gather_images(images_, labels_, indices, pixels_.mean, pixels_.deviation, samples, labels);
}

}  // namespace duet::data
