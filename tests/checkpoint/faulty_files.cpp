#include "tests/checkpoint/faulty_files.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace {

duet_test::Fault planned = duet_test::Fault::none;
int planned_at = 0;
int planned_error = 0;
std::atomic<int> planned_calls{0};
bool active = false;

/// True when this call is the one that fails; errno is set.
bool fails() {
  if (!active || ++planned_calls != planned_at) return false;
  if (planned == duet_test::Fault::crash) ::_exit(duet_test::kCrashStatus);
  if (planned != duet_test::Fault::error) return false;
  errno = planned_error;
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

// Meson asks for 64-bit file offsets, with which this is the symbol open64.
int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const int mode = flags & O_CREAT ? va_arg(list, int) : 0;
  va_end(list);
  if (fails()) return -1;
  return next<int(const char*, int, ...)>("open64")(path, flags, mode);
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (fails()) return -1;
  // A planned run writes in two pieces, as a disk that fills up would.
  if (active && bytes > 1) bytes /= 2;
  return next<ssize_t(int, const void*, size_t)>("write")(descriptor, data, bytes);
}

int fsync(int descriptor) {
  if (fails()) return -1;
  return next<int(int)>("fsync")(descriptor);
}

int close(int descriptor) {
  const bool failing = fails();
  const int error = errno;
  const int result = next<int(int)>("close")(descriptor);
  if (failing) errno = error;
  return failing ? -1 : result;
}

int rename(const char* from, const char* to) noexcept {
  if (fails()) return -1;
  return next<int(const char*, const char*)>("rename")(from, to);
}

}  // extern "C"

namespace duet_test {

void plan_fault(Fault fault, int at, int error_number) {
  planned = fault;
  planned_at = at;
  planned_error = error_number;
  planned_calls = 0;
  active = true;
}

int end_faults() {
  active = false;
  return planned_calls;
}

}  // namespace duet_test
