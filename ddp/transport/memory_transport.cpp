// Messages between ranks that are threads of one process.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "ddp/store/store.h"
#include "ddp/transport/message_receiver.h"
#include "ddp/transport/transport.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

/// What is under way between all ranks of a group.
struct Hub {
  using Key = std::tuple<int, int, std::uint64_t>;  // from, to, tag
  explicit Hub(int size) : closed(static_cast<std::size_t>(size), false) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, std::string> messages;
  std::vector<bool> closed;
};

/// The hub of the ranks that share the store; the first that comes makes it.
std::shared_ptr<Hub> meet_in_hub(Store& store, int rank, int size, Milliseconds timeout) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Hub>> hubs;
  static int made = 0;
  std::shared_ptr<Hub> hub;
  {
    const std::lock_guard lock(mutex);
    const std::string name = concat(++made);
    hub = std::make_shared<Hub>(size);
    const std::string found = store.compare_set("memory/hub", "", name);
    std::erase_if(hubs, [](const auto& one) { return one.second.expired(); });
    if (found == name)
      hubs[name] = hub;
    else
      hub = hubs.contains(found) ? hubs[found].lock() : nullptr;
  }
  require<CommError>(hub != nullptr, "rank ", rank, " is not in the process of the other ranks");
  meet(store, "memory/ready", rank, size, timeout);
  return hub;
}

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(Store& store, int rank, int size, Milliseconds timeout)
      : hub_(meet_in_hub(store, rank, size, timeout)), rank_(rank), timeout_(timeout) {}
  ~MemoryTransport() override { close(); }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->closed.size()); }
  const char* name() const override { return "memory"; }

  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    const std::lock_guard lock(hub_->mutex);
    check_open(peer);
    hub_->messages[{rank_, peer, tag}].assign(static_cast<const char*>(data), bytes);
    hub_->changed.notify_all();
    return messages_.add({.peer = peer, .sends = true, .done = true});
  }

  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    const std::lock_guard lock(hub_->mutex);
    return messages_.add({.peer = peer, .head = {tag, bytes}, .data = static_cast<std::byte*>(data)});
  }

  void wait(Request request, Clock::time_point deadline) override {
    std::unique_lock lock(hub_->mutex);
    StreamMessage& receive = messages_.at(request);
    receive.busy = false;
    if (receive.done) return;
    const auto [tag, bytes] = receive.head;  // another message may be there once the lock is open
    const int peer = receive.peer;
    std::byte* const data = receive.data;
    const Hub::Key key{peer, rank_, tag};
    auto message = hub_->messages.end();
    const auto arrived = [&] { return (message = hub_->messages.find(key)) != hub_->messages.end(); };
    const auto over = [&] { return arrived() || is_closed(peer) || is_closed(rank_); };
    const bool ended = hub_->changed.wait_until(lock, deadline, over);
    require<CommError>(ended, "rank ", peer, " sent nothing in time");
    if (is_closed(rank_) || !arrived()) check_open(peer);  // the memory may be gone
    require<CommError>(message->second.size() == bytes, "rank ", peer, " sent ", message->second.size(),
                       " bytes, expected ", bytes);
    std::memcpy(data, message->second.data(), bytes);
    hub_->messages.erase(message);
  }

  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    return make_memory_transport(*subset.store, subset.rank, subset.size(), timeout_);
  }

  void close() override {
    const std::lock_guard lock(hub_->mutex);
    hub_->closed[static_cast<std::size_t>(rank_)] = true;
    hub_->changed.notify_all();
  }

 private:
  bool is_closed(int rank) const { return hub_->closed[static_cast<std::size_t>(rank)]; }
  void check_open(int peer) const {
    require<CommError>(!is_closed(rank_), kClosed);
    require<CommError>(!is_closed(peer), "rank ", peer, " has closed the connection");
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  Milliseconds timeout_;
  MessageTable messages_;
};

}  // namespace

std::unique_ptr<Transport> make_memory_transport(Store& store, int rank, int size, Milliseconds timeout) {
  return std::make_unique<MemoryTransport>(store, rank, size, timeout);
}

}  // namespace duet::ddp
