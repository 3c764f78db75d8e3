#include "cli/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "lib/error.h"

namespace duet::cli {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  throw DataError(concat(what, " ", path, ": ", std::strerror(error)));
}

/// An open file that is closed and, unless kept, removed.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("cannot write", path_, errno);
  }
  ~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!kept_) ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const std::string& content) {
    for (std::size_t done = 0; done < content.size();) {
      const ssize_t written = ::write(descriptor_, content.data() + done, content.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot write", path_, errno);
      done += static_cast<std::size_t>(written);
    }
    if (::fsync(descriptor_) != 0) fail("cannot write", path_, errno);
  }
  void keep_as(const std::string& name) {
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot write", path_, errno);
    if (::rename(path_.c_str(), name.c_str()) != 0) fail("cannot write", name, errno);
    kept_ = true;
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  bool kept_ = false;
};

}  // namespace

void check_writable(const std::string& folder, std::size_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error && !std::filesystem::is_directory(folder))
    throw DataError(concat("cannot make folder ", folder, ": ", error.message()));
  require<DataError>(std::filesystem::is_directory(folder), folder, " is not a folder");
  NewFile probe(folder + "/.duet-probe." + std::to_string(::getpid()));
  probe.write(std::string(bytes, '\0'));
}

void write_atomically(const std::string& path, const std::string& content) {
  NewFile file(path + ".tmp." + std::to_string(::getpid()));
  file.write(content);
  file.keep_as(path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

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
  if (!::mkdtemp(path_.data())) fail("cannot make folder", path_, errno);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace duet::cli
