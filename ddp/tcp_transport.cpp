#include "ddp/tcp_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
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
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/descriptor.h"
#include "ddp/tcp_mesh.h"
#include "lib/error.h"
#include "lib/last_errno.h"
#include "lib/start_thread.h"

namespace duet::ddp {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;  // of one system call, during which the mutex is held
constexpr int kPieces = 16;                   // to or from one peer, before the others have their turn
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;
const char* const kClosed = "this rank has closed its connections";

/// What goes before every message; of this machine's order.
struct Head {
  std::uint64_t tag = 0, bytes = 0;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(Store& store, int rank, int size, const TcpTransportOptions& options)
      : options_(options), rank_(rank), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    require<CommError>(wake_.open(), "no descriptor for the connections of rank ", rank, ": ", last_errno);
    for (Descriptor& socket : connect_tcp_mesh(store, rank, size, options.address, options.connect_timeout))
      peers_.emplace_back().socket = std::move(socket);
    thread_ = start_thread("the thread of the connections between ranks", [this] { serve(); });
  }
  ~TcpTransport() override {
    close();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  const char* name() const override { return "tcp"; }

  Request send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    Peer& to = open_peer(peer);
    const Request request = take({.peer = peer, .sends = true, .head = {tag, bytes}, .data = bytes_of(data)});
    to.out.push_back(request);
    if (to.out.size() == 1) write(to);
    if (!to.out.empty()) wake();
    return request;
  }

  Request receive(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    require<CommError>(!closed_, kClosed);
    Peer& from = peers_[static_cast<std::size_t>(peer)];
    const Request request = take({.peer = peer, .head = {tag, bytes}, .data = static_cast<std::byte*>(data)});
    const auto early = std::find_if(from.early.begin(), from.early.end(), [&](const Early& one) {
      return one.head.tag == tag && !(from.early_arrives && &one == &from.early.back());
    });
    if (early != from.early.end())
      take_early(from, early, at(request));
    else if (from.end.empty())
      expect(from, request);
    else
      at(request).failure = from.end;
    return request;
  }

  void wait(Request request, Clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    Message& message = at(request);
    const bool ended = changed_.wait_until(lock, deadline, [&] { return message.done || !message.failure.empty(); });
    const char* const what = message.sends ? " took nothing" : " sent nothing";
    if (!ended) shut_down();  // nothing may arrive any more in memory that the caller gives up
    message.busy = false;
    require<CommError>(ended, "rank ", message.peer, what, " in time");
    require<CommError>(message.done || message.failure != kClosed, kClosed);
    require<CommError>(message.done, "rank ", message.peer, what, ": ", message.failure);
  }

  std::unique_ptr<Transport> connect_subset(const Subset& subset) const override {
    return std::make_unique<TcpTransport>(*subset.store, subset.rank, subset.size(), options_);
  }

  void close() override {
    const std::lock_guard lock(mutex_);
    shut_down();
  }

 private:
  struct Message {
    int peer = 0;
    bool sends = false;
    Head head;
    std::byte* data = nullptr;
    std::string failure{};
    bool busy = true, done = false;
  };
  /// A message that came before its receive() was called.
  struct Early {
    Head head;
    std::vector<std::byte> data;
  };
  struct Peer {
    Peer() { out.reserve(64), in.reserve(64); }  // few at a time: steps allocate nothing
    Descriptor socket;
    std::vector<Request> out, in;
    std::size_t written = 0;  // bytes of the first of `out`, head included
    Head arriving;            // of the message that comes in now, of which so much has
    std::size_t arrived = 0;
    Request target = kNone;  // where they go; kNone: the last of `early`
    bool early_arrives = false;
    bool parked = false;  // its bytes stay where they are until the next receive()
    std::list<Early> early;
    std::string end;  // why the connection has ended
  };
  static constexpr Request kNone = -1;

  // As sendmsg() wants it, which writes nothing there.
  static std::byte* bytes_of(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

  Message& at(Request request) { return messages_[static_cast<std::size_t>(request)]; }  // a deque: growth moves none

  Request take(Message message) {
    const auto idle = std::find_if(messages_.begin(), messages_.end(), [](const Message& one) { return !one.busy; });
    const auto request = static_cast<Request>(idle - messages_.begin());
    if (idle == messages_.end())
      messages_.push_back(std::move(message));
    else
      *idle = std::move(message);
    return request;
  }

  Peer& open_peer(int rank) {
    require<CommError>(!closed_, kClosed);
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    require<CommError>(peer.end.empty(), "rank ", rank, " cannot be reached: ", peer.end);
    return peer;
  }

  void finish(Request request) {
    at(request).done = true;
    changed_.notify_all();
  }

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(wake_.get(), &one, sizeof(one));  // fails only if it is awake
  }

  void end(Peer& peer, const std::string& reason) {
    if (!peer.end.empty()) return;
    peer.end = reason;
    ::shutdown(peer.socket.get(), SHUT_RDWR);
    for (const auto* list : {&peer.out, &peer.in})
      for (const Request request : *list) at(request).failure = reason;
    peer.out.clear();
    peer.in.clear();
    if (peer.early_arrives) peer.early.pop_back();
    peer.early_arrives = peer.parked = false;
    peer.target = kNone;
    changed_.notify_all();
  }

  void shut_down() {
    if (std::exchange(closed_, true)) return;
    for (Peer& peer : peers_) end(peer, kClosed);
    wake();
  }

  void take_early(Peer& from, std::list<Early>::iterator early, Message& message) {
    if (early->head.bytes == message.head.bytes) {
      std::copy(early->data.begin(), early->data.end(), message.data);
      message.done = true;
    } else {
      message.failure = mismatch(early->head, message.head);
    }
    from.early.erase(early);
  }

