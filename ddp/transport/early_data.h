// The data of a message that comes before its receive() is called.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace duet::ddp {

/// Takes memory as the data arrive, at most kPieceBytes ahead of them, whatever size was announced. Not thread-safe.
class EarlyData {
 public:
  static constexpr std::size_t kPieceBytes = 256 << 10;

  explicit EarlyData(std::size_t announced) : announced_(announced) {}

  /// Where the next bytes go; empty once all have arrived. Throws std::bad_alloc.
  std::span<std::byte> room() {
    if (arrived_ == announced_) return {};
    const std::size_t piece = arrived_ / kPieceBytes, done = arrived_ % kPieceBytes;
    const std::size_t bytes = std::min(kPieceBytes, announced_ - piece * kPieceBytes);
    if (piece == pieces_.size()) pieces_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    return {pieces_[piece].get() + done, bytes - done};
  }
  /// So many bytes have arrived in room().
  void advance(std::size_t bytes) { arrived_ += bytes; }
  /// All that have arrived.
  void copy_to(std::byte* target) const {
    for (std::size_t done = 0; done < arrived_; done += kPieceBytes)
      std::memcpy(target + done, pieces_[done / kPieceBytes].get(), std::min(kPieceBytes, arrived_ - done));
  }

 private:
  std::size_t announced_, arrived_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> pieces_;  // all but the last of kPieceBytes
};

}  // namespace duet::ddp
