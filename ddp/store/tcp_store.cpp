#include "ddp/store/tcp_store.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "ddp/store/connection.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store_wire.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

const char* const kPortKey = "port";
const char* const kWhereToLook = "; has the process of rank 0 ended or been stopped, or does a firewall lie between?";
constexpr Milliseconds kRetryPause{50};
constexpr Milliseconds kHandshakeTimeout{1000};  // for a peer that may be any program
constexpr int kHandshakeTries = 5;               // a busy machine may let one fail
constexpr Milliseconds kFullPause{400};          // five outlast the handshake timeout of unauthenticated peers
// Beyond the timeout that the server itself keeps: as long as this store's timeout, within these limits.
constexpr Milliseconds kLeastGrace{2000}, kMostGrace{10'000};

tcp::endpoint resolve(const std::string& host, int port, Clock::time_point deadline) {
  require<UsageError>(port >= 0 && port <= 65535, "port must have value from 0 to 65535 but was ", port);
  const std::string address = address_of_host(host, std::chrono::ceil<Milliseconds>(deadline - Clock::now()));
  return {asio::ip::make_address(address), static_cast<unsigned short>(port)};
}

Credentials credentials_of(const TcpStoreOptions& options) {
  return {options.secret, concat("the store of run ", options.run)};
}

/// The rank that serves the store waits for its own thread only, which runs even on a busy machine.
Milliseconds timeout_of(const TcpStoreOptions& options) {
  return options.serve ? std::max(options.timeout, kMostGrace) : options.timeout;
}

/// A client, whose every call has a deadline.
class StoreClient {
 public:
  /// Tries the ports from the server's on, or the one that it publishes, until one of them serves the run.
  StoreClient(const tcp::endpoint& server, const TcpStoreOptions& options, Clock::time_point deadline)
      : server_(server),
        credentials_(credentials_of(options)),
        port_store_(options.serve ? nullptr : options.port_store),
        grace_(std::clamp(timeout_of(options), kLeastGrace, kMostGrace)),
        interrupt_(options.interrupt),
        early_(options.early) {
    const int more_ports = options.serve ? 0 : options.more_ports;
    const int first = server.port();
    for (int at = 0;; at = at == more_ports ? 0 : at + 1) {
      server_.port(static_cast<unsigned short>(first + at));
      const std::string refusal =
          port_store_ && !learn_port() ? "rank 0 has published no port" : try_port(deadline, more_ports > 0);
      if (refusal.empty()) return;
      if (at < more_ports) continue;
      const std::string last = more_ports > 0 ? concat(" to ", first + more_ports) : "";
      pollfd interrupt{interrupt_, POLLIN, 0};
      const bool time_left = Clock::now() + kRetryPause < deadline && ::poll(&interrupt, 1, 0) <= 0;
      require<CommError>(time_left, "no store answered at ", name(), last, " within ", timeout_of(options).count(),
                         " ms (", refusal, "); has rank 0 started, and is this where it is?");
      if (!port_store_ || server_.port() != 0) std::this_thread::sleep_for(kRetryPause);
    }
  }

  StoreFrame ask(const StoreFrame& request, Milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    require<CommError>(lost_.empty(), lost_);
    const auto deadline = Clock::now() + timeout + grace_;
    StoreFrame reply;
    try {
      channel_->send(request, deadline);
      if (request.code == static_cast<std::uint8_t>(StoreOp::post)) return {};
      if (finish_) std::exchange(finish_, {})(deadline);
      reply = channel_->receive(deadline);
    } catch (const CommError& error) {
      connection_->end();
      lost_ = lost_text(error);
      throw CommError(lost_);
    }
    if (reply.code == static_cast<std::uint8_t>(StoreStatus::ok)) return reply;
    const std::string what = reply.strings.empty() ? "the store failed" : reply.strings.front();
    if (reply.code == static_cast<std::uint8_t>(StoreStatus::usage_error)) throw UsageError(what);
    throw CommError(concat(what, " (store at ", name(), ")"));
  }

  int port() const { return server_.port(); }
  std::string local_address() const { return connection_->local().address().to_string(); }

 private:
  std::string name() const { return endpoint_text(server_); }
  std::string lost_text(const CommError& error) const {
    return concat("lost the store of rank 0 at ", name(), ": ", error.what(), kWhereToLook);
  }

  /// Reads the port before each try, because a run that has ended may have left one. False if there is none yet.
  bool learn_port() {
    try {
      port_store_->wait({kPortKey}, kRetryPause);
    } catch (const CommError&) {
      return false;
    }
    const auto port = parse_number<std::uint16_t>(port_store_->get(kPortKey));
    server_.port(port.value_or(0));
    return server_.port() != 0;
  }

  /// Why this port does not serve the run; empty if it does. Where others may, any other server is skipped; where not,
  /// it must be the store.
  std::string try_port(Clock::time_point deadline, bool more) {
    tcp::socket socket(io_);
    const error_code error = Connection::connect(socket, server_, deadline, interrupt_);
    require<CommError>(error != asio::error::no_descriptors, "cannot connect to the store of rank 0 at ", name(), ": ",
                       error_text(error));
    if (error) return error_text(error);
    more = more || port_store_;
    try {
      connection_.emplace(std::move(socket), interrupt_);
      const auto until = std::min(deadline, Clock::now() + (more ? kHandshakeTimeout : kMostGrace));
      Handshake handshake = authenticate(*connection_, credentials_, 0, "the store at " + name(), until);
      early_ ? std::swap(finish_, handshake.finish) : handshake.finish(until);
      channel_.emplace(*connection_, std::move(handshake.session_key), false);
      return {};
    } catch (const Refused& refusal) {
      require<CommError>(refusal.verdict != kRelayed, refusal.what(), "; if it is address translation, set ",
                         kStoreEndpointVariable, " to its address and port for rank 0");
      if (refusal.verdict == kComplete) return refusal.what();  // the next group's store takes its place
      const bool full = refusal.verdict == kNoFile || refusal.verdict == kNoThread;
      if (full ? ++failed_handshakes_ >= kHandshakeTries : !more) throw;
      if (full) std::this_thread::sleep_for(kFullPause);
      return refusal.what();
    } catch (const LostConnection& lost) {
      if (!more && ++failed_handshakes_ >= kHandshakeTries) throw CommError(lost_text(lost));
      return lost_text(lost);
    }
  }

  tcp::endpoint server_;
  const Credentials credentials_;
  const std::shared_ptr<Store> port_store_;
  const Milliseconds grace_;
  const int interrupt_;
  const bool early_;
  int failed_handshakes_ = 0;
  asio::io_context io_;  // never runs: all calls are synchronous
  std::optional<Connection> connection_;
  std::optional<StoreChannel> channel_;
  std::function<void(Clock::time_point)> finish_;  // the handshake, once a request has gone
  std::string lost_;                               // why the connection has failed
  std::mutex mutex_;
};

void serve(const tcp::endpoint& endpoint, const TcpStoreOptions& options, Clock::time_point deadline,
           std::optional<TcpStoreServer>& server) {
  ListenerOptions listener{.endpoint = endpoint,
                           .more_ports = options.more_ports,
                           .credentials = credentials_of(options),
                           .callers = static_cast<std::size_t>(options.ranks),
                           .handshake_timeout = options.handshake_timeout};
  if (!options.reached_host.empty()) listener.also_at = {resolve(options.reached_host, options.reached_port, deadline)};
  server.emplace(std::move(listener));
}

}  // namespace

