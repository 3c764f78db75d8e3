#include "ddp/store/meeting_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::ddp {

std::string private_folder(const std::string& suffix) {
  std::string name = concat("duet-", ::geteuid(), suffix);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char byte) { return !std::isalnum(byte) && std::strchr("-_.@", byte) == nullptr; }, '_');
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  require<CommError>(!error, "there is no folder for temporary files: ", error.message());
  std::string folder = (parent / name).string();
  require<CommError>(::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST, "the ranks cannot meet in ", folder, ": ",
                     last_errno);
  struct stat status {};
  const bool own = ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
                   (status.st_mode & 077) == 0;
  require<CommError>(own, "the ranks cannot meet in ", folder, ": it is not a folder that only this user can use");
  return folder;
}

MeetingFolder::MeetingFolder(const std::string& job, int meeting)
    : folder_(private_folder(concat("-", job, "-", meeting))) {}

MeetingFolder::~MeetingFolder() {
  ::unlink(store().c_str());
  ::rmdir(folder_.c_str());
}

}  // namespace duet::ddp
