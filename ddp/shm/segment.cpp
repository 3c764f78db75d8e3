#include "ddp/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <fstream>
#include <system_error>
#include <vector>

#include "ddp/rank_names.h"
#include "lib/error.h"
#include "lib/last_errno.h"

namespace duet::ddp {
namespace {

namespace ipc = boost::interprocess;

/// A file in memory; other processes of this user reach it through /proc while it is open.
class MemoryFile {
 public:
  explicit MemoryFile(std::size_t bytes) : descriptor_(::memfd_create("duet", MFD_CLOEXEC)) {
    require<CommError>(descriptor_ >= 0, "no shared memory: ", last_errno);
    // Reserved now: a page that is missing later would end the process by SIGBUS.
    const int failure = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
    if (failure == 0) return;
    ::close(descriptor_);
    throw CommError(concat("no ", bytes, " bytes of shared memory: ", errno_text(failure)));
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return concat("/proc/", ::getpid(), "/fd/", descriptor_); }

 private:
  int descriptor_;
};

ipc::mapped_region map(const std::string& path, std::size_t bytes) {
  try {
    const ipc::file_mapping file(path.c_str(), ipc::read_write);
    ipc::mapped_region region(file, ipc::read_write);
    require<CommError>(region.get_size() == bytes, path, " has ", region.get_size(), " bytes, expected ", bytes);
    return region;
  } catch (const ipc::interprocess_exception& error) {
    throw CommError(concat("cannot map shared memory at ", path, ": ", error.what()));
  }
}

}  // namespace

struct SharedSegment::Mapping {
  ipc::mapped_region region;
};

// Every rank says how it went under key/RANK: empty, or what failed. So all of them succeed or all of them throw.
SharedSegment::SharedSegment(Store& store, const std::string& key, int rank, int size, std::size_t bytes,
                             Milliseconds timeout) {
  std::unique_ptr<MemoryFile> file;
  std::string failure;
  try {
    if (rank == 0) {
      file = std::make_unique<MemoryFile>(bytes);
      store.set(key + "/path", file->path());
    } else {
      store.wait({key + "/path"}, timeout);
    }
    const std::string path = store.get(key + "/path");
    require<CommError>(!path.empty(), "rank 0 has none");
    mapping_ = std::make_unique<Mapping>(Mapping{map(path, bytes)});
  } catch (const CommError& error) {
    failure = error.what();
    if (rank == 0) store.set(key + "/path", "");
  }
  store.set(concat(key, "/", rank), failure);
  const std::vector<std::string> keys = rank_keys(key, size);
  store.wait(keys, timeout);
  const std::vector<std::string> failures = store.multi_get(keys);
  for (int peer = 0; peer < size; ++peer) {
    const std::string& text = failures[static_cast<std::size_t>(peer)];
    require<CommError>(text.empty(), "shared memory failed on rank ", peer, ": ", text);
  }
}

SharedSegment::~SharedSegment() = default;

std::byte* SharedSegment::data() const { return static_cast<std::byte*>(mapping_->region.get_address()); }
std::size_t SharedSegment::bytes() const { return mapping_->region.get_size(); }

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  struct stat processes {
  }, network{};
  ::stat("/proc/self/ns/pid", &processes);
  ::stat("/proc/self/ns/net", &network);
  return concat(boot, "/", processes.st_ino, "/", network.st_ino, "/", ::geteuid());
}

}  // namespace duet::ddp
