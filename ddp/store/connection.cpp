#include "ddp/store/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <span>

#include "ddp/store/secret.h"
#include "lib/base/patience.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kPieceBytes = 64 << 10;
constexpr auto kPaused = 1s;  // a wait that is late by more was not the other end's

/// False if the socket is not ready by then. Time in which this process was stopped doesn't count, also for what waits
/// after this until the same deadline: the other end may have been stopped with it.
bool poll_until(int socket, short events, Clock::time_point& deadline, int interrupt) {
  for (;;) {
    const auto begin = Clock::now();
    const auto left = std::clamp<Clock::duration>(deadline - begin, 0s, deadline == kNoDeadline ? 60s : 1s);
    std::array<pollfd, 2> ready{{{socket, events, 0}, {interrupt, POLLIN, 0}}};
    const auto ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
    const int count = ::poll(ready.data(), ready.size(), ms);
    const auto late = Clock::now() - begin - left;
    if (late > kPaused && deadline != kNoDeadline) deadline += late;
    if (count > 0) return ready[0].revents != 0;
    if (Clock::now() >= deadline) return false;
  }
}

}  // namespace

std::string endpoint_text(const tcp::endpoint& endpoint) {
  return concat(endpoint.address().to_string(), " port ", endpoint.port());
}

std::string error_text(const error_code& error) {
  if (error == asio::error::eof) return "connection closed";
  if (error == asio::error::operation_aborted) return "this process has ended the connection";
  return error.category() == asio::error::get_system_category() ? errno_text(error.value()) : error.message();
}

Connection::Connection(tcp::socket socket, int interrupt) : socket_(std::move(socket)), interrupt_(interrupt) {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
  error_code error;
  socket_.non_blocking(true, error);
  require<LostConnection>(!error, error_text(error));
}

// Asio's own connect() has no deadline.
error_code Connection::connect(tcp::socket& socket, const tcp::endpoint& to, Clock::time_point deadline,
                               int interrupt) {
  error_code error;
  socket.open(to.protocol(), error);
  if (!error) socket.native_non_blocking(true, error);
  if (error || ::connect(socket.native_handle(), to.data(), static_cast<socklen_t>(to.size())) == 0) return error;
  if (errno != EINPROGRESS && errno != EINTR) return {errno, asio::error::get_system_category()};
  if (!poll_until(socket.native_handle(), POLLOUT, deadline, interrupt)) return asio::error::timed_out;
  int number = 0;
  socklen_t size = sizeof(number);
  ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_ERROR, &number, &size);
  return {number, asio::error::get_system_category()};
}

void Connection::write(std::string_view bytes, Clock::time_point& deadline) {
  while (!bytes.empty()) {
    error_code error;
    bytes.remove_prefix(socket_.write_some(asio::buffer(bytes), error));
    if (error) await(error, POLLOUT, deadline);
  }
}

std::string Connection::read(std::size_t count, Clock::time_point& deadline) {
  std::string bytes;
  while (bytes.size() < count) {
    const std::size_t have = bytes.size();
    bytes.resize(have + std::min(kPieceBytes, count - have));
    error_code error;
    bytes.resize(have + socket_.read_some(asio::buffer(bytes.data() + have, bytes.size() - have), error));
    if (error) await(error, POLLIN, deadline);
  }
  return bytes;
}

void Connection::await(const error_code& error, short events, Clock::time_point& deadline) {
  if (error == asio::error::interrupted) return;
  const bool waits = error == asio::error::would_block || error == asio::error::try_again;
  require<LostConnection>(waits, error_text(error));
  require<LostConnection>(poll_until(socket_.native_handle(), events, deadline, interrupt_), "no answer in time");
}

tcp::endpoint Connection::local() const {
  error_code error;
  const tcp::endpoint endpoint = socket_.local_endpoint(error);
  require<LostConnection>(!error, error_text(error));
  return endpoint;
}

tcp::endpoint Connection::peer() const {
  error_code error;
  const tcp::endpoint endpoint = socket_.remote_endpoint(error);
  require<LostConnection>(!error, error_text(error));
  return endpoint;
}

void Connection::end() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
}

