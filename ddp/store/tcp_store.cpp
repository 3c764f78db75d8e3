#include "ddp/store/tcp_store.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/store/secret.h"
#include "ddp/store/tcp_store_server.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr Milliseconds kRetryPause{50};
constexpr Milliseconds kHandshakeTimeout{1000};  // of a peer that may be anything
constexpr int kHandshakeTries = 5;               // a busy machine may let one fail
constexpr Milliseconds kFullPause{400};          // five outlast the handshake timeout of unauthenticated peers
// Beyond the timeout that the server itself keeps: as long as this store's timeout, within these limits.
constexpr Milliseconds kLeastGrace{2000}, kMostGrace{10'000};

tcp::endpoint resolve(const std::string& host, int port) {
  require<UsageError>(port >= 0 && port <= 65535, "port must have value from 0 to 65535 but was ", port);
  asio::io_context io;
  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(host, std::to_string(port), error);
  require<CommError>(!error && !found.empty(), "cannot find the store's host \"", host, "\": ", error.message());
  for (const auto& entry : found) {
    if (entry.endpoint().address().is_v4()) return entry.endpoint();
  }
  return found.begin()->endpoint();
}

/// A connection whose every call has a deadline.
class Connection {
 public:
  /// Tries the ports from the server's on until one of them serves the run.
  Connection(const tcp::endpoint& server, const TcpStoreOptions& options)
      : server_(server),
        mark_(store_run_mark(options.run)),
        secret_(options.secret),
        grace_(std::clamp(timeout_of(options), kLeastGrace, kMostGrace)) {
    const int more_ports = options.serve ? 0 : options.more_ports;
    const Milliseconds timeout = timeout_of(options);
    const auto deadline = Clock::now() + timeout;
    const int first = server.port();
    for (int at = 0;; at = at == more_ports ? 0 : at + 1) {
      server_.port(static_cast<unsigned short>(first + at));
      const std::string refusal = try_port(deadline, more_ports > 0);
      if (refusal.empty()) return;
      if (at < more_ports) continue;
      const std::string last = more_ports > 0 ? concat(" to ", first + more_ports) : "";
      const bool time_left = Clock::now() + kRetryPause < deadline;
      require<CommError>(time_left, "no store answered at ", server.address().to_string(), " port ", first, last,
                         " within ", timeout.count(), " ms (", refusal, ")");
      std::this_thread::sleep_for(kRetryPause);
    }
  }

  StoreFrame ask(const StoreFrame& request, Milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    require<CommError>(lost_.empty(), lost_);
    const auto deadline = Clock::now() + timeout + grace_;
    const std::string bytes = encode(request);
    transfer(deadline, [&](auto done) { asio::async_write(socket_, asio::buffer(bytes), done); });
    std::array<char, sizeof(std::uint32_t)> head{};
    transfer(deadline, [&](auto done) { asio::async_read(socket_, asio::buffer(head), done); });
    const std::uint32_t length = decode_length({head.data(), head.size()});
    std::string body(length <= kMaxFrameBytes ? length : 0, '\0');
    transfer(deadline, [&](auto done) { asio::async_read(socket_, asio::buffer(body), done); });
    StoreFrame reply;
    require<CommError>(decode(body, reply), "the store at ", name(), " sent a malformed answer");
    if (reply.code == static_cast<std::uint8_t>(StoreStatus::ok)) return reply;
    const std::string what = reply.strings.empty() ? "the store failed" : reply.strings.front();
    if (reply.code == static_cast<std::uint8_t>(StoreStatus::usage_error)) throw UsageError(what);
    throw CommError(concat(what, " (store at ", name(), ")"));
  }

  std::string local_address() {
    const std::lock_guard lock(mutex_);
    error_code error;
    return socket_.local_endpoint(error).address().to_string();
  }

 private:
  /// The rank that serves the store waits for its own thread only, which runs even on a busy machine.
  static Milliseconds timeout_of(const TcpStoreOptions& options) {
    return options.serve ? std::max(options.timeout, kMostGrace) : options.timeout;
  }

  std::string name() const { return concat(server_.address().to_string(), " port ", server_.port()); }

  error_code try_connect(Clock::time_point deadline) {
    error_code result = asio::error::timed_out;
    socket_ = tcp::socket(io_);
    socket_.async_connect(server_, [&](error_code error) { result = error; });
    run_until(deadline);
    return result;
  }

  /// Why this port does not serve the run; empty if it does. With more ports, any other server is skipped;
  /// with one, it must be the store.
  std::string try_port(Clock::time_point deadline, bool more) {
    const error_code error = try_connect(deadline);
    require<CommError>(error != asio::error::no_descriptors, "cannot connect to the store of rank 0 at ", name(), ": ",
                       errno_text(error.value()));
    if (error) return errno_text(error.value());
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    try {
      handshake(std::min(deadline, Clock::now() + (more ? kHandshakeTimeout : kMostGrace)));
      return {};
    } catch (const CommError& failure) {
      const bool again = !lost_.empty() && ++lost_handshakes_ < kHandshakeTries;
      if ((!more || full_) && !again) throw;
      if (std::exchange(full_, false)) std::this_thread::sleep_for(kFullPause);
      lost_.clear();
      return failure.what();
    }
  }

  void handshake(Clock::time_point deadline) {
    const std::string number = random_bytes(kStoreNumberBytes);
    send(std::string(kStoreMagic) + mark_ + number, deadline);
    const std::string first = receive(kStoreMagic.size(), deadline);
    require<CommError>(first != kStoreOther, "the store at ", name(), " serves another run");
    if (first == kStoreFull) {
      full_ = true;
      lost_ = concat("the store of rank 0 at ", name(), " has no file descriptor left for this rank (ulimit -n)");
      throw CommError(lost_);
    }
    require<CommError>(first == kStoreMagic, "what answers at ", name(), " is not a duet store of this version");
    const std::string other = receive(kStoreNumberBytes, deadline);
    const auto proof_of = [&](StoreSide side) { return store_proof(secret_, side, mark_, number, other); };
    send(proof_of(StoreSide::client), deadline);
    const std::string verdict = receive(kStoreMagic.size(), deadline);
    require<CommError>(verdict == kStoreMagic || verdict == kStoreDenied, "the store at ", name(),
                       " sent a malformed answer");
    const bool proven =
        verdict == kStoreMagic && equal_secrets(receive(kStoreProofBytes, deadline), proof_of(StoreSide::server));
    require<CommError>(proven, "the store at ", name(), " has another secret than this rank (", kSecretFileVariable,
                       ", ", kSecretVariable, "; without them on one host, that of the user in a folder of $TMPDIR)");
  }

  void send(const std::string& text, Clock::time_point deadline) {
    transfer(deadline, [&](auto done) { asio::async_write(socket_, asio::buffer(text), done); });
  }

  std::string receive(std::size_t bytes, Clock::time_point deadline) {
    std::string text(bytes, '\0');
    transfer(deadline, [&](auto done) { asio::async_read(socket_, asio::buffer(text), done); });
    return text;
  }

  /// Runs one asynchronous read or write to its end. Throws CommError, after which the connection has failed.
  template <class Start>
  void transfer(Clock::time_point deadline, Start&& start) {
    std::optional<error_code> result;
    start([&](error_code error, std::size_t) { result = error; });
    run_until(deadline);
    if (result && !*result) return;
    error_code ignored;
    socket_.close(ignored);
    const bool closed = result && *result == asio::error::eof;
    const bool late = !result || *result == asio::error::operation_aborted;
    lost_ = concat("lost the store of rank 0 at ", name(), ": ",
                   late     ? "no answer in time"
                   : closed ? "connection closed"
                            : errno_text(result->value()));
    throw CommError(lost_);
  }

  /// Handlers refer to the callers' locals, so an overdue operation is cancelled and run to its end here.
  void run_until(Clock::time_point deadline) {
    io_.restart();
    io_.run_until(deadline);
    if (io_.stopped()) return;
    error_code ignored;
    socket_.close(ignored);
    io_.run();
  }

  tcp::endpoint server_;
  std::string mark_;  // of the run
  const std::string secret_;
  const Milliseconds grace_;
  int lost_handshakes_ = 0;
  bool full_ = false;  // the last one was answered by kStoreFull
  asio::io_context io_;
  tcp::socket socket_{io_};
  std::string lost_;  // why the connection has failed
  std::mutex mutex_;
};

/// On the first free port.
void serve(tcp::endpoint endpoint, const TcpStoreOptions& options, std::optional<TcpStoreServer>& server) {
  for (int left = options.more_ports;; --left) {
    try {
      server.emplace(endpoint, options.run, options.secret, options.handshake_timeout);
      return;
    } catch (const CommError&) {
      if (left == 0) throw;
    }
    endpoint.port(static_cast<unsigned short>(endpoint.port() + 1));
  }
}

}  // namespace

