// Loads and stores, each checked: bounds, alignment, initialisation, races.
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/support/ptx/machine.h"

namespace duet_ptx {
namespace {

/// Whether a barrier of the block that runs lies between the other thread's access and now.
bool ordered(const Grid& grid, std::uint32_t other, std::uint32_t epoch) {
  return (other - 1) / grid.threads == grid.block && epoch < grid.epoch;
}

/// Reports accesses of other threads that no barrier orders before this one.
void find_races(Thread& t, const Instruction& i, const Touched& touched, bool writes, const char* space,
                const std::string& name) {
  Grid& grid = *t.grid;
  const std::uint32_t self = grid.number_of(t);
  const auto races = [&](std::uint32_t other, std::uint32_t epoch) {
    return other != 0 && other != self && !ordered(grid, other, epoch);
  };
  if (races(touched.writer, touched.write_epoch))
    grid.found(space + std::string(writes ? " race, write after write" : " race, read after write"), t, i, name);
  if (!writes) return;
  for (int k = 0; k < 2; ++k)
    if (races(touched.readers[k], touched.read_epochs[k]))
      grid.found(space + std::string(" race, write after read"), t, i, name);
}

/// Whether all bytes are initialised; a write makes them so.
bool initialised(std::uint8_t* bytes, std::size_t count, bool writes) {
  if (writes) std::memset(bytes, 1, count);
  return std::memchr(bytes, 0, count) == nullptr;
}

void check_granules(Thread& t, const Instruction& i, Memory::Array& array, std::size_t at, bool writes) {
  Grid& grid = *t.grid;
  const std::uint32_t self = grid.number_of(t);
  for (std::size_t k = at / array.granule_bytes; k <= (at + i.bytes() - 1) / array.granule_bytes; ++k) {
    Memory::Granule& granule = array.granules[k];
    if (granule.launch != grid.launch) granule = {grid.launch, false, {}};
    find_races(t, i, granule.touched, writes, "global", array.name);
    if (writes) {
      if (granule.read_as_constant) grid.found("written after a read by ld.global.nc", t, i, array.name);
      granule.touched.note_write(self, grid.epoch);
    } else {
      if (i.constant_cache && granule.touched.writer != 0)
        grid.found("ld.global.nc of what the kernel wrote", t, i, array.name);
      if (i.constant_cache) granule.read_as_constant = true;
      granule.touched.note_read(self, grid.epoch);
    }
  }
}

/// The memory at an address, null where the access must not be made.
std::uint8_t* global(Thread& t, const Instruction& i, bool writes) {
  Grid& grid = *t.grid;
  const std::uint64_t address = t.slots[i.from[0]] + i.offset;
  const std::size_t bytes = i.bytes();
  grid.statistics.global_bytes += bytes;
  if (address % bytes != 0) grid.found("misaligned", t, i, "global memory");
  if (!grid.options.own_memory) return reinterpret_cast<std::uint8_t*>(address);
  Memory::Array* const array = grid.memory.find(address);
  if (array == nullptr || address + bytes > array->end) {
    char where[64];
    std::snprintf(where, sizeof where, "%zu bytes at %" PRIx64 ", ", bytes, address);
    grid.found(writes ? "global write out of bounds" : "global read out of bounds", t, i,
               where + (array == nullptr ? "in no array" : "past the end of " + array->name));
    return nullptr;
  }
  const std::size_t at = address - array->begin;
  if (!initialised(array->initialised.data() + at, bytes, writes))
    grid.found("uninitialised global read", t, i, array->name + " at byte " + std::to_string(at));
  check_granules(t, i, *array, at, writes);
  return reinterpret_cast<std::uint8_t*>(address);
}

const std::string nameless;  // PTX gives offsets, not names

std::uint8_t* shared(Thread& t, const Instruction& i, bool writes) {
  Grid& grid = *t.grid;
  const std::uint64_t address = (t.slots[i.from[0]] + i.offset) & 0xffffffff;
  const std::size_t bytes = i.bytes();
  const auto where = [&] { return "offset " + std::to_string(static_cast<std::int32_t>(address)); };
  if (address + bytes > grid.shared.size() || std::memchr(grid.shared_open.data() + address, 0, bytes) != nullptr) {
    grid.found(writes ? "shared write out of bounds" : "shared read out of bounds", t, i, where());
    return nullptr;
  }
  if (address % bytes != 0) grid.found("misaligned", t, i, "shared memory");
  if (!initialised(grid.shared_initialised.data() + address, bytes, writes))
    grid.found("uninitialised shared read", t, i, where());
  const std::uint32_t self = grid.number_of(t);
  for (std::size_t k = address / 4; k <= (address + bytes - 1) / 4; ++k) {
    Touched& touched = grid.shared_touched[k];
    find_races(t, i, touched, writes, "shared", nameless);
    writes ? touched.note_write(self, grid.epoch) : touched.note_read(self, grid.epoch);
  }
  return grid.shared.data() + address;
}

/// A thread's own memory; no other can touch it.
std::uint8_t* local(Thread& t, const Instruction& i, bool writes) {
  const std::uint64_t address = t.slots[i.from[0]] + i.offset;
  const std::size_t bytes = i.bytes();
  const auto where = [&] { return "offset " + std::to_string(static_cast<std::int64_t>(address)); };
  if (address + bytes > t.grid->kernel.local_bytes || address + bytes < address) {
    t.grid->found(writes ? "local write out of bounds" : "local read out of bounds", t, i, where());
    return nullptr;
  }
  if (address % bytes != 0) t.grid->found("misaligned", t, i, "local memory");
  if (!initialised(t.local_initialised + address, bytes, writes))
    t.grid->found("uninitialised local read", t, i, where());
  return t.local + address;
}

std::uint64_t extended(const std::uint8_t* from, unsigned width, bool is_signed) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, width);
  if (is_signed && width < 8 && ((bits >> (8 * width - 1)) & 1) != 0) bits |= ~std::uint64_t{0} << (8 * width);
  return bits;
}

