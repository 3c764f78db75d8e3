// A library for LD_PRELOAD that lets one system call on a file fail, as the file system of a failing disk would; see
// campaign.py. It counts, in each process, the calls of libc on what lies below the folder DUET_FAIL_UNDER, adds a line
// for each to the file DUET_FAIL_LOG, and carries out DUET_FAIL_PLAN:
//   ROLE:NAME:NUMBER:FAULT   the call of this name and number in the process of this role fails. The role is RANK, or
//                            "launcher" without one. The name is the function's, "create" of an open that makes a file.
//                            The fault is an errno, or "short": half of the bytes, or "end": a read that finds no more
//   ROLE:NAME:NUMBER:full    from that call on nothing can be made or written: ENOSPC
//   ROLE:NAME:NUMBER:gone    from that call on everything fails: EIO
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

namespace {

/// What becomes of a call: it is made, or fails with `error`, or is made with half of its bytes, or finds the end.
struct Verdict {
  int error = 0;
  bool half = false, end = false;
};

std::string variable(const char* name) {
  const char* const text = ::getenv(name);
  return text ? text : "";
}

std::string role() {
  const std::string rank = variable("RANK"), restarts = variable("TORCHELASTIC_RESTART_COUNT");
  if (rank.empty()) return "launcher";
  return restarts.empty() || restarts == "0" ? rank : rank + "-restarted";
}

std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> path;
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const long bytes = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), path.data(), path.size());
  return bytes < 0 ? "" : std::string(path.data(), static_cast<std::size_t>(bytes));
}

std::string path_at(int folder, const char* name) {
  return folder == AT_FDCWD || *name == '/' ? name : path_of(folder) + "/" + name;
}

