#include "tests/support/allocations.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>

#include "tests/support/sanitizers.h"

#ifdef DUET_SANITIZED  // sanitizers bring a malloc of their own
#define DUET_HOOK_MALLOC 0
#else
#define DUET_HOOK_MALLOC 1
#endif

namespace {

constexpr int kMaxFrames = 32;

std::atomic<bool> counting{false};
std::atomic<long> own_count{0};
std::atomic<long> vendor_count{0};
std::atomic<bool> first_taken{false};
std::array<void*, kMaxFrames> first_stack;
std::atomic<int> first_frames{0};
thread_local bool inside = false;  // the stack walk itself may allocate

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool starts_with(const char* text, const char* start) { return std::strncmp(text, start, std::strlen(start)) == 0; }

bool is_standard_library(const char* object) {
  for (const char* name :
       {"libstdc++", "libc++", "libc.so", "libgcc_s", "ld-linux", "libpthread", "libasan", "libtsan", "libubsan"})
    if (starts_with(object, name)) return true;
  return false;
}

// One program's instance of a standard template serves all its libraries, so allocations are attributed to the caller.
bool is_standard_symbol(const char* symbol) {
  for (const char* start : {"_ZNSt", "_ZNKSt", "_ZSt", "_ZN9__gnu_cxx"})
    if (symbol != nullptr && starts_with(symbol, start)) return true;
  return false;
}

bool is_own(const char* object) {
  static const void* const program = [] {
    Dl_info info{};
    dladdr(&counting, &info);
    return static_cast<const void*>(info.dli_fname);
  }();
  return starts_with(object, "libduet") || object == base_name(static_cast<const char*>(program));
}

// `caller` is the return address of the allocating function: the frames before it are this file's.
void record(void* caller) {
  if (!counting.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  std::array<void*, kMaxFrames> stack;
  const int frames = backtrace(stack.data(), kMaxFrames);
  int first = 0;
  while (first < frames && stack[static_cast<std::size_t>(first)] != caller) ++first;
  if (first == frames) first = 0;
  bool own = true;
  for (int i = first; i < frames; ++i) {
    Dl_info info{};
    if (!dladdr(stack[static_cast<std::size_t>(i)], &info) || !info.dli_fname) continue;
    const char* object = base_name(info.dli_fname);
    if (is_standard_library(object) || is_standard_symbol(info.dli_sname)) continue;
    own = is_own(object);
    break;
  }
  (own ? own_count : vendor_count).fetch_add(1, std::memory_order_relaxed);
  if (own && !first_taken.exchange(true)) {
    for (int i = first; i < frames; ++i)
      first_stack[static_cast<std::size_t>(i - first)] = stack[static_cast<std::size_t>(i)];
    first_frames.store(frames - first, std::memory_order_release);
  }
  inside = false;
}

}  // namespace

#if DUET_HOOK_MALLOC
// glibc's own entry points, under the names that a replaced malloc may call.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  record(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  record(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  record(__builtin_return_address(0));
  return __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  record(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  record(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  record(__builtin_return_address(0));
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}
}  // extern "C"

static void* plain_allocate(std::size_t bytes) { return __libc_malloc(bytes); }
static void* plain_allocate(std::size_t bytes, std::size_t alignment) { return __libc_memalign(alignment, bytes); }
#else
static void* plain_allocate(std::size_t bytes) { return std::malloc(bytes); }
static void* plain_allocate(std::size_t bytes, std::size_t alignment) {
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
#endif

static void* or_throw(void* memory) {
  if (!memory) throw std::bad_alloc();
  return memory;
}

void* operator new(std::size_t bytes) {
  record(__builtin_return_address(0));
  return or_throw(plain_allocate(bytes ? bytes : 1));
}
void* operator new[](std::size_t bytes) {
  record(__builtin_return_address(0));
  return or_throw(plain_allocate(bytes ? bytes : 1));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  record(__builtin_return_address(0));
  return plain_allocate(bytes ? bytes : 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  record(__builtin_return_address(0));
  return plain_allocate(bytes ? bytes : 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  record(__builtin_return_address(0));
  return or_throw(plain_allocate(bytes ? bytes : 1, static_cast<std::size_t>(alignment)));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  record(__builtin_return_address(0));
  return or_throw(plain_allocate(bytes ? bytes : 1, static_cast<std::size_t>(alignment)));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace duet_test {

CountAllocations::CountAllocations() {
  std::array<void*, 1> warm_up;
  backtrace(warm_up.data(), 1);  // loads libgcc_s, which allocates
  is_own("");
  own_count = 0, vendor_count = 0, first_frames = 0, first_taken = false;
  counting = true;
}

CountAllocations::~CountAllocations() { counting = false; }

long CountAllocations::own() const { return own_count; }
long CountAllocations::vendor() const { return vendor_count; }

std::string CountAllocations::first_own() const {
  inside = true;
  std::ostringstream text;
  for (int i = 0; i < first_frames.load(std::memory_order_acquire); ++i) {
    void* frame = first_stack[static_cast<std::size_t>(i)];
    Dl_info info{};
    dladdr(frame, &info);
    const auto offset = static_cast<char*>(frame) - static_cast<char*>(info.dli_fbase);
    text << (info.dli_fname ? base_name(info.dli_fname) : "?") << "+0x" << std::hex << offset << ' '
         << (info.dli_sname ? info.dli_sname : "") << '\n';
  }
  std::string result = text.str();
  inside = false;
  return result;
}

}  // namespace duet_test
