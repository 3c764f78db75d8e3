// Memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ddp/store/store.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// A run of zeroed memory, mapped by every rank. It has no name in any file system, so nothing is left behind however
/// its processes end.
class SharedSegment {
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* data) const;
  };

 public:
  using Mapping = std::unique_ptr<std::byte, Unmap>;

  /// Rank 0 makes the segment and the others map it; returns when all have. `key` is new in the store. Throws CommError
  /// that names the rank and the reason: no memory left, another host, a system that forbids it. Behind the `bytes`
  /// follow `later_bytes`, which take no memory before reserve_later().
  SharedSegment(Store& store, const std::string& key, int rank, int size, std::size_t bytes, Milliseconds timeout,
                std::size_t later_bytes = 0);
  std::byte* data() const { return data_.get(); }
  /// Takes memory for some of the later bytes. Throws CommError where there is none left. Thread-safe.
  void reserve_later(std::size_t offset, std::size_t bytes) const;
  /// Maps some of the later bytes, which a rank has reserved, from a multiple of the page size on: every rank that maps
  /// them sees the same ones. Throws CommError. Thread-safe.
  Mapping map_later(std::size_t offset, std::size_t bytes) const;

 private:
  Mapping data_;
  std::size_t bytes_;
  Descriptor file_;  // open where there are later bytes
};

/// A text that is equal for processes that can share memory, and differs on other machines and in other containers.
std::string host_identity();

}  // namespace duet::ddp
