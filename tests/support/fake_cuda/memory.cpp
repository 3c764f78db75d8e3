#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/sim.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet_sim {
namespace {

using Address = std::uintptr_t;
constexpr Address kSpan = Address{1} << 36;  // addresses of a device; none is used twice, so a late use is always seen
constexpr Address kPage = 4096, kAlignment = 256;
constexpr int kEmpty = 0xFF;  // fresh memory and what lies around it: NaN as floats, -1 as labels

/// Allocations end at the end of a page, and a page that is never opened follows.
struct Allocation {
  Address pages, base, end;  // the requested bytes end at base + size, the pages at `end`
  std::size_t size, used;    // a pool over it may have lent out less: see hand_over
  int device;
  bool live;
};

struct Memory {
  std::mutex mutex;
  Address arena = 0, next[kMaxDevices + 1];
  std::map<Address, Allocation> allocations;  // by first page, freed ones too
  std::vector<const Allocation*> opened;
  Live live[kMaxDevices + 1];
};

Memory& memory() {
  static Memory* shared = [] {
    auto* made = new Memory;
    void* arena =
        ::mmap(nullptr, kSpan * (kMaxDevices + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena != MAP_FAILED) made->arena = reinterpret_cast<Address>(arena);
    for (int i = 0; i <= kMaxDevices; ++i) made->next[i] = made->arena + kSpan * static_cast<Address>(i) + kPage;
    return made;
  }();
  return *shared;
}

std::size_t capacity() { return static_cast<std::size_t>(setting("DUET_SIM_MEMORY", 4096)) << 20; }
std::size_t slot(int device) { return static_cast<std::size_t>(device + 1); }
void* pointer(Address address) { return reinterpret_cast<void*>(address); }
void protect(const Allocation& a, int rights) { ::mprotect(pointer(a.pages), a.end - a.pages, rights); }

/// The allocation that holds an address, or lies just before it.
Allocation* find(const void* p) {
  auto& all = memory().allocations;
  auto after = all.upper_bound(reinterpret_cast<Address>(p));
  if (after == all.begin()) return nullptr;
  Allocation& a = std::prev(after)->second;
  return reinterpret_cast<Address>(p) < a.end + kPage ? &a : nullptr;
}

bool only_empty(Address from, Address to) {
  const auto* bytes = static_cast<const unsigned char*>(pointer(from));
  return std::all_of(bytes, bytes + (to - from), [](unsigned char byte) { return byte == kEmpty; });
}

cudaError_t allocate(void** result, std::size_t size, int device) {
  *result = nullptr;
  if (forbidden_by_capture()) return cudaErrorStreamCaptureUnsupported;
  if (size == 0) return cudaSuccess;
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  Live& live = m.live[slot(device)];
  const Address room = (size + kAlignment - 1) / kAlignment * kAlignment;
  const Address pages = (room + kPage - 1) / kPage * kPage, start = m.next[slot(device)];
  if (m.arena == 0 || (device != kHost && live.bytes + size > capacity())) return cudaErrorMemoryAllocation;
  if (start + pages + kPage > m.arena + kSpan * (slot(device) + 1)) return cudaErrorMemoryAllocation;
  const Allocation made{start, start + pages - room, start + pages, size, size, device, true};
  protect(made, PROT_READ | PROT_WRITE);
  std::memset(pointer(start), kEmpty, pages);
  if (device != kHost) protect(made, PROT_NONE);
  m.next[slot(device)] = made.end + kPage;
  m.allocations.emplace(start, made);
  m.opened.reserve(m.allocations.size());  // a signal handler must not allocate
  ++live.allocations;
  live.bytes += size;
  *result = pointer(made.base);
  return cudaSuccess;
}

cudaError_t release(void* p) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  Allocation* a = find(p);
  const bool known = a != nullptr && reinterpret_cast<Address>(p) == a->base && a->device != kHost;
  if (!known || !a->live) {
    report("%p is freed%s", p, known ? " twice" : ", but was never allocated");
    return cudaErrorInvalidValue;
  }
  a->live = false;
  --m.live[slot(a->device)].allocations;
  m.live[slot(a->device)].bytes -= a->size;
  ::madvise(pointer(a->pages), a->end - a->pages, MADV_DONTNEED);
  protect(*a, PROT_NONE);
  return cudaSuccess;
}

bool allowed(const Allocation& a, int device, std::uint32_t reach) {
  return a.device == kHost || (reach >> a.device & 1) || (device >= 0 && (state().peers[device] >> a.device & 1));
}

/// Words for an allocation; made without allocating, for the signal handler.
struct Text {
  explicit Text(const Allocation& a) {
    const char* freed = a.live ? "" : "freed ";
    if (a.device == kHost)
      std::snprintf(chars, sizeof chars, "%spinned host memory (%zu bytes)", freed, a.size);
    else
      std::snprintf(chars, sizeof chars, "%smemory of device %d (%zu bytes)", freed, a.device, a.size);
  }
  char chars[80];
};
std::string describe(const Allocation& a) { return Text(a).chars; }

}  // namespace

