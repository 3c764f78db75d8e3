#include "ddp/launch/job_rank.h"

#include <filesystem>
#include <system_error>

namespace duet::ddp {

RankFile make_error_file(const std::string& path) {
  if (path.empty()) return make_rank_file("error");
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return {{}, path};
}

RankFile make_record_file() {
  RankFile file = make_rank_file("record");
  if (file.path.empty() || reserve(file.memory, 0, FlightRecorder::bytes()) != 0) return {};
  return file;
}

}  // namespace duet::ddp
