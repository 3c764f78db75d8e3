#include "train/system/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>

#include "ddp/launch/rank_output.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/io/folder.h"

namespace duet::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStem = "duet-";
constexpr std::size_t kRandomPart = 6;       // length of the random part of mkdtemp's names
constexpr const char* kLockFile = "/.lock";  // locked by the owning process until it ends

/// Removes folders of this user whose processes have ended. It holds their locks meanwhile, so that only one of several
/// processes removes a folder.
void remove_abandoned(const std::string& base) {
  std::vector<std::string> names;
  try {
    names = list_folder(base);
  } catch (const DataError&) {  // a folder can be made in it all the same
  }
  for (const std::string& name : names) {
    const std::string folder = concat(base, "/", name), file = folder + kLockFile;
    struct stat status {};
    if (!name.starts_with(kStem) || name.size() != kStem.size() + kRandomPart ||
        ::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid())
      continue;
    const Descriptor lock(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    std::error_code ignored;
    if (lock.open() && lock_file(lock, LOCK_EX | LOCK_NB) && is_named(lock, file)) fs::remove_all(folder, ignored);
  }
}

/// A link, a pipe, a terminal, a device: to be written into, not replaced.
bool is_special(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

/// The standard stream that writes into the file `path`, or null.
std::FILE* standard_stream(const std::string& path) {
  struct stat named {
  }, own{};
  if (::stat(path.c_str(), &named) != 0) return nullptr;
  for (std::FILE* const stream : {stdout, stderr})
    if (::fstat(::fileno(stream), &own) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino) return stream;
  return nullptr;
}

void require_place(const char* option, const std::string& path) {
  require<DataError>(!is_folder(path), option, " ", path, ": is a folder, expected a file");
  if (is_special(path)) {
    require<DataError>(::access(path.c_str(), W_OK) == 0, option, " ", path, ": ", last_errno);
    return;
  }
  const std::string folder = folder_of(path);
  require<DataError>(is_folder(folder), option, " ", path, ": there is no folder ", folder);
  with_prefix([&] { return concat(option, " ", path, ": "); }, [&] { require_writable(folder, 0); });
}

/// Where the file's bytes will lie: pipes and devices take none.
std::string disk_of(const std::string& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return path;
  return is_special(path) ? "" : folder_of(path);
}

}  // namespace

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  in.peek();  // fails for a folder, which can be opened
  require<DataError>(in.is_open() && !in.bad(), "cannot read ", path, ": ", last_errno);
  std::ostringstream content;
  content << in.rdbuf();
  require<DataError>(!content.bad(), "cannot read ", path, ": ", last_errno);
  return content.str();
}

TemporaryFolder::TemporaryFolder() : TemporaryFolder(environment_variable("TMPDIR").value_or("/tmp")) {}

TemporaryFolder::TemporaryFolder(const std::string& parent) {
  remove_abandoned(parent);
  path_ = concat(parent, "/", kStem, std::string(kRandomPart, 'X'));
  require<DataError>(::mkdtemp(path_.data()) != nullptr, "cannot make folder ", path_, ": ", last_errno);
  // The lock gets its name when it is held: no other process finds it free. Without locks the folder is never removed
  // by others.
  const std::string name = path_ + kLockFile, unnamed = name + ".new";
  lock_ = Descriptor(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (lock_.open() && lock_file(lock_, LOCK_EX | LOCK_NB)) ::rename(unnamed.c_str(), name.c_str());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void require_outputs(const std::vector<Output>& outputs) {
  std::map<dev_t, std::uint64_t> taken;  // by the files before, on each disk
  for (const Output& output : outputs) {
    if (output.path.empty()) continue;
    require_place(output.option, output.path);
    struct stat place {};
    struct statvfs disk {};
    const std::string at = disk_of(output.path);
    if (at.empty() || ::stat(at.c_str(), &place) != 0 || ::statvfs(at.c_str(), &disk) != 0 || disk.f_blocks == 0)
      continue;
    const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize, left = free - taken[place.st_dev];
    require<DataError>(output.bytes <= left, output.option, " ", output.path, ": needs about ",
                       grouped(static_cast<std::int64_t>(output.bytes)), " bytes, of which its disk has ",
                       grouped(static_cast<std::int64_t>(left)));
    taken[place.st_dev] += output.bytes;
  }
}

void require_output(const char* option, const std::string& path) {
  require_outputs({{.option = option, .path = path}});
}

void write_output(const std::string& path, const std::string& text) {
  if (std::FILE* const stream = standard_stream(path)) {
    require<DataError>(std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0,
                       "cannot write ", path, ": ", last_errno);
    return;
  }
  if (!is_special(path)) return write_atomically(path, text);
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC));
  require<DataError>(file.open() && ddp::write_all(file.get(), text), "cannot write ", path, ": ", last_errno);
}

bool to_stdout(const std::string& json) { return json == "-"; }

void require_json_output(const std::string& json) {
  if (!to_stdout(json)) require_output("--json", json);
}

void write_json(const std::string& json, const std::string& text) {
  if (to_stdout(json))
    std::fputs(text.c_str(), stdout);
  else if (!json.empty())
    write_output(json, text);
}

std::FILE* text_stream(const std::string& json) { return to_stdout(json) ? stderr : stdout; }

}  // namespace duet::cli