bool in_arena(const void* p) {
  const Address at = reinterpret_cast<Address>(p), arena = memory().arena;
  return arena != 0 && at >= arena && at < arena + kSpan * (kMaxDevices + 1);
}

Place place_of(const void* p, std::size_t bytes, int* device) {
  if (!in_arena(p)) return Place::pageable;
  std::lock_guard lock(memory().mutex);
  const Allocation* a = find(p);
  const Address at = reinterpret_cast<Address>(p);
  if (a == nullptr || !a->live || at < a->base || at + bytes > a->base + a->size) {
    report("a copy of %zu bytes at %p leaves %s", bytes, p, a == nullptr ? "all memory" : describe(*a).c_str());
    return Place::bad;
  }
  *device = a->device;
  return a->device == kHost ? Place::pinned : Place::device;
}

std::string pointer_fault(const void* p, bool certain, int device, std::uint32_t reach) {
  if (p == nullptr) return "";
  if (!in_arena(p)) return certain ? "is host memory that was not pinned" : "";
  std::lock_guard lock(memory().mutex);
  const Allocation* a = find(p);
  const Address at = reinterpret_cast<Address>(p);
  if (!certain && (a == nullptr || at < a->base || at > a->end)) return "";  // padding, or two integers
  if (a == nullptr) return "is no memory at all";
  if (at < a->base || at > a->end) return "lies outside " + describe(*a);
  if (!a->live) return "is " + describe(*a);
  return allowed(*a, device, reach)
             ? ""
             : "is " + describe(*a) + ", which device " + std::to_string(device) + " cannot reach";
}

bool pointers_sound(const Op& op) {
  for (const PointerArgument& p : op.pointers) {
    const std::string fault = pointer_fault(p.value, p.certain, op.device, op.reach);
    if (fault.empty()) continue;
    report("argument %d of %s %s", p.argument, name_of(op), fault.c_str());
    return false;
  }
  return true;
}

bool open_memory(void* address, const Op& op) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  Allocation* a = find(address);
  if (a != nullptr && a->live && reinterpret_cast<Address>(address) < a->end && allowed(*a, op.device, op.reach)) {
    protect(*a, PROT_READ | PROT_WRITE);
    if (std::find(m.opened.begin(), m.opened.end(), a) == m.opened.end()) m.opened.push_back(a);
    return true;
  }
  if (a == nullptr)
    report("%s touches %p: no memory of any device", name_of(op), address);
  else
    report("%s on device %d touches byte %td of %s", name_of(op), op.device,
           static_cast<std::ptrdiff_t>(reinterpret_cast<Address>(address) - a->base), Text(*a).chars);
  return false;
}

bool close_memory(const Op& op) {
  Memory& m = memory();
  std::lock_guard lock(m.mutex);
  bool good = true;
  for (const Allocation* a : m.opened) {
    if (!a->live) continue;
    if (!only_empty(a->pages, a->base) || !only_empty(a->base + a->used, a->end)) {
      report("%s writes past %s, of which %zu are lent out", name_of(op), describe(*a).c_str(), a->used);
      std::memset(pointer(a->pages), kEmpty, a->base - a->pages);
      std::memset(pointer(a->base + a->used), kEmpty, a->end - a->base - a->used);
      good = false;
    }
    protect(*a, PROT_NONE);
  }
  m.opened.clear();
  return good;
}

void hand_over(void* block, std::size_t bytes, cudaStream_t stream) {
  std::lock_guard lock(state().mutex);
  Op op("a block's new user");
  op.body = [=] {
    std::unique_lock memory_lock(memory().mutex);
    Allocation* a = find(block);
    a->used = bytes;
    const std::size_t all = a->size;
    memory_lock.unlock();
    std::memset(block, kEmpty, all);
  };
  submit(stream, op);
}

Live live(int device) {
  std::lock_guard lock(memory().mutex);
  return memory().live[slot(device)];
}

}  // namespace duet_sim

using namespace duet_sim;

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call("cudaMemGetInfo", [&](Lock&) {
    *total = capacity();
    *free = *total - live(current_device()).bytes;
    return cudaSuccess;
  });
}
cudaError_t cudaMalloc(void** p, size_t size) {
  return call("cudaMalloc", [&](Lock&) { return allocate(p, size, current_device()); });
}
cudaError_t cudaMallocHost(void** p, size_t size) {
  return call("cudaMallocHost", [&](Lock&) { return allocate(p, size, kHost); });
}
/// Waits for all work enqueued on the device, as CUDA's own does.
cudaError_t cudaFree(void* p) {
  return call("cudaFree", [&](Lock& lock) {
    if (p == nullptr) return cudaSuccess;
    if (forbidden_by_capture()) return cudaErrorStreamCaptureUnsupported;
    Ops work;
    for (const OpPtr& op : state().pending)
      if (op->device == current_device()) work.push_back(op);
    const cudaError_t error = drain(lock, work);
    return error != cudaSuccess ? error : release(p);
  });
}
