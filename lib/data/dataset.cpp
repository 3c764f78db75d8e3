#include "lib/data/dataset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/base/sha256.h"
#include "lib/random.h"

namespace duet::data {
namespace {

Shape without_rows(const Shape& shape) {
  Shape sample;
  for (int d = 1; d < shape.rank(); ++d) sample.append(shape[d]);
  return sample;
}

void copy_labels(const Tensor& all, std::span<const std::int64_t> indices, const Tensor& labels) {
  const std::int64_t* const from = all.data<std::int64_t>();
  std::transform(indices.begin(), indices.end(), labels.data<std::int64_t>(), [&](std::int64_t i) { return from[i]; });
}

Tensor random_samples(std::int64_t size, std::int64_t length, std::uint64_t seed) {
  require<UsageError>(size > 0 && length >= 0, "a random data set needs size > 0 and length >= 0, got size ", size,
                      " and length ", length);
  Tensor samples = empty({length, size});
  Mt19937(seed).randn(samples.span<float>());
  return samples;
}

/// From `hash` on.
std::uint64_t hash_of(std::uint64_t hash, std::span<const std::int64_t> numbers) {
  for (const std::int64_t number : numbers) hash = mixed(hash, static_cast<std::uint64_t>(number));
  return hash;
}

std::uint64_t hash_of_labels(const Tensor& labels) {
  const Tensor here = labels.to(Device{});
  return hash_of(static_cast<std::uint64_t>(here.count()), here.span<std::int64_t>());
}

}  // namespace

void Dataset::check(std::span<const std::int64_t> indices) const {
  const std::int64_t n = size();
  for (const std::int64_t index : indices) {
    require<DataError>(0 <= index && index < n, "sample ", index, " asked of a data set of ", n, " samples");
  }
}

ImageDataset::ImageDataset(Tensor images, Tensor labels, const PixelStatistics& pixels)
    : images_(std::move(images)), labels_(std::move(labels)), normaliser_(pixels) {
  require<ShapeError>(images_.dtype() == DType::u8 && images_.shape().rank() == 4,
                      "images must be u8 (n, c, h, w), got ", images_.dtype(), " ", images_.shape());
  require<ShapeError>(labels_.dtype() == DType::i64 && labels_.shape().rank() == 1, "labels must be i64 (n), got ",
                      labels_.dtype(), " ", labels_.shape());
  require<DataError>(images_.size(0) == labels_.size(0), "got ", images_.size(0), " images but ", labels_.size(0),
                     " labels");
}

Shape ImageDataset::sample_shape() const { return without_rows(images_.shape()); }

std::uint64_t ImageDataset::data_hash() const { return hash_of_labels(labels_); }

void ImageDataset::fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const {
  check(indices);
  normaliser_.gather(images_.data<std::uint8_t>(), static_cast<std::size_t>(images_.shape().count_from(1)), indices,
                     samples.data<float>());
  copy_labels(labels_, indices, labels);
}

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
  backend(images()).gather_images(images(), this->labels(), indices, pixels().mean, pixels().deviation, samples,
                                  labels);
}

TensorDataset::TensorDataset(Tensor samples, Tensor labels) : samples_(std::move(samples)), labels_(std::move(labels)) {
  require<ShapeError>(samples_.dtype() == DType::f32 && samples_.shape().rank() >= 1,
                      "samples must be f32 (n, ...), got ", samples_.dtype(), " ", samples_.shape());
  require<DataError>(!labels_.defined() || labels_.shape() == Shape{samples_.size(0)}, "got ", samples_.size(0),
                     " samples but labels of shape ", labels_.shape());
}

Shape TensorDataset::sample_shape() const { return without_rows(samples_.shape()); }

std::uint64_t TensorDataset::data_hash() const { return has_labels() ? hash_of_labels(labels_) : 0; }

void TensorDataset::fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const {
  check(indices);
  const std::int64_t width = samples_.shape().count_from(1);
  float* to = samples.data<float>();
  for (const std::int64_t index : indices) {
    to = std::copy_n(samples_.data<float>() + index * width, width, to);
  }
  if (has_labels()) copy_labels(labels_, indices, labels);
}

RandomDataset::RandomDataset(std::int64_t size, std::int64_t length, std::uint64_t seed)
    : TensorDataset(random_samples(size, length, seed)) {}

Subset::Subset(const Dataset& all, std::vector<std::int64_t> indices) : all_(all), indices_(std::move(indices)) {
  const std::int64_t n = all.size();
  for (const std::int64_t index : indices_) {
    require<DataError>(0 <= index && index < n, "a subset names sample ", index, " of a data set of ", n, " samples");
  }
}

std::uint64_t Subset::data_hash() const {
  const std::uint64_t whole = all_.data_hash();
  return whole == 0 ? 0 : hash_of(whole, indices_);
}

void Subset::fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                            const Tensor& labels) const {
  check(indices);
  std::array<std::int64_t, 256> mapped;  // in pieces of a fixed size: a step allocates nothing
  for (std::size_t begin = 0; begin < indices.size(); begin += mapped.size()) {
    const auto part = indices.subspan(begin, std::min(mapped.size(), indices.size() - begin));
    std::transform(part.begin(), part.end(), mapped.begin(),
                   [&](std::int64_t i) { return indices_[static_cast<std::size_t>(i)]; });
    const auto from = static_cast<std::int64_t>(begin), to = from + static_cast<std::int64_t>(part.size());
    all_.fetch_in_epoch(epoch, std::span(mapped).first(part.size()), samples.rows(from, to),
                        has_labels() ? labels.rows(from, to) : labels);
  }
}

}  // namespace duet::data
