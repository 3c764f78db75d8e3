#include "ddp/tcp/tcp_transport.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "ddp/store/connection.h"
#include "ddp/store/network.h"
#include "ddp/transport/message_receiver.h"
#include "lib/base/patience.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr Milliseconds kConnectPause{50};

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
  Mesh(Store& store, int rank, int size, const ConnectOptions& options)
      : store_(store),
        options_(options),
        rank_(rank),
        own_(any_port(rank, options.address)),
        timeout_(options.connect_timeout),
        secret_(store.secret()),
        sockets_(static_cast<std::size_t>(size)),
        newest_(static_cast<std::size_t>(size)),
        listener_(concat("rank ", rank),
                  {.endpoint = own_,
                   .credentials = {secret_, service_of(rank)},
                   .callers = static_cast<std::size_t>(size),
                   .handshake_timeout = timeout_,
                   .no_thread = [this](const std::string& cause) { end(cause); }},
                  [this](Listener::Caller& caller) { keep(caller); }) {
    store.post(concat("tcp/address/", rank),
               concat(listener_.port(), ' ', options.address, options.host < 0 ? "" : concat(' ', options.host)));
  }

  std::vector<Descriptor> connect() {
    const int size = static_cast<int>(newest_.size());
    std::vector<tcp::endpoint> lower;
    const Milliseconds limit = options_.host < 0 ? timeout_ : options_.join_timeout;
    for (const std::string& place : await_ranks(store_, rank_keys("tcp/address", size), rank_, "join", limit))
      lower.push_back(place_of(static_cast<int>(lower.size()), place));
    lower.resize(static_cast<std::size_t>(rank_));
    deadline_ = Clock::now() + timeout_;
    while (!call_missing(lower) && Clock::now() < deadline_) {
      std::this_thread::sleep_for(kConnectPause);
      check();
    }
    require_all();
    // Until then a higher rank may call again, as its first call may have failed. Lower ones never call this one.
    std::vector<std::string> higher = rank_keys("tcp/connected", size);
    const std::string own = higher[static_cast<std::size_t>(rank_)];
    std::fill_n(higher.begin(), rank_, own);
    store_.post(own, "");
    if (rank_ + 1 < size) await_ranks(store_, higher, rank_, "connect", timeout_);
    const std::lock_guard lock(mutex_);
    return std::exchange(sockets_, {});
  }
  const std::vector<int>& hosts() const { return hosts_; }

 private:
  void check() const {
    if (options_.check) options_.check();
  }

  tcp::endpoint place_of(int peer, std::string place) {  // "PORT ADDRESS", or with " HOST"
    if (const std::size_t last = place.rfind(' '); options_.host >= 0 && last != place.npos) {
      hosts_.push_back(parse_number<int>(place.substr(last + 1)).value_or(-1));
      place.resize(last);
    }
    const std::size_t blank = std::min(place.find(' '), place.size());
    const auto port = parse_number<std::uint16_t>(std::string_view(place).substr(0, blank));
    error_code error;
    auto address = asio::ip::make_address(place.substr(std::min(blank + 1, place.size())), error);
    require<CommError>(!error && port.value_or(0) != 0, "rank ", peer, " has no address, got \"", place, "\"");
    if (own_.address().is_v6() && address.is_v6() && address.to_v6().is_link_local())  // a zone has a name on each host
      address = asio::ip::address_v6(address.to_v6().to_bytes(), own_.address().to_v6().scope_id());
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
    const auto ended = [this] { return missing().empty() || !shortage_.empty(); };
    while (!connected_.wait_until(lock, std::min(deadline_, Clock::now() + kConnectPause), ended) &&
           Clock::now() < deadline_)
      check();
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
      authenticate(connection, {secret_, service_of(peer)}, static_cast<std::uint32_t>(rank_), name, until)
          .finish(until);
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
  const ConnectOptions& options_;
  const int rank_;
  const tcp::endpoint own_;  // with port 0
  const Milliseconds timeout_;
  Clock::time_point deadline_;
  const std::string secret_;
  std::string last_failure_;
  std::string shortage_;  // that has kept a thread from a caller
  asio::io_context io_;   // never runs: all calls are synchronous
  std::mutex mutex_;      // guards what the listener's threads use as well
  std::condition_variable connected_;
  std::vector<int> hosts_;             // by rank
  std::vector<Descriptor> sockets_;    // by rank; empty once all are connected
  std::vector<std::uint64_t> newest_;  // by rank: the number of its call
  Listener listener_;
};

}  // namespace

