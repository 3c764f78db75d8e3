// JPEG and PNG files: whole, in part, at a smaller scale.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lib/data/images/image_file.h"
#include "tests/fuzz/input.h"

using namespace duet;
using namespace duet_fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kMostPixels = 1 << 18;
  Input input(data, size);
  const int divisor = input.pick({1, 2, 4, 8});
  const auto left = input.take<std::uint8_t>(), top = input.take<std::uint8_t>(), part = input.take<std::uint8_t>();
  const std::string content = input.rest();
  data::Pixels pixels;
  data::Region wanted;
  const bool good = accepted([&] {
    const auto file = data::ImageFile::open({reinterpret_cast<const std::uint8_t*>(content.data()), content.size()},
                                            "image", kMostPixels);
    file->shrink(divisor);
    wanted = {file->width() * left / 256, file->height() * top / 256, 0, 0};
    wanted.width = 1 + (file->width() - wanted.x - 1) * part / 255;
    wanted.height = 1 + (file->height() - wanted.y - 1) * part / 255;
    file->read(wanted, pixels);
  });
  if (!good) return 0;
  const data::Region& got = pixels.region;
  expect(got.x <= wanted.x && wanted.x + wanted.width <= got.x + got.width, "the columns that were wanted");
  expect(got.y <= wanted.y && wanted.y + wanted.height <= got.y + got.height, "the rows that were wanted");
  expect(got.width * got.height <= kMostPixels, "no more pixels than allowed");
  std::uint64_t sum = 0;  // touches all of it
  for (const std::uint8_t byte : std::span(pixels.bytes)) sum += byte;
  expect(sum <= 255 * pixels.bytes.size(), "bytes");
  return 0;
}
