// Files in memory that a launcher keeps for its ranks, which reach them by a path of /proc; gone with the launcher.
#pragma once

#include <string>

#include "lib/base/descriptor.h"

namespace duet::ddp {

struct RankFile {
  Descriptor memory{};
  std::string path{};  // empty where memory, descriptors or /proc are missing
};
RankFile make_rank_file(const std::string& kind);

/// False for a path of /proc that leads to anything else than such a file: a rank in another PID namespace than its
/// launcher may see another process under its number.
bool may_be_rank_file(const std::string& path);

}  // namespace duet::ddp
