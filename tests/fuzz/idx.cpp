// Images and labels, packed or not.
#include "lib/data/mnist/idx.h"

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tests/fuzz/memory_file.h"

using namespace duet;
using namespace duet_fuzz;

namespace {

/// In the format that the reader unpacks: with checksums that fit, so that the contents are read.
std::string packed(const std::string& content) {
  constexpr int kGzip = 16 + MAX_WBITS;
  z_stream stream{};
  expect(deflateInit2(&stream, 1, Z_DEFLATED, kGzip, 1, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string out(deflateBound(&stream, static_cast<uLong>(content.size())) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  expect(deflate(&stream, Z_FINISH) == Z_STREAM_END, "packed data");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

Tensor read(data::ByteReader& file, bool images) {
  return images ? data::read_idx_images(file) : data::read_idx_labels(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  Input input(data, size);
  const bool images = input.flag(), by_path = input.flag(), gzip_name = input.flag(), pack = input.flag();
  std::string content = input.rest();
  if (pack) content = packed(content);
  Tensor tensor;
  const bool good = accepted([&] {
    if (by_path) {
      file.write(content);
      tensor = images ? data::read_idx_images(file.path()) : data::read_idx_labels(file.path());
    } else {
      data::ByteReader reader({reinterpret_cast<const std::uint8_t*>(content.data()), content.size()},
                              gzip_name ? "images.gz" : "images");
      tensor = read(reader, images);
    }
  });
  if (!good) return 0;
  expect(tensor.size(0) > 0 && tensor.shape().rank() == (images ? 4 : 1), "a tensor of the header's shape");
  std::uint64_t sum = 0;  // touches all of it
  for (const std::byte byte : std::span(static_cast<const std::byte*>(tensor.raw()), tensor.bytes()))
    sum += std::to_integer<std::uint64_t>(byte);
  expect(images || sum <= static_cast<std::uint64_t>(9 * tensor.size(0)), "labels below 10");
  return 0;
}
