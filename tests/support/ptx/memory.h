// Memory that kernels may touch, with a shadow of what was written and of who read and wrote it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace duet_ptx {

/// Who touched a granule of memory last: a writer and two readers, by number + 1, with the epochs of their barriers.
struct Touched {
  std::uint32_t writer = 0, write_epoch = 0;
  std::uint32_t readers[2] = {0, 0}, read_epochs[2] = {0, 0};

  void note_read(std::uint32_t reader, std::uint32_t epoch) {
    if (readers[0] != reader) {
      readers[1] = readers[0];
      read_epochs[1] = read_epochs[0];
      readers[0] = reader;
    }
    read_epochs[0] = epoch;
  }
  void note_write(std::uint32_t by, std::uint32_t epoch) {
    writer = by;
    write_epoch = epoch;
  }
};

/// Arrays in the host's memory; addresses are the host's.
class Memory {
 public:
  struct Granule {
    std::uint32_t launch = 0;  // that touched it
    bool read_as_constant = false;
    Touched touched;
  };
  struct Array {
    std::uintptr_t begin = 0, end = 0;
    unsigned granule_bytes = 4;
    std::string name;
    std::vector<std::uint8_t> initialised;  // by byte
    std::vector<Granule> granules;
  };

  /// granule_bytes: of an element; accesses of less count as accesses of all of it.
  void add(const void* at, std::size_t bytes, unsigned granule_bytes, const std::string& name, bool initialised);
  void remove(const void* at);
  void mark(const void* at, std::size_t bytes, bool initialised);
  /// The array with that address; null: none.
  Array* find(std::uintptr_t address);

 private:
  std::map<std::uintptr_t, std::unique_ptr<Array>> arrays_;  // by end
  Array* last_ = nullptr;                                    // that find() gave
};

}  // namespace duet_ptx
