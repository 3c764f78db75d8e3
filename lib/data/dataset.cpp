#include "lib/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lib/backend/backend.h"
#include "lib/base/sha256.h"
#include "lib/error.h"
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

thread_local std::int64_t epoch_of_thread = 0;

}  // namespace

EpochScope::EpochScope(std::int64_t epoch) : before_(std::exchange(epoch_of_thread, epoch)) {}
EpochScope::~EpochScope() { epoch_of_thread = before_; }

std::int64_t Dataset::current_epoch() { return epoch_of_thread; }

void Dataset::fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                             const Tensor& labels) const {
  const EpochScope scope(epoch);
  fetch(indices, samples, labels);
}

DatasetWrapper::DatasetWrapper(std::shared_ptr<const Dataset> inner) : inner_(std::move(inner)) {
  require<UsageError>(inner_ != nullptr, "a DatasetWrapper wraps nullptr, expected a data set");
}

void DatasetWrapper::fetch_in_epoch(std::int64_t epoch, std::span<const std::int64_t> indices, const Tensor& samples,
                                    const Tensor& labels) const {
  check(*inner_, indices, samples, labels);
  const bool drops = inner_->has_labels() && !labels.defined();
  const Tensor place = drops ? empty({std::ssize(indices)}, DType::i64, inner_->device()) : labels;
  inner_->fetch_in_epoch(epoch, indices, samples, place);
}

void Dataset::check(const Dataset& set, std::span<const std::int64_t> indices, const Tensor& samples,
                    const Tensor& labels) {
  set.check(indices);
  const std::int64_t n = std::ssize(indices);
  require<ShapeError>(samples.count() == n * set.sample_shape().count(), "samples have shape ", samples.shape(),
                      ", but the data set writes ", n, " of shape ", set.sample_shape(),
                      ": a set of another sample_shape() around it must fetch into a tensor of its own");
  require<ShapeError>(!set.has_labels() || !labels.defined() || labels.count() == n, "labels have shape ",
                      labels.shape(), ", expected ", Shape{n});
}

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
  check(*this, indices, samples, labels);
  normaliser_.gather(images_.data<std::uint8_t>(), static_cast<std::size_t>(images_.shape().count_from(1)), indices,
                     samples.data<float>());
  if (labels.defined()) copy_labels(labels_, indices, labels);
}

void ResidentImages::fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const {
  require<UsageError>(samples.device().kind == device().kind, "a batch on ", samples.device(),
                      " is fetched from a data set on ", device(),
                      ": a data set around it must forward device(); derive it from data::DatasetWrapper");
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
  check(*this, indices, samples, labels);
  const std::int64_t width = samples_.shape().count_from(1);
  float* to = samples.data<float>();
  for (const std::int64_t index : indices) {
    to = std::copy_n(samples_.data<float>() + index * width, width, to);
  }
  if (has_labels() && labels.defined()) copy_labels(labels_, indices, labels);
}

RandomDataset::RandomDataset(std::int64_t size, std::int64_t length, std::uint64_t seed)
    : TensorDataset(random_samples(size, length, seed)) {}

Subset::Subset(const Dataset& all, std::vector<std::int64_t> indices)
    : DatasetWrapper(all), indices_(std::move(indices)) {
  const std::int64_t n = all.size();
  for (const std::int64_t index : indices_) {
    require<DataError>(0 <= index && index < n, "a subset names sample ", index, " of a data set of ", n, " samples");
  }
}

std::uint64_t Subset::data_hash() const {
  const std::uint64_t whole = inner().data_hash();
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
    inner().fetch_in_epoch(epoch, std::span(mapped).first(part.size()), samples.rows(from, to),
                           has_labels() && labels.defined() ? labels.rows(from, to) : labels);
  }
}

namespace {

using Table = std::array<float, 256>;

const std::uint8_t* row(const std::uint8_t* rows, std::size_t row_bytes, std::int64_t index) {
  return rows + static_cast<std::size_t>(index) * row_bytes;
}

#if defined(__x86_64__)
#define DUET_FMA __attribute__((target("avx2,fma")))

/// Correctly rounded a / b without a division: one Newton step on a * (1 / b), whose remainder FMA gives exactly
/// (Markstein 1990). That a * (1 / b) is near enough for it is checked for all 256 bytes.
DUET_FMA inline __m256 divide(__m256 a, float b) {
  const __m256 divisor = _mm256_set1_ps(b), reciprocal = _mm256_set1_ps(1 / b);
  const __m256 quotient = _mm256_mul_ps(a, reciprocal);
  return _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, divisor, a), reciprocal, quotient);
}

DUET_FMA void normalise_fma(const std::uint8_t* in, std::size_t count, const PixelStatistics& pixels,
                            const Table& table, float* out) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
    const __m256 x = divide(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), 255.0f);
    _mm256_storeu_ps(out + i, divide(_mm256_sub_ps(x, _mm256_set1_ps(pixels.mean)), pixels.deviation));
  }
  for (; i < count; ++i) out[i] = table[in[i]];
}

bool has_fma() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
void normalise_fma(const std::uint8_t*, std::size_t, const PixelStatistics&, const Table&, float*) {}

bool has_fma() { return false; }
#endif

void fetch_row(const std::uint8_t* bytes, std::size_t count) {
  constexpr std::size_t kLine = 64;
  for (std::size_t byte = 0; byte < count; byte += kLine) __builtin_prefetch(bytes + byte);
}

/// Whether normalise_fma gives the table's bits for each of the 256 bytes.
bool fma_is_exact(const PixelStatistics& pixels, const Table& table) {
  if (!has_fma()) return false;
  std::array<std::uint8_t, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  Table out{};
  normalise_fma(bytes.data(), bytes.size(), pixels, table, out.data());
  return std::memcmp(out.data(), table.data(), sizeof out) == 0;
}

}  // namespace

Normaliser::Normaliser(const PixelStatistics& pixels) : pixels_(pixels) {
  require<UsageError>(std::isfinite(pixels.mean) && std::isfinite(pixels.deviation) && pixels.deviation > 0,
                      "pixels have mean ", pixels.mean, " and deviation ", pixels.deviation,
                      ", expected finite numbers and a deviation above 0");
  for (std::size_t byte = 0; byte < table_.size(); ++byte)
    table_[byte] = (static_cast<float>(byte) / 255.0f - pixels.mean) / pixels.deviation;
  by_table_ = !fma_is_exact(pixels_, table_);
}

void Normaliser::gather(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                        float* out) const {
  if (by_table_) return gather_by_table(rows, row_bytes, indices, out);
  constexpr std::size_t kAhead = 2;  // rows lie anywhere in 47 MB: fetch them before they are needed
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + kAhead < indices.size()) fetch_row(row(rows, row_bytes, indices[i + kAhead]), row_bytes);
    normalise_fma(row(rows, row_bytes, indices[i]), row_bytes, pixels_, table_, out + i * row_bytes);
  }
}

void Normaliser::gather_by_table(const std::uint8_t* rows, std::size_t row_bytes, std::span<const std::int64_t> indices,
                                 float* out) const {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint8_t* const in = row(rows, row_bytes, indices[i]);
    std::transform(in, in + row_bytes, out + i * row_bytes, [&](std::uint8_t byte) { return table_[byte]; });
  }
}

}  // namespace duet::data
