// Accepts callers that have authenticated, each on a thread of its own. Private to ddp: this header includes Asio.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/store/asio.h"
#include "ddp/store/authenticate.h"
#include "ddp/store/connection.h"
#include "ddp/store/port_range.h"
#include "ddp/store/store.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// Binds to a port of the range, the lowest that can be bound; others may bind it until a socket listens there.
/// `listens`: and listens. Of a range that DUET_PORT_RANGE asks for, a port that no socket has goes before one that
/// another has bound or has connections on: a launcher may keep it for its rank 0. Throws CommError with address, ports
/// and errno that begins with `what`.
void bind_one(boost::asio::ip::tcp::acceptor& acceptor, const boost::asio::ip::address& address, const PortRange& ports,
              bool listens, const std::string& what);

struct ListenerOptions {
  boost::asio::ip::tcp::endpoint endpoint;  // port 0: a free one of port_range()
  int more_ports = 0;                       // another port: or the first free one of so many more
  Credentials credentials;
  std::vector<boost::asio::ip::tcp::endpoint> also_at{};  // see authenticate_caller()
  std::size_t callers = 1;                                // that may come at once
  Milliseconds handshake_timeout{1000};                   // after which an unauthenticated caller is dropped
  /// Called with the cause where no thread can be started for a caller, who is refused; on the listening thread.
  std::function<void(const std::string& cause)> no_thread{};
};

/// Unauthenticated connections that are kept beyond `callers`; one more drops the oldest.
inline constexpr std::size_t kMaxUnauthenticated = 64;

/// Listens until destroyed, which ends all its connections.
class Listener {
 public:
  /// An authenticated caller. All calls run on its thread.
  struct Caller {
    Connection& connection;
    const Authenticated identity;
    const std::uint64_t number;  // callers are counted as they connect
    /// Takes the connection out of the listener's hands.
    const std::function<Descriptor()> release;
  };
  /// Serves a caller to its end. CommError and std::bad_alloc end it, too, and the others go on.
  using Serve = std::function<void(Caller&)>;

  /// Throws CommError with address, ports and errno when it cannot listen; `name` says who.
  Listener(const std::string& name, ListenerOptions options, Serve serve);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int port() const { return port_; }

 private:
  struct Session {
    Session(boost::asio::ip::tcp::socket socket, std::uint64_t the_number)
        : connection(std::move(socket)), number(the_number) {}
    Connection connection;
    const std::uint64_t number;
    bool proven = false;
    bool ended = false;  // the connection is not this listener's any more
    bool over = false;   // the thread touches nothing any more
    std::thread thread;
  };
  void accept_all();
  void add(boost::asio::ip::tcp::socket socket);
  void run(Session& session);
  void serve_authenticated(Session& session);
  void join_ended();
  void make_room(std::unique_lock<std::mutex>& lock);
  /// Opens the spare descriptor if needed; false if that fails.
  bool has_spare();

  const ListenerOptions options_;
  const Serve serve_;
  boost::asio::io_context io_;  // never runs: all calls are synchronous
  boost::asio::ip::tcp::acceptor acceptor_{io_};
  int port_ = 0;
  /// Given up for the one connection that there is no descriptor for, so that its caller receives kNoFile.
  Descriptor spare_;
  std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::uint64_t count_ = 0;
  std::list<Session> sessions_;  // the oldest first
  std::thread thread_;
};

}  // namespace duet::ddp