struct TcpStore::Parts {
  std::string run, secret;
  std::optional<TcpStoreServer> server;
  std::optional<StoreClient> client;
};

TcpStore::TcpStore(const TcpStoreOptions& asked) : Store(asked.timeout), parts_(std::make_unique<Parts>()) {
  TcpStoreOptions options = asked;
  const auto deadline = Clock::now() + timeout_of(options);
  tcp::endpoint endpoint = resolve(options.host, options.port, deadline);
  require<UsageError>(options.more_ports >= 0 && options.port + options.more_ports <= 65535, "there are no ports ",
                      options.port, " to ", options.port + options.more_ports);
  require<UsageError>(options.serve || options.port != 0 || options.port_store,
                      "port 0 picks a free port, which only rank 0 can do");
  if (options.one_host && options.secret.empty() && !endpoint.address().is_loopback())
    endpoint.address(asio::ip::address_v4::loopback());
  require<UsageError>(!options.secret.empty() || endpoint.address().is_loopback(), "ranks that meet at ",
                      endpoint.address().to_string(), ", beyond this host, need a secret: give all of them the same ",
                      kSecretFileVariable, " (a file that only you can read) or ", kSecretVariable);
  require_loopback(endpoint.address().to_string());
  if (options.secret.empty()) options.secret = user_secret();
  parts_->run = options.run;
  parts_->secret = options.secret;
  if (options.serve) {
    serve(endpoint, options, deadline, parts_->server);
    endpoint.port(static_cast<unsigned short>(parts_->server->port()));
  }
  parts_->client.emplace(endpoint, options, deadline);
  if (options.serve && options.port_store) options.port_store->set(kPortKey, std::to_string(endpoint.port()));
}

TcpStore::~TcpStore() = default;

void TcpStore::accept_no_more() {
  if (parts_->server) parts_->server->accept_no_more();
}

Store& TcpStore::served() { return parts_->server.value().table(); }

int TcpStore::port() const { return parts_->client->port(); }

std::string TcpStore::secret() {
  return proof_of(parts_->secret, concat("job ", parts_->run, ' ', Store::secret()));  // a random one of this store's
}

std::string TcpStore::local_address() const { return parts_->client->local_address(); }

std::vector<std::string> TcpStore::request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) {
  const Milliseconds limit = waits(op) ? timeout : Milliseconds(0);
  // Where a message has several calls, that of secret() goes along: ranks of an elastic job need it next.
  const bool adds = op == StoreOp::compare_set && strings.size() > 3;
  if (adds) strings.insert(strings.end(), {kSecretKey, "", random_bytes(kSecretBytes)});
  StoreFrame reply = parts_->client->ask({static_cast<std::uint8_t>(op), limit.count(), std::move(strings)}, limit);
  if (adds && !reply.strings.empty()) {
    const std::lock_guard lock(secret_mutex_);
    secret_ = std::move(reply.strings.back());
    reply.strings.pop_back();
  }
  return std::move(reply.strings);
}

}  // namespace duet::ddp