std::vector<Descriptor> connect_tcp_mesh(Store& store, int rank, int size, const std::string& address,
                                         Milliseconds timeout) {
  const ConnectOptions options{.connect_timeout = timeout, .address = address};
  return Mesh(store, rank, size, options).connect();
}

namespace {

constexpr std::size_t kCallBytes = 1 << 20;  // at most in one system call, during which the mutex is held
constexpr int kPieces = 16;                  // to or from one peer, before the others have their turn

class TcpTransport final : public Transport {
 public:
  TcpTransport(Store& store, int rank, int size, const ConnectOptions& options) : options_(options), rank_(rank) {
    require<CommError>(bell_.open(), "no descriptor for the connections of rank ", rank, ": ", last_errno);
    Mesh mesh(store, rank, size, options);
    for (Descriptor& socket : mesh.connect()) peers_.emplace_back().socket = std::move(socket);
    hosts_ = mesh.hosts();
    thread_ = with_patience(
        [this] { return start_thread("the thread of the connections between ranks", [this] { serve(); }); });
  }
  ~TcpTransport() override {
    close();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  const char* name() const override { return "tcp"; }
  const std::vector<int>& hosts() const override { return hosts_; }

  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    Peer& to = open_peer(peer);
    const Request request = messages_.add({.peer = peer, .sends = true, .head = {tag, bytes}, .data = bytes_of(data)});
    to.out.push_back(request);
    if (to.out.size() == 1) write(to);
    if (!to.out.empty()) bell_.ring();
    return request;
  }

  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    require<CommError>(!closed_, kClosed);
    Peer& from = peers_[static_cast<std::size_t>(peer)];
    const Request request = messages_.add({.peer = peer, .head = {tag, bytes}, .data = static_cast<std::byte*>(data)});
    StreamMessage& message = messages_.at(request);
    if (from.receiver.take_early(message)) return request;
    if (from.end.empty())
      expect(from, message);
    else
      message.failure = from.end;
    return request;
  }

  void wait(Request request, Clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    StreamMessage& message = messages_.at(request);
    const bool ended = await_end(lock, message, deadline);
    const char* const what = message.sends ? " took nothing" : " sent nothing";
    if (!ended) shut_down();  // nothing may arrive any more in memory that the caller gives up
    message.busy = false;
    require<CommError>(ended, "rank ", message.peer, what, " in time");
    require<CommError>(message.done || message.failure != kClosed, kClosed);
    if (!message.done) throw LostRank(concat("rank ", message.peer, what, ": ", message.failure), message.peer);
  }