  static std::string mismatch(const Head& came, const Head& expected) {
    return concat("it sent ", came.bytes, " bytes, expected ", expected.bytes);
  }

  /// As much as can be written without waiting, in pieces.
  void write(Peer& peer) {
    for (int i = 0; i < kPieces && !peer.out.empty(); ++i) {
      Message& message = at(peer.out.front());
      const std::size_t head = std::min(peer.written, sizeof(Head)), done = peer.written - head;
      std::array<iovec, 2> parts{
          {{reinterpret_cast<std::byte*>(&message.head) + head, sizeof(Head) - head},
           {message.data + done, std::min<std::size_t>(kPieceBytes, message.head.bytes - done)}}};
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
      if (peer.written < sizeof(Head) + message.head.bytes) continue;
      peer.written = 0;
      finish(peer.out.front());
      peer.out.erase(peer.out.begin());
    }
  }

  /// As much as is there, in pieces.
  void read(Peer& peer) {
    for (int i = 0; i < kPieces && peer.end.empty() && !peer.parked; ++i) {
      std::byte* to = reinterpret_cast<std::byte*>(&peer.arriving) + peer.arrived;
      std::size_t most = sizeof(Head) - peer.arrived;
      if (peer.arrived >= sizeof(Head)) {
        const std::size_t done = peer.arrived - sizeof(Head);
        to = (peer.early_arrives ? peer.early.back().data.data() : at(peer.target).data) + done;
        most = std::min<std::size_t>(kPieceBytes, peer.arriving.bytes - done);
      }
      const ssize_t got = ::recv(peer.socket.get(), to, most, MSG_DONTWAIT);
      if (got == 0) return end(peer, "connection closed by peer");
      if (got < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) end(peer, errno_text(errno));
        return;
      }
      peer.arrived += static_cast<std::size_t>(got);
      if (peer.arrived == sizeof(Head)) begin_arrival(peer);
      if (peer.end.empty() && peer.arrived == sizeof(Head) + peer.arriving.bytes) end_arrival(peer);
    }
  }

  void begin_arrival(Peer& peer) {
    const Head& head = peer.arriving;
    if (head.bytes == 0 || head.bytes > kMostBytes)
      return end(peer, concat("it announced a message of ", head.bytes, " bytes"));
    const auto wanted = find(peer, head.tag);
    if (wanted != peer.in.end()) {
      if (at(*wanted).head.bytes != head.bytes) return end(peer, mismatch(head, at(*wanted).head));
      peer.target = *wanted;
      return;
    }
    if (peer.in.empty())
      peer.parked = true;
    else
      keep_early(peer);
  }

  void expect(Peer& from, Request request) {
    from.in.push_back(request);
    if (!std::exchange(from.parked, false)) return;
    begin_arrival(from);
    read(from);
    wake();
  }

  /// The receives come in another order than the messages.
  void keep_early(Peer& peer) {
    const Head& head = peer.arriving;
    try {
      peer.early.push_back({head, std::vector<std::byte>(head.bytes)});
      peer.early_arrives = true;
    } catch (const std::bad_alloc&) {
      end(peer, concat("no memory for ", head.bytes, " bytes that nothing waits for"));
    }
  }

  void end_arrival(Peer& peer) {
    peer.arrived = 0;
    const auto wanted = find(peer, peer.arriving.tag);
    if (std::exchange(peer.early_arrives, false)) {
      if (wanted == peer.in.end()) return;
      // Its receive has been called while it was on the way.
      take_early(peer, std::prev(peer.early.end()), at(*wanted));
      changed_.notify_all();
    } else {
      finish(std::exchange(peer.target, kNone));
    }
    peer.in.erase(wanted);
  }

  std::vector<Request>::iterator find(Peer& peer, std::uint64_t tag) {
    return std::find_if(peer.in.begin(), peer.in.end(), [&](Request one) { return at(one).head.tag == tag; });
  }

  /// The thread that moves what the callers' threads have not moved.
  void serve() {
    std::vector<pollfd> files(peers_.size() + 1);
    std::unique_lock lock(mutex_);
    while (!closed_) {
      files.back() = {wake_.get(), POLLIN, 0};
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        const Peer& peer = peers_[i];
        const int events = (peer.parked ? 0 : POLLIN) | (peer.out.empty() ? 0 : POLLOUT);
        files[i] = {peer.end.empty() ? peer.socket.get() : -1, static_cast<short>(events), 0};
      }
      lock.unlock();
      ::poll(files.data(), files.size(), -1);
      std::uint64_t ignored = 0;
      if (files.back().revents != 0 && ::read(wake_.get(), &ignored, sizeof(ignored)) < 0) ignored = 0;
      lock.lock();
      for (std::size_t i = 0; i < peers_.size() && !closed_; ++i) {
        Peer& peer = peers_[i];
        if ((files[i].revents & POLLOUT) != 0 && peer.end.empty()) write(peer);
        if ((files[i].revents & ~POLLOUT) == 0 || !peer.end.empty()) continue;
        // The connection has ended, after what is still to be read.
        if ((files[i].revents & (POLLERR | POLLHUP)) != 0 && std::exchange(peer.parked, false)) keep_early(peer);
        read(peer);
      }
    }
  }

  const TcpTransportOptions options_;
  const int rank_;
  const Descriptor wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Peer> peers_;  // by rank; this one's own has no socket
  std::deque<Message> messages_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(Store& store, int rank, int size, const TcpTransportOptions& options) {
  return std::make_unique<TcpTransport>(store, rank, size, options);
}

}  // namespace duet::ddp
