// Flight records of ranks that died in the middle of writing, or that wrote out of bounds.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "ddp/group/failure_report.h"
#include "ddp/group/flight_recorder.h"
#include "tests/fuzz/memory_file.h"

using namespace duet::ddp;
using namespace duet_fuzz;

namespace {

/// As a rank begins it.
std::string new_record() {
  MemoryFile file;
  file.write(std::string(FlightRecorder::bytes(), '\0'));
  ::setenv(kFlightRecorderVariable, file.path().c_str(), 1);
  FlightRecorder::make();
  ::unsetenv(kFlightRecorderVariable);
  return file.read();
}

/// Bytes of a record: with some calls, and changes here and there.
std::string record_of(Input& input) {
  static const std::string fresh = new_record();
  std::string record = fresh;
  if (input.flag()) record[0] = '?';
  const std::size_t lines = input.below(6);
  for (std::size_t line = 1; line <= lines; ++line) {
    const std::uint64_t number = line;
    const std::size_t at =
        record.size() - (FlightRecorder::kCalls - line) * 64;  // each in a cache line, its number first
    record.replace(at, sizeof number, reinterpret_cast<const char*>(&number), sizeof number);
    const std::string fields = input.text().substr(0, 56);
    record.replace(at + sizeof number, fields.size(), fields);
  }
  record[8] = static_cast<char>(lines);
  const std::size_t changes = input.below(6);
  for (std::size_t i = 0; i < changes; ++i) {
    const std::size_t at = input.below(record.size());
    const std::string bytes = input.text();
    record.replace(at, std::min(bytes.size(), record.size() - at), bytes, 0, record.size() - at);
  }
  return record;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  Input input(data, size);
  std::vector<RankRecord> ranks;
  const int count = 1 + static_cast<int>(input.below(3));
  for (int rank = 0; rank < count; ++rank) {
    file.write(input.flag() ? input.text() : record_of(input));
    ranks.push_back({rank, FlightRecorder::read(file.path())});
    expect(ranks.back().record.calls.size() <= FlightRecorder::kCalls, "no more calls than are kept");
  }
  const int failed = static_cast<int>(input.below(5)) - 1;
  failure_report(ranks, failed, std::max<std::int64_t>(0, input.take<std::int64_t>()));
  return 0;
}
