#include "lib/data/mnist/idx.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/file_format.h"

namespace duet::data {
namespace {

constexpr std::size_t kChunk = 64 * 1024;
constexpr int kGzipOnly = 16 + MAX_WBITS;  // inflateInit2: a gzip header, and nothing else
constexpr std::uint64_t kMostRatio = 1032;
constexpr std::uint8_t kGzipMagic[] = {0x1f, 0x8b};

std::string hex_byte(std::uint8_t byte) { return to_hex(std::as_bytes(std::span(&byte, 1))); }

}  // namespace

struct ByteReader::State {
  std::string name;
  std::uint64_t stored = 0;
  Descriptor file;  // or, without one, all content is in `input` from the start
  std::vector<std::uint8_t> chunk;
  std::span<const std::uint8_t> input;  // read, not yet consumed
  bool packed = false;
  bool finished = false;  // the gzip data has ended
  z_stream stream{};

  ~State() {
    if (packed) inflateEnd(&stream);
  }

  void open(const char* path) {
    file = Descriptor(uninterrupted(
        [&] { return ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));  // a pipe without a writer would block
    require<DataError>(file.open(), name, ": cannot be opened: ", last_errno);
    struct stat status {};
    require<DataError>(::fstat(file.get(), &status) == 0, name, ": cannot be read: ", last_errno);
    require<DataError>(!S_ISDIR(status.st_mode), name, ": is a folder, expected a file");
    require<DataError>(S_ISREG(status.st_mode), name, ": is not a regular file");
    stored = static_cast<std::uint64_t>(status.st_size);
    chunk.resize(kChunk);
  }

  /// True when there is input, after reading some if there was none.
  bool refill() {
    if (!input.empty()) return true;
    if (!file.open()) return false;
    const ssize_t count = uninterrupted([&] { return ::read(file.get(), chunk.data(), chunk.size()); });
    require<DataError>(count >= 0, name, ": cannot be read: ", last_errno);
    input = std::span(chunk).first(static_cast<std::size_t>(count));
    return count > 0;
  }

  void begin() {
    require<DataError>(refill(), name, ": is empty");
    const bool magic = input.size() >= 2 && input[0] == kGzipMagic[0] && input[1] == kGzipMagic[1];
    const bool is_idx = input.size() >= 2 && input[0] == 0 && input[1] == 0;
    const std::string other = magic || is_idx ? "" : describe_format(std::as_bytes(input));
    require<DataError>(other.empty(), name, ": expected IDX data, packed by gzip or not, but it is ", other);
    if (name.ends_with(".gz")) {
      require<DataError>(magic, name, ": is not gzip data: begins with ", hex_byte(input[0]),
                         input.size() > 1 ? concat(" ", hex_byte(input[1])) : "", ", expected 1f 8b");
    }
    if (!magic) return;
    const int status = inflateInit2(&stream, kGzipOnly);
    require<DataError>(status == Z_OK, name, ": zlib does not start: error ", status);
    packed = true;
  }

  std::size_t copy(std::span<std::uint8_t> out) {
    std::size_t done = 0;
    while (done < out.size() && refill()) {
      const std::size_t count = std::min(out.size() - done, input.size());
      std::copy_n(input.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(done));
      input = input.subspan(count);
      done += count;
    }
    return done;
  }

  std::size_t unpack(std::span<std::uint8_t> out) {
    std::size_t done = 0;
    while (done < out.size() && !finished) {
      require<DataError>(refill(), name, ": is truncated: the gzip data does not end within the file's ", stored,
                         " bytes");
      const std::size_t room = std::min<std::size_t>(out.size() - done, 1U << 30);
      const std::size_t given = std::min<std::size_t>(input.size(), 1U << 30);
      stream.next_in = const_cast<Bytef*>(input.data());
      stream.avail_in = static_cast<uInt>(given);
      stream.next_out = out.data() + done;
      stream.avail_out = static_cast<uInt>(room);
      const int status = inflate(&stream, Z_NO_FLUSH);
      require<DataError>(status == Z_OK || status == Z_STREAM_END, name,
                         ": is corrupt gzip data: ", stream.msg ? stream.msg : zError(status));
      input = input.subspan(given - stream.avail_in);
      done += room - stream.avail_out;
      if (status == Z_STREAM_END) next_member();
    }
    return done;
  }

  /// Behind the end of a member: of the next one only the first byte is looked at, inflate() checks the others.
  void next_member() {
    finished = !refill();
    if (finished) return;
    require<DataError>(input[0] == kGzipMagic[0], name, ": has bytes after the end of its gzip data");
    inflateReset(&stream);
  }
};

ByteReader::ByteReader(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->name = path.string();
  state_->open(path.c_str());
  state_->begin();
}

ByteReader::ByteReader(std::span<const std::uint8_t> content, std::string name) : state_(std::make_unique<State>()) {
  state_->name = std::move(name);
  state_->stored = content.size();
  state_->input = content;
  state_->begin();
}

ByteReader::~ByteReader() = default;

std::size_t ByteReader::read(std::span<std::uint8_t> out) {
  return state_->packed ? state_->unpack(out) : state_->copy(out);
}

std::uint64_t ByteReader::stored_bytes() const { return state_->stored; }
std::uint64_t ByteReader::most_bytes() const { return state_->packed ? state_->stored * kMostRatio : state_->stored; }
const std::string& ByteReader::name() const { return state_->name; }

namespace {

constexpr std::uint32_t kImageMagic = 2051, kLabelMagic = 2049;
constexpr std::size_t kImageHeader = 16;  // bytes

/// All bytes of a regular file that is not empty, as storage of the CPU that keeps the mapping alive; undefined (null)
/// for anything else, or where the file system cannot map it. Writes to it stay with this process. The file must not
/// shrink while it is mapped; a replaced or removed one may.
std::shared_ptr<Storage> map_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open()) return nullptr;
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0) return nullptr;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
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
  require<DataError>(file.read(more) == 0, file.name(), ": continues after the ", out.size(), " bytes of field '",
                     field, "' that the header announces");
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
