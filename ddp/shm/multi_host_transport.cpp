#include "ddp/shm/multi_host_transport.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ddp/shm/shm_transport.h"
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
    if (count == 1) return;
    try {
      PrefixStore mine(store, concat("hosts/", host, "/"));
      shared_ = ShmTransport::connect(mine, own, count, connect_timeout, here);
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
  bool needs_progress() const override { return shared_ != nullptr; }
  void progress() override {
    if (shared_) shared_->progress();
  }

  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    std::vector<int> hosts;
    for (const int rank : subset.ranks) hosts.push_back(hosts_[static_cast<std::size_t>(rank)]);
    return std::make_unique<MultiHostTransport>(network_->connect_subset(subset), subset.store, std::move(hosts),
                                                connect_timeout_);
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
                                                     Milliseconds connect_timeout) {
  require<UsageError>(static_cast<int>(hosts.size()) == network->size(), "there are ", network->size(), " ranks and ",
                      hosts.size(), " numbers of hosts");
  return std::make_unique<MultiHostTransport>(std::move(network), store, std::move(hosts), connect_timeout);
}

}  // namespace duet::ddp
