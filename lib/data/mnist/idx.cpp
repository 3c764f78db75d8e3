#include "lib/data/mnist/idx.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "lib/error.h"

namespace duet::data {
namespace {

constexpr std::uint32_t kImageMagic = 2051, kLabelMagic = 2049;
constexpr std::size_t kImageHeader = 16;  // bytes

/// All bytes of a regular file that is not empty, as storage of the CPU that keeps the mapping alive; undefined (null)
/// for anything else, or where the file system cannot map it. Writes to it stay with this process. The file must not
/// shrink while it is mapped; a replaced or removed one may.
std::shared_ptr<Storage> map_file(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer would block
  if (file < 0) return nullptr;
  struct stat status {};
  void* memory = MAP_FAILED;
  std::size_t bytes = 0;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes = static_cast<std::size_t>(status.st_size);
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  }
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  return {new Storage(Device{}, memory, bytes), [](Storage* storage) {
            ::munmap(storage->data(), storage->bytes());
            delete storage;
          }};
}

std::uint32_t read_word(ByteReader& file, const char* field) {
  std::array<std::uint8_t, 4> bytes{};
  const std::size_t count = file.read(bytes);
  require<DataError>(count == bytes.size(), file.name(), ": is truncated: ends within the header, in field '", field,
                     "'");
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

void check_magic(ByteReader& file, std::uint32_t expected, const char* content) {
  const std::uint32_t found = read_word(file, "magic");
  require<DataError>(found == expected, file.name(), ": field 'magic' is ", found, ", expected ", expected, " (",
                     content, ")");
}

std::int64_t read_size(ByteReader& file, const char* field) {
  const std::uint32_t size = read_word(file, field);
  require<DataError>(size > 0, file.name(), ": field '", field, "' is 0, expected 1 or more");
  return size;
}

/// The sizes are below 2^32 each, so the product of the first two fits into 64 bits.
void check_total(const ByteReader& file, std::uint64_t items, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t pixels = row * column;
  require<DataError>(pixels <= kMostIdxBytes && items <= kMostIdxBytes / pixels, file.name(), ": the header announces ",
                     items, " x ", row, " x ", column, " bytes, expected at most ", kMostIdxBytes, " in all");
  require<DataError>(items * pixels <= file.most_bytes(), file.name(), ": is truncated: the header announces ",
                     items * pixels, " bytes, which a file of ", file.stored_bytes(), " bytes cannot hold");
}

void read_all(ByteReader& file, std::span<std::uint8_t> out, const char* field) {
  const std::size_t count = file.read(out);
  require<DataError>(count == out.size(), file.name(), ": is truncated: field '", field, "' has ", count,
                     " bytes, expected ", out.size());
  std::array<std::uint8_t, 1> more{};
  require<DataError>(file.read(more) == 0, file.name(), ": goes on after the ", out.size(), " bytes of field '", field,
                     "' that the header announces");
}

/// Reads the header of images and checks all that it announces.
Shape image_shape(ByteReader& file) {
  check_magic(file, kImageMagic, "images");
  const std::int64_t n = read_size(file, "number of images"), rows = read_size(file, "rows"),
                     columns = read_size(file, "columns");
  check_total(file, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(rows),
              static_cast<std::uint64_t>(columns));
  return {n, 1, rows, columns};
}

/// The pixels of a file that is not packed, where they lie; undefined for another file, or one that must be read to say
/// what is wrong with it.
Tensor map_idx_images(const std::filesystem::path& path) {
  const std::shared_ptr<Storage> mapped = map_file(path);
  if (mapped == nullptr) return {};
  const std::span content(static_cast<const std::uint8_t*>(mapped->data()), mapped->bytes());
  if (path.extension() == ".gz" || content.size() < kImageHeader || content[0] != 0) return {};
  ByteReader header(content, path.string());
  const Shape shape = image_shape(header);
  if (content.size() != kImageHeader + static_cast<std::size_t>(shape.count())) return {};
  return {mapped, kImageHeader, shape, DType::u8};
}

}  // namespace

Tensor read_idx_images(ByteReader& file) {
  const Tensor images = empty(image_shape(file), DType::u8);
  read_all(file, images.span<std::uint8_t>(), "pixels");
  return images;
}

Tensor read_idx_labels(ByteReader& file, int classes) {
  check_magic(file, kLabelMagic, "labels");
  const std::int64_t n = read_size(file, "number of labels");
  check_total(file, static_cast<std::uint64_t>(n), 1, 1);
  const Tensor bytes = empty({n}, DType::u8), labels = empty({n}, DType::i64);
  read_all(file, bytes.span<std::uint8_t>(), "labels");
  for (std::int64_t i = 0; i < n; ++i) {
    const int label = bytes.data<std::uint8_t>()[i];
    require<DataError>(label < classes, file.name(), ": label ", i, " is ", label, ", expected 0 to ", classes - 1);
    labels.data<std::int64_t>()[i] = label;
  }
  return labels;
}

Tensor read_idx_images(const std::filesystem::path& path) {
  if (const Tensor mapped = map_idx_images(path); mapped.defined()) return mapped;
  ByteReader file(path);
  return read_idx_images(file);
}

Tensor read_idx_labels(const std::filesystem::path& path, int classes) {
  ByteReader file(path);
  return read_idx_labels(file, classes);
}

}  // namespace duet::data
