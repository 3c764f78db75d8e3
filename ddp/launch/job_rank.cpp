#include "ddp/launch/job_rank.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "ddp/store/store.h"
#include "lib/error.h"

namespace duet::ddp {

std::string ranks_elsewhere(const LaunchOptions& options) {
  std::vector<int> others;
  for (int rank = 0; rank < options.nodes * options.ranks; ++rank)
    if (rank / options.ranks != options.node_rank) others.push_back(rank);
  return others.empty() ? "" : concat("other hosts (", rank_names(others), ")");
}

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
