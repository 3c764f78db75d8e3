#include "ddp/shm/byte_ring.h"

#include <algorithm>
#include <cstring>

#include "lib/error.h"

namespace duet::ddp {

namespace {

std::size_t used_bytes(std::uint32_t written, std::uint32_t taken) {
  const std::uint32_t used = written - taken;
  require<CommError>(used <= ByteRing::kRoom, "a ring of shared memory is damaged: it holds ", used, " bytes of ",
                     ByteRing::kRoom);
  return used;
}

}  // namespace

std::size_t ByteRing::write(std::span<const std::byte> data) {
  const std::uint32_t at = written().load(std::memory_order_relaxed);
  const std::size_t used = used_bytes(at, taken().load(std::memory_order_acquire));
  const std::size_t bytes = std::min(kRoom - used, data.size()), place = at % kRoom;
  const std::size_t first = std::min(bytes, kRoom - place);
  std::memcpy(ring() + place, data.data(), first);
  std::memcpy(ring(), data.data() + first, bytes - first);
  written().store(at + static_cast<std::uint32_t>(bytes));
  return bytes;
}

std::size_t ByteRing::read(std::span<std::byte> data) {
  const std::uint32_t at = taken().load(std::memory_order_relaxed);
  const std::size_t there = used_bytes(written().load(std::memory_order_acquire), at);
  const std::size_t bytes = std::min(there, data.size()), place = at % kRoom;
  const std::size_t first = std::min(bytes, kRoom - place);
  std::memcpy(data.data(), ring() + place, first);
  std::memcpy(data.data() + first, ring(), bytes - first);
  taken().store(at + static_cast<std::uint32_t>(bytes));
  return bytes;
}

}  // namespace duet::ddp