/// By system calls of its own, which are not counted; a process may have closed every descriptor at any time.
void log(const std::string& line) {
  const long file =
      ::syscall(SYS_openat, AT_FDCWD, variable("DUET_FAIL_LOG").c_str(), O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (file < 0) return;
  ::syscall(SYS_write, file, line.data(), line.size());
  ::syscall(SYS_close, file);
}

constexpr std::string_view kMakeOrWrite[] = {"create", "mkostemp", "mkdtemp", "mkdir", "rename",    "link",
                                             "write",  "pwrite",   "writev",  "fsync", "ftruncate", "fallocate"};

/// What the plan says of the call `name` with this number.
Verdict planned(const std::string& name, int number) {
  static std::atomic<bool> reached{false};
  const std::string plan = variable("DUET_FAIL_PLAN"), fault = plan.substr(plan.rfind(':') + 1);
  const bool now = plan == role() + ":" + name + ":" + std::to_string(number) + ":" + fault;
  const bool makes = std::ranges::find(kMakeOrWrite, name) != std::end(kMakeOrWrite);
  if (now) reached = true;
  if (fault == "full") return {.error = reached && makes ? ENOSPC : 0};
  if (fault == "gone") return {.error = reached ? EIO : 0};
  if (!now) return {};
  if (fault == "short") return {.half = true};
  if (fault == "end") return {.end = true};
  return {.error = std::stoi(fault)};
}

int number_of(const std::string& name) {
  static auto& mutex = *new std::mutex;  // calls are made until the very end of a process
  static auto& calls = *new std::map<std::string, int>;
  const std::lock_guard lock(mutex);
  return ++calls[name];
}

/// Counts a call and logs it. `target` is the second path of one that has two.
Verdict judge(std::string name, const std::string& path, const std::string& target = "") {
  const int before = errno;
  Verdict verdict;
  const std::string under = variable("DUET_FAIL_UNDER");
  if (!under.empty() && path.starts_with(under)) {
    if (name.ends_with("64")) name.resize(name.size() - 2);
    const std::string number = std::to_string(number_of(name));
    verdict = planned(name, std::stoi(number));
    const std::string fault = verdict.error  ? std::to_string(verdict.error)
                              : verdict.half ? "short"
                              : verdict.end  ? "end"
                                             : "-";
    std::string line;
    for (const std::string& field : {role(), name, number, fault, path}) line += field + '\t';
    log(line + target + '\n');
  }
  errno = verdict.error ? verdict.error : before;
  return verdict;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

template <class Result>
Result failure() {
  if constexpr (std::is_pointer_v<Result>)
    return nullptr;
  else
    return -1;
}

std::string opening(int flags) { return (flags & O_CREAT) != 0 ? "create" : "open"; }
std::string path_of(DIR* folder) { return path_of(::dirfd(folder)); }
std::string path_of(FILE* file) { return path_of(::fileno(file)); }

}  // namespace

// By labels of the assembler, a symbol can be defined whatever a header says of the function with that name.
#define DUET_DEFINE(symbol, Result, parameters)                                                      \
  extern "C" __attribute__((visibility("default"))) Result own_##symbol parameters __asm__(#symbol); \
  Result own_##symbol parameters

/// What follows are the arguments of judge().
#define DUET_REPLACE(symbol, Result, parameters, arguments, ...) \
  DUET_DEFINE(symbol, Result, parameters) {                      \
    if (judge(__VA_ARGS__).error) return failure<Result>();      \
    return next<Result parameters>(#symbol) arguments;           \
  }                                                              \
  static_assert(true)

/// Also the function of the same name with 64 behind it, which is the same one where off_t has 64 bits.
#define DUET_REPLACE_BOTH(symbol, Result, parameters, arguments, ...) \
  DUET_REPLACE(symbol, Result, parameters, arguments, __VA_ARGS__);   \
  DUET_REPLACE(symbol##64, Result, parameters, arguments, __VA_ARGS__)

// The mode is always taken: one that the caller did not give is not looked at.
DUET_REPLACE_BOTH(open, int, (const char* path, int flags, mode_t mode), (path, flags, mode), opening(flags), path);
DUET_REPLACE_BOTH(openat, int, (int folder, const char* path, int flags, mode_t mode), (folder, path, flags, mode),
                  opening(flags), path_at(folder, path));
DUET_REPLACE_BOTH(fopen, FILE*, (const char* path, const char* mode), (path, mode), opening(*mode == 'r' ? 0 : O_CREAT),
                  path);
DUET_REPLACE_BOTH(mkostemp, int, (char* path, int flags), (path, flags), "mkostemp", path);
DUET_REPLACE_BOTH(ftruncate, int, (int file, off_t bytes), (file, bytes), "ftruncate", path_of(file));
DUET_REPLACE_BOTH(fallocate, int, (int file, int mode, off_t at, off_t bytes), (file, mode, at, bytes), "fallocate",
                  path_of(file));
DUET_REPLACE_BOTH(readdir, dirent*, (DIR * folder), (folder), "readdir", path_of(folder));
DUET_REPLACE_BOTH(fcntl, int, (int file, int what, void* argument), (file, what, argument), "fcntl", path_of(file));
DUET_REPLACE_BOTH(stat, int, (const char* path, void* status), (path, status), "stat", path);
DUET_REPLACE_BOTH(lstat, int, (const char* path, void* status), (path, status), "lstat", path);
DUET_REPLACE_BOTH(fstat, int, (int file, void* status), (file, status), "fstat", path_of(file));
DUET_REPLACE_BOTH(fstatat, int, (int folder, const char* path, void* status, int flags), (folder, path, status, flags),
                  "fstatat", path_at(folder, path));
DUET_REPLACE_BOTH(statvfs, int, (const char* path, void* status), (path, status), "statvfs", path);
DUET_REPLACE(mkdtemp, char*, (char* path), (path), "mkdtemp", path);
DUET_REPLACE(mkdir, int, (const char* path, mode_t mode), (path, mode), "mkdir", path);
DUET_REPLACE(rename, int, (const char* from, const char* to), (from, to), "rename", from, to);
DUET_REPLACE(link, int, (const char* from, const char* to), (from, to), "link", from, to);
DUET_REPLACE(unlink, int, (const char* path), (path), "unlink", path);
DUET_REPLACE(unlinkat, int, (int folder, const char* path, int flags), (folder, path, flags), "unlinkat",
             path_at(folder, path));
DUET_REPLACE(remove, int, (const char* path), (path), "remove", path);
DUET_REPLACE(rmdir, int, (const char* path), (path), "rmdir", path);
DUET_REPLACE(access, int, (const char* path, int how), (path, how), "access", path);
DUET_REPLACE(flock, int, (int file, int how), (file, how), "flock", path_of(file));
DUET_REPLACE(fsync, int, (int file), (file), "fsync", path_of(file));
DUET_REPLACE(fdatasync, int, (int file), (file), "fdatasync", path_of(file));
DUET_REPLACE(opendir, DIR*, (const char* path), (path), "opendir", path);
DUET_REPLACE(fdopendir, DIR*, (int folder), (folder), "fdopendir", path_of(folder));

// Half of the bytes are at least one: none would be the end of a file, or a full disk.
#define DUET_REPLACE_TRANSFER(symbol, parameters, arguments) \
  DUET_DEFINE(symbol, ssize_t, parameters) {                 \
    const Verdict verdict = judge(#symbol, path_of(file));   \
    if (verdict.error) return -1;                            \
    if (verdict.end) return 0;                               \
    if (verdict.half && bytes > 1) bytes /= 2;               \
    return next<ssize_t parameters>(#symbol) arguments;      \
  }                                                          \
  static_assert(true)

DUET_REPLACE_TRANSFER(read, (int file, void* data, std::size_t bytes), (file, data, bytes));
DUET_REPLACE_TRANSFER(write, (int file, const void* data, std::size_t bytes), (file, data, bytes));
DUET_REPLACE_TRANSFER(pread, (int file, void* data, std::size_t bytes, off_t at), (file, data, bytes, at));
DUET_REPLACE_TRANSFER(pread64, (int file, void* data, std::size_t bytes, off_t at), (file, data, bytes, at));
DUET_REPLACE_TRANSFER(pwrite, (int file, const void* data, std::size_t bytes, off_t at), (file, data, bytes, at));
DUET_REPLACE_TRANSFER(pwrite64, (int file, const void* data, std::size_t bytes, off_t at), (file, data, bytes, at));
DUET_REPLACE(readv, ssize_t, (int file, const iovec* parts, int count), (file, parts, count), "readv", path_of(file));
DUET_REPLACE(writev, ssize_t, (int file, const iovec* parts, int count), (file, parts, count), "writev", path_of(file));

// What fails to close is closed: close(2), "Dealing with error returns".
#define DUET_REPLACE_CLOSE(symbol, Handle)                   \
  DUET_DEFINE(symbol, int, (Handle handle)) {                \
    const int error = judge(#symbol, path_of(handle)).error; \
    const int result = next<int(Handle)>(#symbol)(handle);   \
    if (!error) return result;                               \
    errno = error;                                           \
    return -1;                                               \
  }                                                          \
  static_assert(true)

DUET_REPLACE_CLOSE(close, int);
DUET_REPLACE_CLOSE(fclose, FILE*);
DUET_REPLACE_CLOSE(closedir, DIR*);
