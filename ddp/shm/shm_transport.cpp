#include "ddp/shm/shm_transport.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "lib/base/threads.h"
#include "lib/error.h"

namespace duet::ddp {

std::unique_ptr<ShmTransport> ShmTransport::connect(Store& store, int rank, int size, Milliseconds timeout,
                                                    std::vector<int> names, std::function<void()> check) {
  auto segment = ControlBlock::make_segment(store, "shm/control_block", rank, size, timeout);
  return std::make_unique<ShmTransport>(
      std::make_unique<ControlBlock>(std::move(segment), rank, size, std::move(names), std::move(check)), timeout);
}

ShmTransport::ShmTransport(std::shared_ptr<ControlBlock> block, Milliseconds connect_timeout)
    : block_(std::move(block)),
      connect_timeout_(connect_timeout),
      spins_(block_->size() <= usable_cores()),
      peers_(static_cast<std::size_t>(block_->size())) {}

ShmTransport::~ShmTransport() { close(); }

Transport::Request ShmTransport::send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  require<CommError>(closed_.empty(), closed_);
  auto* const memory = static_cast<std::byte*>(const_cast<void*>(data));  // which is only read
  const Request request = messages_.add({.peer = peer, .sends = true, .head = {tag, bytes}, .data = memory});
  peers_[static_cast<std::size_t>(peer)].out.push_back(request);
  move();
  wake_waiters();
  return request;
}

Transport::Request ShmTransport::receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  require<CommError>(closed_.empty(), closed_);
  const Request request = messages_.add({.peer = peer, .head = {tag, bytes}, .data = static_cast<std::byte*>(data)});
  MessageReceiver& receiver = peers_[static_cast<std::size_t>(peer)].receiver;
  StreamMessage& message = messages_.at(request);
  if (!receiver.take_early(message)) receiver.expect(message);
  return request;
}

void ShmTransport::wait(Request request, Clock::time_point deadline) {
  StreamMessage* message = nullptr;
  const auto ready = [&] {
    const std::lock_guard lock(mutex_);
    message = &messages_.at(request);
    if (message->ended()) return true;
    move();
    if (waiting_.load() > 1) wake_waiters();
    return message->ended();
  };
  const auto check = [&] {
    block_->check_alive(message->peer);
    require<CommError>(Clock::now() < deadline, "rank ", block_->name_of(message->peer), " did not come in time");
  };
  std::string failure;
  waiting_.fetch_add(1);
  try {
    block_->await(ready, check, deadline, spins_);
  } catch (const CommError& error) {
    failure = error.what();
  }
  waiting_.fetch_sub(1);
  const std::lock_guard lock(mutex_);
  message->busy = false;
  if (failure.empty() && message->failure.empty()) return;
  if (failure.empty())  // the reason for which all messages have ended, or that of an early one
    failure =
        closed_.empty() ? concat("rank ", block_->name_of(message->peer), ": ", message->failure) : message->failure;
  stop(failure);  // nothing may arrive any more in memory that the caller gives up
  throw CommError(failure);
}

void ShmTransport::progress() {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.empty()) return;
    move();
    wake_waiters();
    require<CommError>(closed_.empty(), closed_);
  }
  drain(Clock::now() + Milliseconds(1));  // a ring holds little of a large message
  wake_waiters();
}

void ShmTransport::drain(Clock::time_point deadline) {
  int next = 0;
  const auto ready = [&] {
    const std::lock_guard lock(mutex_);
    if (closed_.empty()) move();
    next = static_cast<int>(
        std::find_if(peers_.begin(), peers_.end(), [](const Peer& one) { return !one.out.empty(); }) - peers_.begin());
    return next == size();
  };
  const auto check = [&] {
    block_->check_alive(next);
    require<CommError>(Clock::now() < deadline, "rank ", next, " took nothing in time");
  };
  try {
    block_->await(ready, check, deadline, spins_);
  } catch (const CommError&) {  // that rank takes no more
  }
}

std::unique_ptr<Transport> ShmTransport::connect_subset(const Subset& subset) const {
  return connect(*subset.store, subset.rank, subset.size(), connect_timeout_);
}

void ShmTransport::close() {
  const std::lock_guard lock(mutex_);
  stop(kClosed);
}

/// What other threads of this rank wait for may have come.
void ShmTransport::wake_waiters() {
  if (waiting_.load() > 0) block_->ring(rank());
}

/// Moves what can be moved without waiting.
void ShmTransport::move() {
  int peer = 0;
  try {
    for (; peer < size() && closed_.empty(); ++peer) {
      write(peer, peers_[static_cast<std::size_t>(peer)]);
      read(peer, peers_[static_cast<std::size_t>(peer)]);
    }
  } catch (const CommError& error) {
    stop(concat("rank ", block_->name_of(peer), ": ", error.what()));
  } catch (const std::bad_alloc&) {
    stop(concat("rank ", block_->name_of(peer), " sends ", peers_[static_cast<std::size_t>(peer)].receiver.announced(),
                " bytes that nothing waits for, and there is no memory to keep them"));
  }
}

