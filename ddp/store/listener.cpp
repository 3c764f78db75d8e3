#include "ddp/store/listener.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "lib/base/start_thread.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr Milliseconds kAcceptPause{100};
constexpr Milliseconds kRefusal{200};  // during which no one else is accepted: there is nothing to serve them with

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
  require<CommError>(has_spare(), name, " has no file descriptor left for its callers: ", last_errno);
  thread_ = start_thread(concat("the thread on which ", name, " listens"), [this] { accept_all(); });
}

Listener::~Listener() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Session& session : sessions_)
      if (!session.ended) session.connection.end();
  }
  changed_.notify_all();
  ::shutdown(acceptor_.native_handle(), SHUT_RDWR);  // wakes accept()
  thread_.join();
  for (Session& session : sessions_) session.thread.join();
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
    } catch (const std::bad_alloc&) {
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
  } catch (const Error& error) {
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
  } catch (const CommError&) {  // its caller finds the connection closed
  } catch (const std::bad_alloc&) {
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
    session.proven = true;
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