void Connection::end_reading() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_receive, ignored);
}

void Connection::close() {
  error_code ignored;
  socket_.close(ignored);
}

Descriptor Connection::release() {
  error_code ignored;
  socket_.non_blocking(false, ignored);
  socket_.native_non_blocking(false, ignored);
  Descriptor socket(socket_.release(ignored));
  ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  return socket;
}

namespace {

constexpr std::size_t kEndpointAt = kMarkBytes + kRankBytes;

tcp::endpoint endpoint_of(const std::string& bytes) {
  asio::ip::address_v6::bytes_type raw{};
  std::copy_n(bytes.begin(), raw.size(), raw.begin());
  const asio::ip::address_v6 six(raw);
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  const auto port = static_cast<unsigned short>(byte(16) << 8 | byte(17));
  if (six.is_v4_mapped()) return {asio::ip::make_address_v4(asio::ip::v4_mapped, six), port};
  return {six, port};
}

[[noreturn]] void throw_refusal(std::string_view verdict, Connection& connection, const std::string& listener,
                                Clock::time_point deadline) {
  if (verdict == kOther) throw Refused(kOther, listener + " serves another run");
  if (verdict == kComplete)
    throw Refused(kComplete, listener +
                                 " serves a group whose ranks have all joined it: this rank was started twice, " +
                                 "or its next group has not begun");
  if (verdict == kNoFile) throw Refused(kNoFile, listener + " has no file descriptor left for this rank (ulimit -n)");
  if (verdict == kNoThread)
    throw Refused(kNoThread, listener + " can start no thread for this rank (ulimit -u, or pids.max of its cgroup)");
  if (verdict == kRelayed)
    throw Refused(kRelayed, concat(listener, " is a relay, which passes on to ",
                                   endpoint_text(endpoint_of(connection.read(kEndpointBytes, deadline)))));
  throw Refused("", listener + " does not speak the protocol of this version of duet");
}

}  // namespace

std::string service_mark(const std::string& service) {
  return sha256_hex(std::as_bytes(std::span(service))).substr(0, kMarkBytes);
}

std::string endpoint_bytes(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  const asio::ip::address_v6 six =
      address.is_v4() ? asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4()) : address.to_v6();
  const auto raw = six.to_bytes();
  std::string bytes(raw.begin(), raw.end());
  bytes.push_back(static_cast<char>(endpoint.port() >> 8));
  bytes.push_back(static_cast<char>(endpoint.port() & 0xff));
  return bytes;
}

std::string handshake_proof(const std::string& secret, std::string_view purpose, std::string_view hello,
                            std::string_view listener_number) {
  // All parts but the first have a fixed length, so no two sets of them spell the same text.
  std::string text(purpose);
  for (const std::string_view part : {hello, listener_number}) text += part;
  return hmac(secret, text);
}

Handshake authenticate(Connection& connection, const Credentials& credentials, std::uint32_t rank,
                       const std::string& listener, Clock::time_point deadline) {
  std::string hello = service_mark(credentials.service);
  for (std::size_t i = 0; i < kRankBytes; ++i) hello.push_back(static_cast<char>(rank >> 8 * i & 0xff));
  hello += endpoint_bytes(connection.peer()) + random_bytes(kNumberBytes);
  connection.write(std::string(kMagic) + hello, deadline);
  const std::string first = connection.read(kMagic.size(), deadline);
  if (first != kMagic) throw_refusal(first, connection, listener, deadline);
  const std::string number = connection.read(kNumberBytes, deadline);
  const auto proof = [&](std::string_view purpose) {
    return handshake_proof(credentials.secret, purpose, hello, number);
  };
  connection.write(proof("caller"), deadline);
  return {proof("session"), [&connection, listener, expected = proof("listener")](Clock::time_point until) {
            const std::string verdict = connection.read(kMagic.size(), until);
            if (verdict != kMagic && verdict != kDenied) throw_refusal(verdict, connection, listener, until);
            if (verdict == kDenied || !equal_secrets(connection.read(kProofBytes, until), expected))
              throw Refused(kDenied, concat(listener, " has another secret than this rank (", kSecretFileVariable, ", ",
                                            kSecretVariable, "; without them on one host, that of the user in a ",
                                            "folder of $TMPDIR), or is a relay that changes what it passes on"));
          }};
}