struct TcpStore::Parts {
  std::string secret;
  std::optional<TcpStoreServer> server;
  int port = 0;
  std::optional<Connection> connection;
};

TcpStore::TcpStore(const TcpStoreOptions& asked) : Store(asked.timeout), parts_(std::make_unique<Parts>()) {
  TcpStoreOptions options = asked;
  tcp::endpoint endpoint = resolve(options.host, options.port);
  require<UsageError>(options.more_ports >= 0 && options.port + options.more_ports <= 65535, "there are no ports ",
                      options.port, " to ", options.port + options.more_ports);
  require<UsageError>(options.serve || options.port != 0, "port 0 picks a free port, which only rank 0 can do");
  if (options.one_host && options.secret.empty() && !endpoint.address().is_loopback())
    endpoint.address(asio::ip::address_v4::loopback());
  require<UsageError>(!options.secret.empty() || endpoint.address().is_loopback(), "ranks that meet at ",
                      endpoint.address().to_string(), ", beyond this host, need a secret: give all of them the same ",
                      kSecretFileVariable, " (a file that only you can read) or ", kSecretVariable);
  if (options.secret.empty()) options.secret = user_secret();
  parts_->secret = options.secret;
  if (options.serve) {
    serve(endpoint, options, parts_->server);
    endpoint.port(static_cast<unsigned short>(parts_->server->port()));
  }
  parts_->port = endpoint.port();
  parts_->connection.emplace(endpoint, options);
}

TcpStore::~TcpStore() = default;

int TcpStore::port() const { return parts_->port; }
std::string TcpStore::secret() { return parts_->secret; }
std::string TcpStore::local_address() const { return parts_->connection->local_address(); }

std::vector<std::string> TcpStore::request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) {
  const Milliseconds waits = op == StoreOp::get || op == StoreOp::wait ? timeout : Milliseconds(0);
  return parts_->connection->ask({static_cast<std::uint8_t>(op), waits.count(), std::move(strings)}, waits).strings;
}

}  // namespace duet::ddp
