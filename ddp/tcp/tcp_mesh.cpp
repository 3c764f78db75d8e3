#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/store/connection.h"
#include "ddp/store/network.h"
#include "ddp/store/store.h"
#include "ddp/tcp/tcp_transport.h"
#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr Milliseconds kRetryPause{50};

tcp::endpoint any_port(int rank, const std::string& address) {
  require_loopback(address);
  error_code error;
  const auto local = asio::ip::make_address(address, error);
  require<CommError>(!error, "rank ", rank, " cannot listen on ", address, ": ", error_text(error));
  return {local, 0};
}

std::string service_of(int rank) { return concat("rank ", rank); }

/// A rank that listens for higher ones, and calls lower ones, by Note [Handshake] of the store. What it then sends is
/// not signed. No relay of another user's can have come in between: the address comes from the store, whose frames are
/// signed, the proofs name the endpoint, and each rank listens until all are connected, so that nothing else can take
/// its port.
class Mesh {
 public:
  Mesh(Store& store, int rank, int size, const std::string& address, Milliseconds timeout)
      : store_(store),
        rank_(rank),
        deadline_(Clock::now() + timeout),
        timeout_(timeout),
        secret_(store.secret()),
        sockets_(static_cast<std::size_t>(size)),
        newest_(static_cast<std::size_t>(size)),
        listener_(concat("rank ", rank),
                  {.endpoint = any_port(rank, address),
                   .credentials = {secret_, service_of(rank)},
                   .callers = static_cast<std::size_t>(size),
                   .handshake_timeout = timeout,
                   .no_thread = [this](const std::string& cause) { end(cause); }},
                  [this](Listener::Caller& caller) { keep(caller); }) {
    store.set(keys("tcp/address")[static_cast<std::size_t>(rank)], concat(listener_.port(), ' ', address));
  }

  std::vector<Descriptor> connect() {
    const std::vector<std::string> addresses = keys("tcp/address"), connected = keys("tcp/connected");
    store_.wait(addresses, timeout_);
    std::vector<tcp::endpoint> lower;
    const std::vector<std::string> places = store_.multi_get(addresses);
    for (int peer = 0; peer < rank_; ++peer) lower.push_back(place_of(peer, places[static_cast<std::size_t>(peer)]));
    while (!call_missing(lower) && Clock::now() < deadline_) std::this_thread::sleep_for(kRetryPause);
    require_all();
    store_.set(connected[static_cast<std::size_t>(rank_)], "");
    store_.wait(connected, timeout_);  // until then a higher rank may call again, as its first call may have failed
    const std::lock_guard lock(mutex_);
    return std::exchange(sockets_, {});
  }

 private:
  std::vector<std::string> keys(const std::string& prefix) const {
    return rank_keys(prefix, static_cast<int>(newest_.size()));
  }

  static tcp::endpoint place_of(int peer, const std::string& place) {
    const std::size_t blank = std::min(place.find(' '), place.size());  // "PORT ADDRESS"
    const auto port = parse_number<std::uint16_t>(std::string_view(place).substr(0, blank));
    error_code error;
    const auto address = asio::ip::make_address(place.substr(std::min(blank + 1, place.size())), error);
    require<CommError>(!error && port.value_or(0) != 0, "rank ", peer, " has no address, got \"", place, "\"");
    return {address, *port};
  }

  /// The other ranks that are not connected yet.
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < sockets_.size(); ++rank)
      if (static_cast<int>(rank) != rank_ && !sockets_[rank].open()) ranks.push_back(static_cast<int>(rank));
    return ranks;
  }

  /// Waits for the higher ranks.
  void require_all() {
    std::unique_lock lock(mutex_);
    connected_.wait_until(lock, deadline_, [this] { return missing().empty() || !shortage_.empty(); });
    require<CommError>(shortage_.empty(), shortage_);
    const std::vector<int> late = missing();
    require<CommError>(late.empty(), "rank ", rank_, " could not connect with ", rank_names(late), " within ",
                       timeout_.count(), " ms", last_failure_.empty() ? "" : ": ", last_failure_);
  }

  /// Calls each lower rank once that is not connected; true if all are.
  bool call_missing(const std::vector<tcp::endpoint>& lower) {
    bool all = true;
    for (std::size_t peer = 0; peer < lower.size(); ++peer)
      if (!sockets_[peer].open()) all = call(static_cast<int>(peer), lower[peer]) && all;
    return all;
  }

  bool call(int peer, const tcp::endpoint& place) {
    const std::string name = concat("rank ", peer, " at ", endpoint_text(place));
    const auto until = Clock::now() + (deadline_ - Clock::now()) / 4;  // the next ranks are called in time, too
    try {
      tcp::socket socket(io_);
      const error_code error = Connection::connect(socket, place, until);
      require<LostConnection>(!error, error_text(error));
      Connection connection(std::move(socket));
      authenticate(connection, {secret_, service_of(peer)}, static_cast<std::uint32_t>(rank_), name, until);
      const std::lock_guard lock(mutex_);
      sockets_[static_cast<std::size_t>(peer)] = connection.release();
      return true;
    } catch (const Refused& refusal) {
      require<CommError>(refusal.verdict != kRelayed && refusal.verdict != kNoThread, "rank ", rank_,
                         " could not connect with rank ", peer, ": ", refusal.what());
      last_failure_ = refusal.what();
    } catch (const LostConnection& lost) {
      last_failure_ = concat(name, ": ", lost.what());
    }
    return false;
  }

  /// Higher ranks cannot be served: this rank need not wait for them.
  void end(const std::string& shortage) {
    const std::lock_guard lock(mutex_);
    shortage_ = shortage;
    connected_.notify_one();
  }

  /// The newest connection of a rank: it has given up those before.
  void keep(Listener::Caller& caller) {
    const std::size_t peer = caller.identity.rank;
    const std::lock_guard lock(mutex_);
    if (peer >= sockets_.size() || static_cast<int>(peer) <= rank_ || newest_[peer] > caller.number) return;
    newest_[peer] = caller.number;
    sockets_[peer] = caller.release();
    if (missing().empty()) connected_.notify_one();
  }

  Store& store_;
  const int rank_;
  const Clock::time_point deadline_;
  const Milliseconds timeout_;
  const std::string secret_;
  std::string last_failure_;
  std::string shortage_;  // that has kept a thread from a caller
  asio::io_context io_;   // never runs: all calls are synchronous
  std::mutex mutex_;      // of what the listener's threads use as well
  std::condition_variable connected_;
  std::vector<Descriptor> sockets_;    // by rank; empty once all are connected
  std::vector<std::uint64_t> newest_;  // by rank: the number of its call
  Listener listener_;
};

}  // namespace

std::vector<Descriptor> connect_tcp_mesh(Store& store, int rank, int size, const std::string& address,
                                         Milliseconds timeout) {
  return Mesh(store, rank, size, address, timeout).connect();
}

}  // namespace duet::ddp