void ShmTransport::write(int rank, Peer& peer) {
  bool moved = false;
  while (!peer.out.empty()) {
    StreamMessage& message = messages_.at(peer.out.front());
    const auto head = std::as_bytes(std::span(&message.head, 1));
    const auto payload = static_cast<std::size_t>(message.head.bytes);
    const std::span<const std::byte> rest =
        peer.written < head.size()
            ? head.subspan(peer.written)
            : std::span<const std::byte>(message.data, payload).subspan(peer.written - head.size());
    const std::size_t bytes = ByteRing(block_->ring_memory(block_->rank(), rank)).write(rest);
    if (bytes == 0) break;
    moved = true;
    peer.written += bytes;
    if (peer.written < head.size() + payload) continue;
    message.done = true;
    peer.out.erase(peer.out.begin());
    peer.written = 0;
  }
  if (moved) block_->ring(rank);
}

void ShmTransport::read(int rank, Peer& peer) {
  if (rank == block_->rank()) return;
  std::byte* const ring = block_->ring_memory(rank, block_->rank());
  if (ring == nullptr) return;
  bool moved = false;
  while (const std::size_t bytes = ByteRing(ring).read(peer.receiver.room())) {
    moved = true;
    peer.receiver.advance(bytes);
  }
  if (moved) block_->ring(rank);
}

/// Fails all messages; their memory is not used from then on.
void ShmTransport::stop(const std::string& reason) {
  if (!closed_.empty()) return;
  closed_ = reason;
  for (Peer& peer : peers_) {
    for (const Request request : peer.out) messages_.at(request).failure = reason;
    peer.out.clear();
    peer.receiver.stop(reason);
  }
  block_->close();
}

namespace {

class MultiHostTransport final : public Transport {
 public:
  MultiHostTransport(std::unique_ptr<Transport> network, const std::shared_ptr<Store>& store, std::vector<int> hosts,
                     Milliseconds connect_timeout, const std::function<void()>& check)
      : network_(std::move(network)), hosts_(std::move(hosts)), connect_timeout_(connect_timeout) {
    const int host = hosts_[static_cast<std::size_t>(rank())];
    std::vector<int> here;
    for (int peer = 0; peer < size(); ++peer) {
      const bool local = hosts_[static_cast<std::size_t>(peer)] == host;
      place_.push_back(local ? static_cast<int>(here.size()) : -1);
      if (local) here.push_back(peer);
    }
    const int count = static_cast<int>(here.size()), own = place_[static_cast<std::size_t>(rank())];
    if (count == 1) return;
    try {
      PrefixStore mine(store, concat("hosts/", host, "/"));
      shared_ = ShmTransport::connect(mine, own, count, connect_timeout, here, check);
    } catch (const CommError&) {  // on all ranks of the host alike
      if (check) check();
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
    return 2 * shared_->send(place_of(peer), tag, data, bytes) + 1;
  }
  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    if (place_of(peer) < 0) return 2 * network_->receive(peer, tag, data, bytes);
    return 2 * shared_->receive(place_of(peer), tag, data, bytes) + 1;
  }
  /// Even requests are the network's.
  void wait(Request request, Clock::time_point deadline) override {
    request % 2 == 0 ? network_->wait(request / 2, deadline) : shared_->wait(request / 2, deadline);
  }
  bool release(Request request) override {
    return request % 2 == 0 ? network_->release(request / 2) : shared_->release(request / 2);
  }
  bool needs_progress() const override { return shared_ != nullptr; }
  void progress() override {
    if (shared_) shared_->progress();
  }

  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    std::vector<int> hosts;
    for (const int rank : subset.ranks) hosts.push_back(hosts_[static_cast<std::size_t>(rank)]);
    return std::make_unique<MultiHostTransport>(network_->connect_subset(subset), subset.store, std::move(hosts),
                                                connect_timeout_, std::function<void()>());
  }

  void close() override {
    network_->close();
    if (shared_) shared_->close();
  }

 private:
  int place_of(int peer) const { return place_[static_cast<std::size_t>(peer)]; }

  const std::unique_ptr<Transport> network_;
  const std::vector<int> hosts_;
  const Milliseconds connect_timeout_;
  std::vector<int> place_;  // by rank: its number among this host's; -1: it is reached over the network
  std::unique_ptr<ShmTransport> shared_;
};

}  // namespace

std::unique_ptr<Transport> make_multi_host_transport(std::unique_ptr<Transport> network,
                                                     const std::shared_ptr<Store>& store, std::vector<int> hosts,
                                                     Milliseconds connect_timeout, const std::function<void()>& check) {
  require<UsageError>(static_cast<int>(hosts.size()) == network->size(), "there are ", network->size(), " ranks and ",
                      hosts.size(), " numbers of hosts");
  return std::make_unique<MultiHostTransport>(std::move(network), store, std::move(hosts), connect_timeout, check);
}

}  // namespace duet::ddp
