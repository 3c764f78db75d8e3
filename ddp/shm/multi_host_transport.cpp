// Messages between ranks of several hosts: over memory within a host, over a network between them.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ddp/shm/control_block.h"
#include "ddp/shm/messages.h"
#include "ddp/shm/shm_group.h"
#include "lib/base/thread_pool.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

class MultiHostTransport final : public Transport {
 public:
  MultiHostTransport(std::unique_ptr<Transport> network, const std::shared_ptr<Store>& store, std::vector<int> hosts,
                     Milliseconds connect_timeout)
      : network_(std::move(network)), hosts_(std::move(hosts)), connect_timeout_(connect_timeout) {
    const int host = hosts_[static_cast<std::size_t>(rank())];
    std::vector<int> here;
    for (int peer = 0; peer < size(); ++peer) {
      const bool local = hosts_[static_cast<std::size_t>(peer)] == host;
      place_.push_back(local ? static_cast<int>(here.size()) : -1);
      if (local) here.push_back(peer);
    }
    const int count = static_cast<int>(here.size()), own = place_[static_cast<std::size_t>(rank())];
    spins_ = count <= usable_cores();
    if (count == 1) return;
    try {
      PrefixStore mine(store, concat("hosts/", host, "/"));
      control_block_ = std::make_unique<ControlBlock>(
          ControlBlock::make_segment(mine, "shm", own, count, connect_timeout), own, count, here);
      messages_ = std::make_unique<Messages>(*control_block_);
    } catch (const CommError&) {  // on all ranks of the host alike
      std::fill(place_.begin(), place_.end(), -1);
    }
  }
  ~MultiHostTransport() override { close(); }

  int rank() const override { return network_->rank(); }
  int size() const override { return network_->size(); }
  const char* name() const override { return "tcp+shm"; }
  const std::vector<int>& hosts() const override { return hosts_; }

  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    if (place_of(peer) < 0) return 2 * network_->send(peer, tag, data, bytes);
    const std::lock_guard lock(mutex_);
    check_open();
    const std::uint64_t number = messages_->send(place_of(peer), header_of(tag, bytes), const_cast<void*>(data));
    messages_->progress();
    return local_request(number);
  }

  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    if (place_of(peer) < 0) return 2 * network_->receive(peer, tag, data, bytes);
    const std::lock_guard lock(mutex_);
    check_open();
    return local_request(messages_->receive(place_of(peer), header_of(tag, bytes), data));
  }

  // Nothing is locked while this thread sleeps: another one may start a message without which this one's cannot come.
  void wait(Request request, Clock::time_point deadline) override {
    if (request % 2 == 0) return network_->wait(request / 2, deadline);
    const auto number = static_cast<std::uint64_t>(request / 2);
    const auto ready = [&] {
      const std::lock_guard lock(mutex_);
      check_open();
      messages_->progress();
      if (waiting_.load() > 1)
        control_block_->ring(control_block_->rank());  // what another thread waits for may have come too
      return !messages_->pending(number);
    };
    const auto check = [&] {
      const std::lock_guard lock(mutex_);
      const int peer = messages_->peer_of(number);
      if (peer < 0) return;
      control_block_->check_alive(peer);
      require<CommError>(Clock::now() < deadline, "rank ", control_block_->name_of(peer), " did not come in time");
    };
    waiting_.fetch_add(1);
    try {
      control_block_->await(ready, check, deadline, spins_);
    } catch (...) {
      waiting_.fetch_sub(1);
      throw;
    }
    waiting_.fetch_sub(1);
  }

  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    std::vector<int> hosts;
    for (const int rank : subset.ranks) hosts.push_back(hosts_[static_cast<std::size_t>(rank)]);
    return std::make_unique<MultiHostTransport>(network_->connect_subset(subset), subset.store, std::move(hosts),
                                                connect_timeout_);
  }

  void close() override {
    network_->close();
    if (!control_block_) return;
    const std::lock_guard lock(mutex_);
    closed_ = true;  // from now on nothing is moved: the memory of what is under way may be gone
    control_block_->close();
  }

 private:
  void check_open() const { require<CommError>(!closed_, "this rank has closed its connections"); }
  int place_of(int peer) const { return place_[static_cast<std::size_t>(peer)]; }

  static CallHeader header_of(std::uint64_t tag, std::size_t bytes) {
    CallHeader header;
    header.sequence = tag;
    header.count = static_cast<std::int64_t>(bytes);
    header.op = static_cast<std::uint8_t>(Collective::send);
    header.dtype = static_cast<std::uint8_t>(DType::u8);
    return header;
  }

  /// Even ones are the network's.
  static Request local_request(std::uint64_t number) { return static_cast<Request>(2 * number + 1); }

  const std::unique_ptr<Transport> network_;
  const std::vector<int> hosts_;
  const Milliseconds connect_timeout_;
  std::vector<int> place_;  // by rank: its number on this host's control block; -1: it is reached over the network
  bool spins_ = false;
  std::unique_ptr<ControlBlock> control_block_;
  std::mutex mutex_;
  bool closed_ = false;
  std::unique_ptr<Messages> messages_;
  std::atomic<int> waiting_{0};
};

}  // namespace

std::unique_ptr<Transport> make_multi_host_transport(std::unique_ptr<Transport> network,
                                                     const std::shared_ptr<Store>& store, std::vector<int> hosts,
                                                     Milliseconds connect_timeout) {
  require<UsageError>(static_cast<int>(hosts.size()) == network->size(), "there are ", network->size(), " ranks and ",
                      hosts.size(), " numbers of hosts");
  return std::make_unique<MultiHostTransport>(std::move(network), store, std::move(hosts), connect_timeout);
}

}  // namespace duet::ddp
