// TCP connections between the processes of a job: each call has a deadline, and both ends prove that they belong to the
// job. Private to ddp: this header includes Asio.
#pragma once

// Each io_context here runs on one thread, so handlers need no fences, which the thread sanitizer does not support.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK

// The order matters: Boost 1.74's Asio does not include <utility>.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ddp/store/network.h"
#include "ddp/store/store.h"
#include "lib/base/descriptor.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

inline constexpr Clock::time_point kNoDeadline = Clock::time_point::max();

/// A connection has ended, or its peer did not come in time.
class LostConnection : public CommError {
  using CommError::CommError;
};

/// "127.0.0.1 port 29500".
std::string endpoint_text(const boost::asio::ip::tcp::endpoint& endpoint);

/// "Connection refused (errno 111)"; of a call that this process has itself cancelled, that it has.
std::string error_text(const boost::system::error_code& error);

/// One thread at a time reads and writes, while others may call end(). Functions throw LostConnection, after which the
/// connection is of no use.
class Connection {
 public:
  /// `interrupt`: a descriptor that ends each wait, as the deadline does, while it is readable; -1: none.
  explicit Connection(boost::asio::ip::tcp::socket socket, int interrupt = -1);
  /// Connects the socket, which is not open yet. Does not throw.
  static boost::system::error_code connect(boost::asio::ip::tcp::socket& socket,
                                           const boost::asio::ip::tcp::endpoint& to, Clock::time_point deadline,
                                           int interrupt = -1);
  /// write() and read() put the deadline off by the time in which this process was stopped.
  void write(std::string_view bytes, Clock::time_point& deadline);
  /// Memory grows with what arrives.
  std::string read(std::size_t count, Clock::time_point& deadline);
  boost::asio::ip::tcp::endpoint local() const;
  boost::asio::ip::tcp::endpoint peer() const;
  /// A read or write that waits throws LostConnection.
  void end();
  /// Ends what the peer sends, as far as it hasn't come yet.
  void end_reading();
  void close();
  /// Gives the socket up, in its blocking mode.
  Descriptor release();

 private:
  /// Returns if the failed call may be tried again.
  void await(const boost::system::error_code& error, short events, Clock::time_point& deadline);
  boost::asio::ip::tcp::socket socket_;
  int interrupt_;
};

/// Note [Handshake]: both ends prove that they have the secret, and neither sends it.
///   caller:   kMagic; then service_mark(), its rank (u32), the endpoint that it has called, its number
///   listener: kMagic, its number; or another verdict
///   caller:   its proof
///   listener: kMagic, its proof; or kDenied, or kComplete
/// Fresh random numbers make every proof worthless for another connection, and so does the endpoint for a relay: a
/// process in between listens at another address or port than the listener, so the ends disagree on the endpoint that
/// was called. The address that the call came from is no part of it: address translation for callers is harmless.
/// The caller proves first: any process may connect, and could test secrets offline against a proof of the listener.
/// An end that receives anything else closes the connection.
inline constexpr std::string_view kMagic = "duet-ranks-v007\n";
inline constexpr std::string_view kOther = "duet-other-job.\n";    // the listener serves something else
inline constexpr std::string_view kRelayed = "duet-is-relayed\n";  // its own endpoint follows
inline constexpr std::string_view kNoFile = "duet-no-files..\n";   // this was its process's last file descriptor
inline constexpr std::string_view kNoThread = "duet-no-threads\n";
inline constexpr std::string_view kComplete = "duet-has-joined\n";  // all its callers have come
inline constexpr std::string_view kDenied = "duet-is-denied.\n";
inline constexpr std::size_t kMarkBytes = 32, kRankBytes = 4, kEndpointBytes = 18, kNumberBytes = 32, kProofBytes = 32;
inline constexpr std::size_t kHelloBytes = kMarkBytes + kRankBytes + kEndpointBytes + kNumberBytes;

struct Credentials {
  std::string secret;
  std::string service;  // what the listener serves, such as the store of a run; no secret
};

/// Tells services apart.
std::string service_mark(const std::string& service);
/// IPv6 address or IPv4 as one, and port, both in network order.
std::string endpoint_bytes(const boost::asio::ip::tcp::endpoint& endpoint);
/// HMAC-SHA256 of "caller" or "listener" for a proof, of "session" for the session's key. `hello` is what the caller
/// has sent after kMagic, with the endpoint as this end sees it.
std::string handshake_proof(const std::string& secret, std::string_view purpose, std::string_view hello,
                            std::string_view listener_number);

/// Why a listener was not the one that was called.
class Refused : public CommError {
 public:
  Refused(std::string_view the_verdict, const std::string& text) : CommError(text), verdict(the_verdict) {}
  const std::string_view verdict;  // one of those above; empty where the listener speaks another protocol
};

/// The caller's part up to its proof; finish() reads the listener's, to which what is sent before then goes unproven.
/// Errors begin with `listener`. Both throw Refused or LostConnection.
struct Handshake {
  std::string session_key;  // which only the two ends know
  std::function<void(Clock::time_point deadline)> finish;
};
Handshake authenticate(Connection& connection, const Credentials& credentials, std::uint32_t rank,
                       const std::string& listener, Clock::time_point deadline);

struct Authenticated {
  std::uint32_t rank = 0;   // the caller's, as it says
  std::string session_key;  // which only the two ends know
};

/// The listener's part. `also_at` are endpoints besides its own under which callers reach it, by address translation;
/// `proven` is called before the caller can take itself for connected; false: it is too late. Throws CommError: the
/// connection is of no use.
Authenticated authenticate_caller(Connection& connection, const Credentials& credentials,
                                  const std::vector<boost::asio::ip::tcp::endpoint>& also_at,
                                  const std::function<bool()>& proven, Clock::time_point deadline);

/// The listener's part where it cannot serve any more. Throws LostConnection.
void refuse_caller(Connection& connection, std::string_view verdict, Clock::time_point deadline);

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

/// Listens until destroyed, which ends all its connections; what a caller is being sent still reaches it.
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
  /// Serves a caller to its end. An exception ends its connection, and the others go on.
  using Serve = std::function<void(Caller&)>;

  /// Throws CommError with address, ports and errno when it cannot listen; `name` says who.
  Listener(const std::string& name, ListenerOptions options, Serve serve);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int port() const { return port_; }
  /// Refuses all further callers, once they have proven that they have the secret.
  void accept_no_more();

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
  std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  bool complete_ = false;
  bool stopping_ = false;
  std::uint64_t count_ = 0;
  std::list<Session> sessions_;  // the oldest first
  std::thread thread_;
};

}  // namespace duet::ddp