Authenticated authenticate_caller(Connection& connection, const Credentials& credentials,
                                  const std::vector<tcp::endpoint>& also_at, const std::function<bool()>& proven,
                                  Clock::time_point deadline) {
  require<CommError>(connection.read(kMagic.size(), deadline) == kMagic, "the caller is no rank of this version");
  const std::string hello = connection.read(kHelloBytes, deadline);
  const auto refuse = [&](std::string_view verdict, const std::string& more = "") {
    connection.write(std::string(verdict) + more, deadline);
    throw Refused(verdict, "the caller was refused");
  };
  if (hello.substr(0, kMarkBytes) != service_mark(credentials.service)) refuse(kOther);
  const std::string called = hello.substr(kEndpointAt, kEndpointBytes), own = endpoint_bytes(connection.local());
  const bool translated = std::any_of(also_at.begin(), also_at.end(),
                                      [&](const tcp::endpoint& place) { return endpoint_bytes(place) == called; });
  if (called != own && !translated) refuse(kRelayed, own);
  const std::string number = random_bytes(kNumberBytes);
  const auto proof = [&](std::string_view purpose) {
    return handshake_proof(credentials.secret, purpose, hello, number);
  };
  connection.write(std::string(kMagic) + number, deadline);
  if (!equal_secrets(connection.read(kProofBytes, deadline), proof("caller"))) refuse(kDenied);
  if (!proven()) refuse(kComplete);
  connection.write(std::string(kMagic) + proof("listener"), deadline);
  Authenticated caller{.session_key = proof("session")};
  for (std::size_t i = kRankBytes; i-- > 0;)
    caller.rank = caller.rank << 8 | static_cast<unsigned char>(hello[kMarkBytes + i]);
  return caller;
}

void refuse_caller(Connection& connection, std::string_view verdict, Clock::time_point deadline) {
  connection.read(kMagic.size() + kHelloBytes, deadline);
  connection.write(verdict, deadline);
}

namespace {

constexpr Milliseconds kAcceptPause{100};
constexpr Milliseconds kLastAnswers{1000};  // within which a caller that reads takes what it is being sent
constexpr Milliseconds kRefusal{200};       // during which no one else is accepted: there is nothing to serve them with

void refuse(Connection& connection, std::string_view verdict) {
  try {
    refuse_caller(connection, verdict, Clock::now() + kRefusal);
  } catch (const LostConnection&) {
  }
  connection.close();
}

error_code bind_to(tcp::acceptor& acceptor, const tcp::endpoint& place, bool listens, bool shares) {
  const tcp::acceptor::reuse_address shared(true);
  error_code error, ignored;
  acceptor.close(ignored);
  acceptor.open(place.protocol(), error);
  if (!error && shares) acceptor.set_option(shared, error);
  if (!error) acceptor.bind(place, error);
  if (!error && !shares) acceptor.set_option(shared, error);
  if (!error && listens) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

}  // namespace

void bind_one(tcp::acceptor& acceptor, const asio::ip::address& address, const PortRange& ports, bool listens,
              const std::string& what) {
  error_code error;
  for (const bool shares : {false, true}) {
    if (!shares && ports.first == ports.last) continue;  // one that was named may be a reserved one
    for (int port = ports.first; port <= ports.last; ++port) {
      error = bind_to(acceptor, {address, static_cast<unsigned short>(port)}, listens, shares);
      if (!error) return;
    }
  }
  throw CommError(concat(what, address.to_string(), " ", describe(ports), ": ", errno_text(error.value())));
}

Listener::Listener(const std::string& name, ListenerOptions options, Serve serve)
    : options_(std::move(options)), serve_(std::move(serve)) {
  const int asked = options_.endpoint.port();
  bind_one(acceptor_, options_.endpoint.address(),
           asked == 0 ? port_range() : PortRange{asked, asked + options_.more_ports}, true,
           name + " cannot listen on ");
  port_ = acceptor_.local_endpoint().port();
  ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
  require<CommError>(has_spare(), name, " has no file descriptor left for its callers: ", last_errno);
  thread_ = with_patience(
      [&] { return start_thread(concat("the thread on which ", name, " listens"), [this] { accept_all(); }); });
}

Listener::~Listener() {
  const auto end_all = [this](void (Connection::*end)()) {
    for (Session& session : sessions_)
      if (!session.ended) (session.connection.*end)();
  };
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);  // wakes accept()
    end_all(&Connection::end_reading);
    changed_.wait_for(lock, kLastAnswers, [this] { return std::ranges::all_of(sessions_, &Session::ended); });
    end_all(&Connection::end);
  }
  thread_.join();
  for (Session& session : sessions_) session.thread.join();
}

