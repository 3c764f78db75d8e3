#include "ddp/group/rank_file.h"

#include <sys/mman.h>

#include <filesystem>
#include <system_error>

#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr const char* kPrefix = "duet-rank-";

}  // namespace

RankFile make_rank_file(const std::string& kind) {
  RankFile file;
  file.memory = Descriptor(::memfd_create((kPrefix + kind).c_str(), MFD_CLOEXEC));
  std::error_code failed;
  // Not getpid(): the numbers of /proc are those of its own PID namespace, which may be an outer one.
  const auto self = std::filesystem::read_symlink("/proc/self", failed);
  if (file.memory.open() && !failed) file.path = concat("/proc/", self.string(), "/fd/", file.memory.get());
  return file;
}

bool may_be_rank_file(const std::string& path) {
  std::error_code failed;
  return !path.starts_with("/proc/") ||
         std::filesystem::read_symlink(path, failed).string().starts_with(concat("/memfd:", kPrefix));
}

}  // namespace duet::ddp
