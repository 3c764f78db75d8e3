// Memory of buffers in the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ddp/group/process_group.h"

namespace duet::ddp {

inline std::byte* at(const Buffer& buffer, std::int64_t element) {
  return static_cast<std::byte*>(buffer.data) + static_cast<std::size_t>(element) * size_of(buffer.dtype);
}

/// Nothing where source and target are the same.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace duet::ddp