void Listener::accept_no_more() {
  const std::lock_guard lock(mutex_);
  complete_ = true;
}

bool Listener::has_spare() {
  if (!spare_.open()) spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return spare_.open();
}

void Listener::accept_all() {
  for (;;) {
    tcp::socket socket(io_);
    error_code error;
    acceptor_.accept(socket, error);
    try {
      if (!error) add(std::move(socket));
    } catch (const CommError&) {  // the caller has gone
    } catch (const std::exception&) {
      error = asio::error::no_memory;
    }
    const bool gave_up = error == asio::error::no_descriptors && spare_.open();
    if (gave_up) spare_.close();
    std::unique_lock lock(mutex_);
    if (error && !gave_up) changed_.wait_for(lock, kAcceptPause, [this] { return stopping_; });
    if (stopping_) return;
  }
}

void Listener::add(tcp::socket socket) {
  std::unique_lock lock(mutex_);
  if (stopping_) return;
  make_room(lock);
  join_ended();
  Session& session = sessions_.emplace_back(std::move(socket), count_++);
  std::string_view shortage = has_spare() ? "" : kNoFile;
  std::string cause;
  try {
    if (shortage.empty()) session.thread = start_thread("a caller's thread", [this, &session] { run(session); });
  } catch (const std::exception& error) {
    shortage = kNoThread;
    cause = error.what();
  }
  if (shortage.empty()) return;
  Connection connection = std::move(session.connection);
  sessions_.pop_back();
  lock.unlock();
  if (shortage == kNoThread && options_.no_thread) options_.no_thread(cause);
  refuse(connection, shortage);
}

void Listener::join_ended() {
  sessions_.remove_if([](Session& session) {
    if (session.over) session.thread.join();
    return session.over;
  });
}

// The oldest unauthenticated caller has had the most time: a rank authenticates in two round trips. The next one is not
// accepted before its thread has ended, so a flood of connections makes no flood of threads.
void Listener::make_room(std::unique_lock<std::mutex>& lock) {
  const auto unauthenticated = [](const Session& session) { return !session.proven && !session.ended; };
  if (std::count_if(sessions_.begin(), sessions_.end(), unauthenticated) <
      static_cast<std::ptrdiff_t>(kMaxUnauthenticated + options_.callers))
    return;
  Session& oldest = *std::find_if(sessions_.begin(), sessions_.end(), unauthenticated);
  oldest.ended = true;
  oldest.connection.end();
  changed_.wait(lock, [&] { return oldest.over; });
}

void Listener::run(Session& session) {
  try {
    serve_authenticated(session);
  } catch (const std::exception&) {  // its caller finds the connection closed
  }
  const std::lock_guard lock(mutex_);
  session.ended = session.over = true;
  session.connection.close();
  changed_.notify_all();
}

void Listener::serve_authenticated(Session& session) {
  const auto proven = [&] {
    const std::lock_guard lock(mutex_);
    require<LostConnection>(!session.ended, "connection closed");
    session.proven = !complete_;
    return session.proven;
  };
  Caller caller{session.connection,
                authenticate_caller(session.connection, options_.credentials, options_.also_at, proven,
                                    Clock::now() + options_.handshake_timeout),
                session.number, [&] {
                  const std::lock_guard lock(mutex_);
                  session.ended = true;
                  return session.connection.release();
                }};
  serve_(caller);
}

}  // namespace duet::ddp