  bool release(Request request) override {
    const std::lock_guard lock(mutex_);
    return messages_.release(request);
  }
  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    return std::make_unique<TcpTransport>(*subset.store, subset.rank, subset.size(), options_);
  }

  void close() override {
    const std::lock_guard lock(mutex_);
    shut_down();
  }

 private:
  struct Peer {
    Peer() { out.reserve(64); }  // few at a time: steps allocate nothing
    Descriptor socket;
    std::vector<Request> out;
    std::size_t written = 0;  // bytes of the first of `out`, head included
    MessageReceiver receiver;
    std::string end;  // why the connection has ended
  };

  /// False at the deadline, and where options_.check() ends the wait: a host that is gone ends no connection.
  bool await_end(std::unique_lock<std::mutex>& lock, const StreamMessage& message, Clock::time_point deadline) {
    const auto ended = [&] { return message.ended(); };
    if (!options_.check) return changed_.wait_until(lock, deadline, ended);
    while (!changed_.wait_until(lock, std::min(deadline, Clock::now() + kConnectPause), ended)) {
      if (Clock::now() >= deadline) return false;
      try {
        options_.check();
      } catch (const CommError&) {
        return ended();
      }
    }
    return true;
  }

  // sendmsg() takes a pointer to non-const, and writes nothing there.
  static std::byte* bytes_of(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

  Peer& open_peer(int rank) {
    require<CommError>(!closed_, kClosed);
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.end.empty()) throw LostRank(concat("rank ", rank, " cannot be reached: ", peer.end), rank);
    return peer;
  }

  void finish(Request request) {
    messages_.at(request).done = true;
    changed_.notify_all();
  }

  void end(Peer& peer, const std::string& reason) {
    if (!peer.end.empty()) return;
    peer.end = reason;
    ::shutdown(peer.socket.get(), SHUT_RDWR);
    for (const Request request : peer.out) messages_.at(request).failure = reason;
    peer.out.clear();
    peer.receiver.stop(reason);
    changed_.notify_all();
  }

  void shut_down() {
    if (std::exchange(closed_, true)) return;
    for (Peer& peer : peers_) end(peer, kClosed);
    bell_.ring();
  }

  /// Writes as much to the peer as can be written without waiting, in at most kPieces pieces.
  void write(Peer& peer) {
    for (int i = 0; i < kPieces && !peer.out.empty(); ++i) {
      StreamMessage& message = messages_.at(peer.out.front());
      const std::size_t head = std::min(peer.written, sizeof(MessageHead)), done = peer.written - head;
      std::array<iovec, 2> parts{{{reinterpret_cast<std::byte*>(&message.head) + head, sizeof(MessageHead) - head},
                                  {message.data + done, std::min<std::size_t>(kCallBytes, message.head.bytes - done)}}};
      msghdr text{};
      text.msg_iov = parts.data();
      text.msg_iovlen = parts.size();
      const ssize_t wrote = ::sendmsg(peer.socket.get(), &text, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (wrote < 0) {
        if (errno == EINTR) continue;
        // A connection that is broken still has what came before; reading ends it.
        return;
      }
      peer.written += static_cast<std::size_t>(wrote);
      if (peer.written < sizeof(MessageHead) + message.head.bytes) continue;
      peer.written = 0;
      finish(peer.out.front());
      peer.out.erase(peer.out.begin());
    }
  }

  /// Reads as much from the peer as is there, in at most kPieces pieces.
  void read(Peer& peer) {
    for (int i = 0; i < kPieces && peer.end.empty() && !peer.receiver.parked(); ++i) {
      const std::span<std::byte> room = peer.receiver.room();
      const ssize_t got = ::recv(peer.socket.get(), room.data(), std::min(kCallBytes, room.size()), MSG_DONTWAIT);
      if (got == 0) return end(peer, "connection closed by peer");
      if (got < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) end(peer, errno_text(errno));
        return;
      }
      if (peer.receiver.advance(static_cast<std::size_t>(got))) changed_.notify_all();
    }
  }

  void expect(Peer& from, StreamMessage& message) {
    const bool parked = from.receiver.parked();
    or_end(from, [&] {
      from.receiver.expect(message);
      if (parked) read(from);
    });
    if (parked) bell_.ring();
  }

  /// Ends the connection to a peer that sends what no rank sends, or more than there is memory for.
  template <class Action>
  void or_end(Peer& peer, Action&& action) {
    try {
      action();
    } catch (const CommError& error) {
      end(peer, error.what());
    } catch (const std::bad_alloc&) {
      end(peer, concat("no memory for ", peer.receiver.announced(), " bytes that nothing waits for"));
    }
  }

  /// The thread that moves what the callers' threads have not moved.
  void serve() {
    std::vector<pollfd> files(peers_.size() + 1);
    std::unique_lock lock(mutex_);
    while (!closed_) {
      files.back() = {bell_.descriptor(), POLLIN, 0};
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        const Peer& peer = peers_[i];
        const int events = (peer.receiver.parked() ? 0 : POLLIN) | (peer.out.empty() ? 0 : POLLOUT);
        files[i] = {peer.end.empty() ? peer.socket.get() : -1, static_cast<short>(events), 0};
      }
      lock.unlock();
      ::poll(files.data(), files.size(), -1);
      if (files.back().revents != 0) bell_.reset();
      lock.lock();
      for (std::size_t i = 0; i < peers_.size() && !closed_; ++i) {
        Peer& peer = peers_[i];
        if ((files[i].revents & POLLOUT) != 0 && peer.end.empty()) write(peer);
        if ((files[i].revents & ~POLLOUT) == 0 || !peer.end.empty()) continue;
        // The connection has ended, after what is still to be read.
        or_end(peer, [&] {
          if ((files[i].revents & (POLLERR | POLLHUP)) != 0) peer.receiver.keep_parked();
          read(peer);
        });
      }
    }
  }

  const ConnectOptions options_;
  const int rank_;
  std::vector<int> hosts_;  // by rank, if they have told each other
  const Bell bell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Peer> peers_;  // by rank; this one's own has no socket
  MessageTable messages_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(Store& store, int rank, int size, const ConnectOptions& options) {
  return std::make_unique<TcpTransport>(store, rank, size, options);
}

}  // namespace duet::ddp
