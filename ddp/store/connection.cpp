#include "ddp/store/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/base/text.h"

namespace duet::ddp {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kPieceBytes = 64 << 10;

/// False if the socket is not ready by then.
bool poll_until(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::clamp<Clock::duration>(deadline - Clock::now(), 0s, 60s);
    pollfd ready{socket, events, 0};
    const auto ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
    if (::poll(&ready, 1, ms) > 0) return true;
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

Connection::Connection(tcp::socket socket) : socket_(std::move(socket)) {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  error_code error;
  socket_.non_blocking(true, error);
  require<LostConnection>(!error, error_text(error));
}

// Asio's own connect() has no deadline.
error_code Connection::connect(tcp::socket& socket, const tcp::endpoint& to, Clock::time_point deadline) {
  error_code error;
  socket.open(to.protocol(), error);
  if (!error) socket.native_non_blocking(true, error);
  if (error || ::connect(socket.native_handle(), to.data(), static_cast<socklen_t>(to.size())) == 0) return error;
  if (errno != EINPROGRESS && errno != EINTR) return {errno, asio::error::get_system_category()};
  if (!poll_until(socket.native_handle(), POLLOUT, deadline)) return asio::error::timed_out;
  int number = 0;
  socklen_t size = sizeof(number);
  ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_ERROR, &number, &size);
  return {number, asio::error::get_system_category()};
}

void Connection::write(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    error_code error;
    bytes.remove_prefix(socket_.write_some(asio::buffer(bytes), error));
    if (error) await(error, POLLOUT, deadline);
  }
}

std::string Connection::read(std::size_t count, Clock::time_point deadline) {
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

void Connection::await(const error_code& error, short events, Clock::time_point deadline) {
  if (error == asio::error::interrupted) return;
  const bool waits = error == asio::error::would_block || error == asio::error::try_again;
  require<LostConnection>(waits, error_text(error));
  require<LostConnection>(poll_until(socket_.native_handle(), events, deadline), "no answer in time");
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

}  // namespace duet::ddp
