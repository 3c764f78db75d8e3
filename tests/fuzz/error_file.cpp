// Error files, which ranks of any program may have written.
#include "ddp/launch/error_file.h"

#include <cstdint>
#include <optional>
#include <string>

#include "tests/fuzz/memory_file.h"

using namespace duet::ddp;
using namespace duet_fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file, copy;
  Input input(data, size);
  file.write(input.rest());
  const std::optional<RankError> error = read_error_file(file.path());
  if (!error) return 0;
  expect(write_error_file(copy.path(), 1, *error), "an error that can be written");
  const std::optional<RankError> again = read_error_file(copy.path());
  expect(again && again->message == error->message && again->report == error->report &&
             again->consequence == error->consequence && again->by_signal == error->by_signal &&
             again->monotonic_ns == error->monotonic_ns,
         "an error that is written as it was read");
  return 0;
}
