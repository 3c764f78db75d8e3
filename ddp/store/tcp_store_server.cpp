#include "ddp/store/tcp_store_server.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/store/secret.h"
#include "lib/base/start_thread.h"
#include "lib/base/text.h"
#include "lib/error.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kMaxUnauthenticated = 64;
constexpr Milliseconds kAcceptPause{100};
constexpr std::size_t kReadBytes = 64 << 10;  // memory grows with what has arrived, not with what was announced

}  // namespace

/// One client. All its calls run on the server's thread.
class TcpStoreServer::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(TcpStoreServer& server, tcp::socket socket, bool full)
      : server_(server), socket_(std::move(socket)), timer_(server.io_), full_(full) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void start() {
    timer_.expires_after(server_.handshake_timeout_);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && self->unauthenticated_) self->disconnect();
    });
    read_then(magic_, [this] {
      if (view_of(magic_) == kStoreMagic) return read_then(hello_, [this] { challenge(); });
      timer_.cancel();
    });
  }

  bool unauthenticated() const { return unauthenticated_; }
  void disconnect() {
    error_code ignored;
    socket_.close(ignored);
  }

  void reply(const StoreFrame& frame) {
    try {
      send(encode(frame));
    } catch (const UsageError& error) {  // it is too large for one frame
      send(encode({static_cast<std::uint8_t>(StoreStatus::usage_error), 0, {error.what()}}));
    }
  }

 private:
  template <std::size_t n>
  static std::string_view view_of(const std::array<char, n>& bytes) {
    return {bytes.data(), n};
  }

  template <std::size_t n, class Next>
  void read_then(std::array<char, n>& bytes, Next next) {
    asio::async_read(socket_, asio::buffer(bytes), [self = shared_from_this(), next](error_code error, std::size_t) {
      if (!error) return next();
      self->timer_.cancel();
    });
  }

  /// See Note [Handshake].
  void challenge() {
    const std::string_view mark = view_of(hello_).substr(0, kStoreRunBytes),
                           number = view_of(hello_).substr(kStoreRunBytes);
    if (mark != server_.run_mark_) return send_last(kStoreOther);
    if (full_) return send_last(kStoreFull);
    std::string own;
    try {
      own = random_bytes(kStoreNumberBytes);
    } catch (const CommError&) {
      return disconnect();
    }
    expected_ = store_proof(server_.secret_, StoreSide::client, mark, number, own);
    own_proof_ = store_proof(server_.secret_, StoreSide::server, mark, number, own);
    out_ = std::string(kStoreMagic) + own;
    asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this()](error_code error, std::size_t) {
      if (error) return self->timer_.cancel(), void();
      self->read_then(self->proof_, [self = self.get()] { self->check_proof(); });
    });
  }

  void check_proof() {
    if (!equal_secrets(view_of(proof_), expected_)) return send_last(kStoreDenied);
    timer_.cancel();
    unauthenticated_ = false;
    send(std::string(kStoreMagic) + own_proof_);
  }

  void send_last(std::string_view text) {
    timer_.cancel();
    out_ = text;
    asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this()](error_code, std::size_t) {});
  }

  void send(std::string bytes) {
    out_ = std::move(bytes);
    asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this()](error_code error, std::size_t) {
      if (!error) self->read_length();
    });
  }

  void read_length() {
    asio::async_read(socket_, asio::buffer(length_), [self = shared_from_this()](error_code error, std::size_t) {
      if (error) return;
      const std::uint32_t length = decode_length({self->length_.data(), self->length_.size()});
      if (length > kMaxFrameBytes) return;
      self->body_.clear();
      self->read_body(length);
    });
  }

  void read_body(std::size_t length) {
    const std::size_t have = body_.size();
    if (have == length) {
      StoreFrame request;
      if (decode(body_, request)) server_.handle(shared_from_this(), request);
      return;
    }
    body_.resize(have + std::min(kReadBytes, length - have));
    asio::async_read(socket_, asio::buffer(body_.data() + have, body_.size() - have),
                     [self = shared_from_this(), length](error_code error, std::size_t) {
                       if (!error) self->read_body(length);
                     });
  }

  TcpStoreServer& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  const bool full_;
  bool unauthenticated_ = true;
  std::array<char, kStoreMagic.size()> magic_{};
  std::array<char, kStoreRunBytes + kStoreNumberBytes> hello_{};
  std::array<char, kStoreProofBytes> proof_{};
  std::string expected_, own_proof_;  // what the client must send, and then receives
  std::array<char, sizeof(std::uint32_t)> length_{};
  std::string body_;
  std::string out_;
};

