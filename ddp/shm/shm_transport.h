// Messages between ranks of one host, over rings in memory that they share; of several hosts, over memory within each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddp/shm/control_block.h"
#include "ddp/store/store.h"
#include "ddp/transport/message_receiver.h"
#include "ddp/transport/transport.h"
#include "lib/monotonic.h"

namespace duet::ddp {

/// The threads that wait for messages move them; progress() moves those that no thread waits for. What cannot be moved,
/// or a peer that sends what no rank sends, closes the transport.
class ShmTransport final : public Transport {
 public:
  /// Connects the ranks that call this with the same store. `names` is what errors call them; empty: by their own
  /// numbers. `check`: see ConnectOptions. Throws CommError when a rank does not come or memory cannot be shared.
  static std::unique_ptr<ShmTransport> connect(Store& store, int rank, int size, Milliseconds timeout,
                                               std::vector<int> names = {}, std::function<void()> check = {});
  explicit ShmTransport(std::shared_ptr<ControlBlock> block, Milliseconds connect_timeout = {});
  ~ShmTransport() override;

  ControlBlock& control_block() { return *block_; }
  Milliseconds connect_timeout() const { return connect_timeout_; }
  int rank() const override { return block_->rank(); }
  int size() const override { return block_->size(); }
  const char* name() const override { return "shm"; }

  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override;
  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override;
  void wait(Request request, Clock::time_point deadline) override;
  bool release(Request request) override {
    const std::lock_guard lock(mutex_);
    return messages_.release(request);
  }
  bool needs_progress() const override { return true; }
  void progress() override;
  /// Waits until what this rank sends is in the rings, at most until `deadline`; swallows errors.
  void drain(Clock::time_point deadline);
  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override;
  void close() override;

 private:
  struct Peer {
    std::vector<Request> out;  // in the order of the calls
    std::size_t written = 0;   // bytes of the first of them, head included
    MessageReceiver receiver{false};
  };
  void wake_waiters();
  // The mutex is held in all of these.
  void move();
  void write(int rank, Peer& peer);
  void read(int rank, Peer& peer);
  void stop(const std::string& reason);

  const std::shared_ptr<ControlBlock> block_;
  const Milliseconds connect_timeout_;
  const bool spins_;
  std::mutex mutex_;  // never held while waiting: another thread may start a message without which none can come
  std::vector<Peer> peers_;
  MessageTable messages_;
  std::string closed_;  // why nothing is moved any more
  std::atomic<int> waiting_{0};
};

/// Connects the ranks of this host, which call this with the same store; `network` connects all. `hosts` has a number
/// for every rank, equal for those on one host. Where a host has no memory to share, its ranks use the network too.
/// `check`: as in ConnectOptions.
std::unique_ptr<Transport> make_multi_host_transport(std::unique_ptr<Transport> network,
                                                     const std::shared_ptr<Store>& store, std::vector<int> hosts,
                                                     Milliseconds connect_timeout,
                                                     const std::function<void()>& check = {});

}  // namespace duet::ddp
