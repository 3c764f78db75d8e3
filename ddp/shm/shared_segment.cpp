#include "ddp/shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "ddp/store/secret.h"
#include "lib/base/descriptor.h"
#include "lib/base/patience.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

// Must not shrink later: a rank that touches memory past the end would end by SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Before the bytes are used: a page that is missing then would end the process by SIGBUS.
void require_reserved(const Descriptor& memory, std::size_t offset, std::size_t bytes) {
  const int failure = reserve(memory, offset, bytes);
  require<CommError>(failure == 0, "no ", bytes, " bytes of shared memory: ", errno_text(failure));
}

SharedSegment::Mapping map(const Descriptor& memory, std::size_t offset, std::size_t bytes) {
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), static_cast<off_t>(offset));
  require<CommError>(data != MAP_FAILED, "cannot map ", bytes, " bytes of shared memory: ", last_errno);
  return {static_cast<std::byte*>(data), {bytes}};
}

/// A file in memory; other processes of this user reach it through /proc while it is open.
Descriptor make_memory(std::size_t bytes, std::size_t later_bytes) {
  Descriptor memory(::memfd_create("duet", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require<CommError>(memory.open(), "no shared memory: ", last_errno);
  require_reserved(memory, 0, bytes);
  const HeldSizeSignal held;
  require<CommError>(later_bytes == 0 || ::ftruncate(memory.get(), static_cast<off_t>(bytes + later_bytes)) == 0, "no ",
                     bytes + later_bytes, " bytes of shared memory: ", last_errno);
  require<CommError>(::fcntl(memory.get(), F_ADD_SEALS, kSeals) == 0, "cannot seal shared memory: ", last_errno);
  return memory;
}

std::string name_of(const Descriptor& file) {
  std::string name(64, '\0');
  const ssize_t bytes = ::readlink(concat("/proc/self/fd/", file.get()).c_str(), name.data(), name.size());
  name.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return name;
}

struct stat status_of(const Descriptor& file) {
  struct stat status {};
  require<CommError>(::fstat(file.get(), &status) == 0, "cannot stat shared memory: ", last_errno);
  return status;
}

/// What rank 0 publishes: the path and the inode number of its file, and a proof that a rank wrote it.
std::string signed_place(Store& store, const std::string& key, const std::string& path, ino_t number) {
  const std::string place = concat(path, ' ', number);
  return concat(place, ' ', proof_of(store.secret(), concat("segment ", key, ' ', place)));
}

/// The file that rank 0 has made, and no other: a path in /proc means something else in another PID namespace.
Descriptor open_memory(Store& store, const std::string& key, const std::string& published, std::size_t bytes) {
  const std::string path = published.substr(0, published.find(' '));
  require<CommError>(path.starts_with("/proc/"), "\"", path, "\" is not the memory of rank 0");
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  require<CommError>(file.open(), "cannot open ", path, ": ", last_errno);
  const struct stat status = status_of(file);
  const bool own = S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
                   (::fcntl(file.get(), F_GET_SEALS) & kSeals) == kSeals && name_of(file) == "/memfd:duet (deleted)";
  require<CommError>(own && equal_secrets(published, signed_place(store, key, path, status.st_ino)), path,
                     " is not the memory of rank 0");
  require<CommError>(static_cast<std::size_t>(status.st_size) == bytes, path, " has ", status.st_size,
                     " bytes, expected ", bytes);
  return file;
}

}  // namespace

// Every rank publishes its result under key/RANK: empty, or what failed. So all of them succeed or all of them throw.
// Rank 0, which may serve the store, leaves last and deletes them.
SharedSegment::SharedSegment(Store& store, const std::string& key, int rank, int size, std::size_t bytes,
                             Milliseconds timeout, std::size_t later_bytes)
    : bytes_(bytes) {
  Descriptor made;
  std::string failure;
  try {
    if (rank == 0) {
      made = with_patience([&] { return make_memory(bytes, later_bytes); });
      const std::string path = concat("/proc/", ::getpid(), "/fd/", made.get());
      store.set(key + "/path", signed_place(store, key, path, status_of(made).st_ino));
    } else {
      store.wait({key + "/path"}, timeout);
    }
    const std::string place = store.get(key + "/path");
    require<CommError>(!place.empty(), "rank 0 has none");
    Descriptor file = with_patience([&] {
      Descriptor opened = open_memory(store, key, place, bytes + later_bytes);
      data_ = map(opened, 0, bytes);
      return opened;
    });
    if (later_bytes > 0) file_ = std::move(file);
  } catch (const CommError& error) {
    failure = error.what();
    if (rank == 0) store.set(key + "/path", "");
  }
  const std::vector<std::string> failures = meet(store, key, rank, size, timeout, failure);
  leave_last(store, key + "/read", rank, size);
  if (rank == 0) store.delete_prefix(key + "/");
  for (int peer = 0; peer < size; ++peer) {
    const std::string& text = failures[static_cast<std::size_t>(peer)];
    require<CommError>(text.empty(), "shared memory failed on rank ", peer, ": ", text);
  }
}

void SharedSegment::reserve_later(std::size_t offset, std::size_t bytes) const {
  require_reserved(file_, bytes_ + offset, bytes);
}

SharedSegment::Mapping SharedSegment::map_later(std::size_t offset, std::size_t bytes) const {
  return map(file_, bytes_ + offset, bytes);
}

void SharedSegment::Unmap::operator()(std::byte* data) const { ::munmap(data, bytes); }

std::string host_identity() {
  const char* const path = "/proc/sys/kernel/random/boot_id";
  const Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  // Without a descriptor left, ranks of one host could not recognise each other.
  require<CommError>(file.open() || (errno != EMFILE && errno != ENFILE), "cannot open ", path, ": ", last_errno);
  std::string boot(64, '\0');
  boot.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(file.get(), boot.data(), boot.size()), 0)));
  boot.resize(std::min(boot.size(), boot.find('\n')));
  struct stat processes {
  }, network{};
  ::stat("/proc/self/ns/pid", &processes);
  ::stat("/proc/self/ns/net", &network);
  return concat(boot, "/", processes.st_ino, "/", network.st_ino, "/", ::geteuid());
}

}  // namespace duet::ddp