/// Where an access was refused, the value is 0.
void load(Thread& t, const Instruction& i, const std::uint8_t* from) {
  for (unsigned k = 0; k < i.count; ++k)
    set<std::uint64_t>(t, i.to[k], from == nullptr ? 0 : extended(from + k * i.width, i.width, i.is_signed));
}
void store(const Thread& t, const Instruction& i, std::uint8_t* to) {
  if (to == nullptr) return;
  for (unsigned k = 0; k < i.count; ++k) std::memcpy(to + k * i.width, &t.slots[i.from[1 + k]], i.width);
}

}  // namespace

void load_parameter(Thread& t, const Instruction& i) {
  std::uint64_t at = i.offset + (i.from[0] == kNoSlot ? 0 : t.slots[i.from[0]]);
  if (at + i.bytes() > t.grid->kernel.parameter_bytes) {
    t.grid->found("parameter read out of bounds", t, i, "offset " + std::to_string(at));
    return load(t, i, nullptr);
  }
  if (at % i.bytes() != 0) t.grid->found("misaligned", t, i, "parameter");
  load(t, i, t.grid->arguments + at);
}
void load_global(Thread& t, const Instruction& i) { load(t, i, global(t, i, false)); }
void store_global(Thread& t, const Instruction& i) { store(t, i, global(t, i, true)); }
void load_shared(Thread& t, const Instruction& i) { load(t, i, shared(t, i, false)); }
void store_shared(Thread& t, const Instruction& i) { store(t, i, shared(t, i, true)); }
void load_local(Thread& t, const Instruction& i) { load(t, i, local(t, i, false)); }
void store_local(Thread& t, const Instruction& i) { store(t, i, local(t, i, true)); }

}  // namespace duet_ptx
