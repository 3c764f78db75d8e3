// What ranks exchange through the store: their GPUs, NCCL's id, how far they are, and what went wrong.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/store/store.h"

namespace duet::ddp::nccl {

/// Thread-safe, like the store.
class Rendezvous {
 public:
  Rendezvous(std::shared_ptr<Store> store, int rank, int size) : store_(std::move(store)), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Waits for all ranks and checks that NCCL accepts their GPUs. Throws CommError that names the missing ranks, and on
  /// all ranks alike DeviceError that says what to do when ranks share a GPU and must not.
  void compare_gpus(int gpu, Milliseconds timeout);
  /// The id that rank 0 makes, which listens for the others from then on.
  ncclUniqueId share_id(Milliseconds timeout);

  void publish_started(std::uint64_t count);
  /// "rank 2", "ranks 2, 3": those that have not published that they started more than `number` collectives. Empty if
  /// all have, or if the store is lost.
  std::string ranks_before(std::uint64_t number);

  /// Publishes this rank's headers (ddp/group/call_header.h), and returns those that all ranks have published last.
  std::vector<std::string> exchange_headers(const std::string& own);

  /// Publishes that this rank's group has failed. Never throws.
  void publish_failure(const std::string& why) noexcept;
  /// The error of the first rank that failed; empty if none did. Throws CommError when the store is lost.
  std::string failure();
  /// Returns what failure() does, after a short wait in which others may publish one. Never throws.
  std::string wait_for_failure() noexcept;

 private:
  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
};

}  // namespace duet::ddp::nccl
