#include "cli/files.h"

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "lib/error.h"
#include "lib/last_errno.h"

namespace duet::cli {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  require<DataError>(in.good() || in.eof(), "cannot read ", path);
  return content.str();
}

TemporaryFolder::TemporaryFolder() {
  const char* base = std::getenv("TMPDIR");
  path_ = std::string(base && *base ? base : "/tmp") + "/duet-XXXXXX";
  require<DataError>(::mkdtemp(path_.data()) != nullptr, "cannot make folder ", path_, ": ", last_errno);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace duet::cli
