#include "lib/data/mnist/byte_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "lib/base/text.h"
#include "lib/error.h"

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
  int file = -1;  // or, without one, all content is in `input` from the start
  std::vector<std::uint8_t> chunk;
  std::span<const std::uint8_t> input;  // read, not yet consumed
  bool packed = false;
  bool finished = false;  // the gzip data has ended
  z_stream stream{};

  ~State() {
    if (packed) inflateEnd(&stream);
    if (file >= 0) ::close(file);
  }
  void open(const char* path);
  /// True when there is input, after reading some if there was none.
  bool refill();
  void begin();
  std::size_t copy(std::span<std::uint8_t> out);
  std::size_t unpack(std::span<std::uint8_t> out);
  void next_member();
};

void ByteReader::State::open(const char* path) {
  file = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer would block
  require<DataError>(file >= 0, name, ": cannot be opened: ", last_errno);
  struct stat status {};
  require<DataError>(::fstat(file, &status) == 0, name, ": cannot be read: ", last_errno);
  require<DataError>(!S_ISDIR(status.st_mode), name, ": is a folder, expected a file");
  require<DataError>(S_ISREG(status.st_mode), name, ": is not a regular file");
  stored = static_cast<std::uint64_t>(status.st_size);
  chunk.resize(kChunk);
}

bool ByteReader::State::refill() {
  if (!input.empty()) return true;
  if (file < 0) return false;
  ssize_t count = 0;
  do count = ::read(file, chunk.data(), chunk.size());
  while (count < 0 && errno == EINTR);
  require<DataError>(count >= 0, name, ": cannot be read: ", last_errno);
  input = std::span(chunk).first(static_cast<std::size_t>(count));
  return count > 0;
}

void ByteReader::State::begin() {
  require<DataError>(refill(), name, ": is empty");
  const bool magic = input.size() >= 2 && input[0] == kGzipMagic[0] && input[1] == kGzipMagic[1];
  if (name.ends_with(".gz")) {
    require<DataError>(magic, name, ": is not gzip data: begins with ", hex_byte(input[0]),
                       input.size() > 1 ? concat(" ", hex_byte(input[1])) : "", ", expected 1f 8b");
  }
  if (!magic) return;
  const int status = inflateInit2(&stream, kGzipOnly);
  require<DataError>(status == Z_OK, name, ": zlib does not start: error ", status);
  packed = true;
}

std::size_t ByteReader::State::copy(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size() && refill()) {
    const std::size_t count = std::min(out.size() - done, input.size());
    std::copy_n(input.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(done));
    input = input.subspan(count);
    done += count;
  }
  return done;
}

std::size_t ByteReader::State::unpack(std::span<std::uint8_t> out) {
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
void ByteReader::State::next_member() {
  finished = !refill();
  if (finished) return;
  require<DataError>(input[0] == kGzipMagic[0], name, ": has bytes after the end of its gzip data");
  inflateReset(&stream);
}

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

}  // namespace duet::data