TcpStoreServer::TcpStoreServer(const tcp::endpoint& endpoint, const std::string& run, std::string secret,
                               Milliseconds handshake_timeout)
    : run_mark_(store_run_mark(run)), secret_(std::move(secret)), handshake_timeout_(handshake_timeout) {
  error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  require<CommError>(!error, "the store cannot listen on ", endpoint.address().to_string(), " port ", endpoint.port(),
                     ": ", errno_text(error.value()));
  port_ = acceptor_.local_endpoint().port();
  require<CommError>(has_spare(), "the store has no file descriptor left for its clients: ", last_errno);
  accept();
  thread_ = start_thread("the thread of the store\'s server", [this] { serve(); });
}

TcpStoreServer::~TcpStoreServer() {
  io_.stop();
  thread_.join();
  waiters_.clear();
}

// A session without memory for what it does ends, and its client finds the connection closed; the others go on.
void TcpStoreServer::serve() {
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::bad_alloc&) {
    }
  }
}

// The oldest has had the most time: a rank authenticates in two round trips.
void TcpStoreServer::add_unauthenticated(const std::shared_ptr<Session>& session) {
  unauthenticated_.remove_if([](const std::weak_ptr<Session>& one) {
    const auto still = one.lock();
    return !still || !still->unauthenticated();
  });
  if (unauthenticated_.size() >= kMaxUnauthenticated) {
    if (const auto oldest = unauthenticated_.front().lock()) oldest->disconnect();
    unauthenticated_.pop_front();
  }
  unauthenticated_.push_back(session);
  session->start();
}

bool TcpStoreServer::has_spare() {
  if (!spare_.open()) spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return spare_.open();
}

void TcpStoreServer::accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    try {
      if (!error) add_unauthenticated(std::make_shared<Session>(*this, std::move(socket), !has_spare()));
    } catch (const std::bad_alloc&) {
      error = asio::error::no_memory;
    }
    const bool gave_up = error == asio::error::no_descriptors && spare_.open();
    if (gave_up) spare_.close();
    if (!error || gave_up) return accept();
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](error_code stopped) {
      if (!stopped) accept();
    });
  });
}

void TcpStoreServer::handle(const std::shared_ptr<Session>& session, const StoreFrame& request) {
  const auto op = static_cast<StoreOp>(request.code);
  const bool waits = op == StoreOp::get || op == StoreOp::wait;
  if (waits && !table_.has_all(request.strings)) return add_waiter(session, request);
  session->reply(answer(op, request.strings));
  serve_waiters();
}

StoreFrame TcpStoreServer::answer(StoreOp op, const std::vector<std::string>& strings) {
  try {
    std::size_t total = 0;
    for (const std::string& key : strings) total += op == StoreOp::get ? table_.find(key)->size() : 0;
    if (op == StoreOp::get) check_frame(strings.size(), total);  // before the values are copied
    return {static_cast<std::uint8_t>(StoreStatus::ok), 0, table_.answer(op, strings)};
  } catch (const UsageError& error) {
    return {static_cast<std::uint8_t>(StoreStatus::usage_error), 0, {error.what()}};
  } catch (const Error& error) {
    return {static_cast<std::uint8_t>(StoreStatus::comm_error), 0, {error.what()}};
  }
}

void TcpStoreServer::add_waiter(const std::shared_ptr<Session>& session, const StoreFrame& request) {
  const Milliseconds timeout(
      std::clamp<std::int64_t>(request.timeout_ms, 0, Milliseconds(std::chrono::hours(24)).count()));
  const auto waiter = std::make_shared<Waiter>(
      Waiter{session, static_cast<StoreOp>(request.code), request.strings, timeout, asio::steady_timer(io_, timeout)});
  waiters_.push_back(waiter);
  waiter->timer.async_wait([this, waiter](error_code error) {
    if (error || waiter->served) return;
    const std::string text = table_.timeout_message(waiter->keys, waiter->timeout);
    waiter->session->reply({static_cast<std::uint8_t>(StoreStatus::comm_error), 0, {text}});
    waiters_.remove(waiter);
  });
}

void TcpStoreServer::serve_waiters() {
  for (auto next = waiters_.begin(); next != waiters_.end();) {
    const auto waiter = *next;
    if (!table_.has_all(waiter->keys)) {
      ++next;
      continue;
    }
    waiter->session->reply(answer(waiter->op, waiter->keys));
    waiter->served = true;
    waiter->timer.cancel();
    next = waiters_.erase(next);
  }
}

}  // namespace duet::ddp
