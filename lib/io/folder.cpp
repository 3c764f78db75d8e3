#include "lib/io/folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "lib/base/text.h"
#include "lib/error.h"

namespace duet {

bool is_folder(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return S_ISDIR(status.st_mode);
  require<DataError>(errno == ENOENT || errno == ENOTDIR, "cannot find out what ", path, " is: ", last_errno);
  return false;
}

void make_folder(const std::string& path) {
  if (is_folder(path)) return;
  if (const std::string parent = folder_of(path); parent != path) make_folder(parent);
  if (::mkdir(path.c_str(), 0777) == 0) return;
  const int error = errno;  // another process may have made it meanwhile
  require<DataError>(error == EEXIST && is_folder(path), "cannot make folder ", path, ": ", errno_text(error));
}

std::vector<std::string> list_folder(const std::string& path) {
  for (;;) {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
      names.push_back(at->path().filename().string());
    if (error == std::errc::interrupted) continue;
    require<DataError>(!error, "cannot list folder ", path, ": ", errno_text(error.value()));
    return names;
  }
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace duet
