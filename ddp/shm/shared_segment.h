// Memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ddp/store/store.h"

namespace duet::ddp {

/// A run of zeroed memory, mapped by every rank. It has no name in any file system, so nothing is left behind however
/// its processes end.
class SharedSegment {
 public:
  /// Rank 0 makes the segment and the others map it; returns when all have. `key` is new in the store. Throws CommError
  /// that names the rank and the reason: no memory left, another host, a system that forbids it.
  SharedSegment(Store& store, const std::string& key, int rank, int size, std::size_t bytes, Milliseconds timeout);
  std::byte* data() const { return data_.get(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Unmap> data_;
};

/// A text that is equal for processes that can share memory, and differs on other machines and in other containers.
std::string host_identity();

}  // namespace duet::ddp
