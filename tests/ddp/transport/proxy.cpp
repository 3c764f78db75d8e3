#include "tests/ddp/transport/proxy.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ddp/store/connection.h"

namespace duet_test {
namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct Proxy::Parts {
  Parts(const std::string& address, int target_port, const Trouble& the_trouble, int port)
      : trouble(the_trouble),
        target(asio::ip::make_address(address), static_cast<unsigned short>(target_port)),
        acceptor(io, tcp::endpoint(target.address(), static_cast<unsigned short>(port))) {}
  const Trouble trouble;
  const tcp::endpoint target;
  std::atomic<std::size_t> bytes = 0;
  asio::io_context io;
  tcp::acceptor acceptor;
};

/// Two sockets, and a pump for each way between them.
class Proxy::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Parts& parts, tcp::socket client)
      : parts_(parts),
        client_(std::move(client)),
        server_(parts.io),
        retry_(parts.io),
        asked_(client_, server_, false),
        answered_(server_, client_, true) {}

  void start() {
    server_.async_connect(parts_.target, [self = shared_from_this()](error_code error) { self->connected(error); });
  }

 private:
  struct Way {
    Way(tcp::socket& the_source, tcp::socket& the_sink, bool is_answers)
        : source(the_source), sink(the_sink), answers(is_answers), timer(the_source.get_executor()) {}
    tcp::socket &source, &sink;
    const bool answers;
    asio::steady_timer timer;
    std::array<char, 16384> piece{};
  };

  void connected(error_code error) {
    error_code ignored;
    if (error) {  // the target does not listen yet
      server_.close(ignored);
      retry_.expires_after(std::chrono::milliseconds(5));
      return retry_.async_wait([self = shared_from_this()](error_code stopped) {
        if (!stopped) self->start();
      });
    }
    client_.set_option(tcp::no_delay(true), ignored);
    server_.set_option(tcp::no_delay(true), ignored);
    read(asked_);
    read(answered_);
  }

  void read(Way& way) {
    way.source.async_read_some(asio::buffer(way.piece),
                               [self = shared_from_this(), &way](error_code error, std::size_t bytes) {
                                 error ? self->end(way, error) : self->came(way, bytes);
                               });
  }

  void came(Way& way, std::size_t bytes) {
    const Trouble& trouble = parts_.trouble;
    parts_.bytes += bytes;
    const std::size_t end = std::min(trouble.reset_after, swallows(way) ? trouble.swallow_after : Trouble::kNever);
    if (way.answers && bytes_ >= trouble.change_after)
      way.piece[bytes - 1] = static_cast<char>(way.piece[bytes - 1] ^ 1);
    const std::size_t passing = std::min(bytes, end - std::min(end, bytes_));
    bytes_ += bytes;
    if (passing == 0) return passed(way);
    way.timer.expires_after(trouble.delay);
    way.timer.async_wait([self = shared_from_this(), &way, passing](error_code) {
      asio::async_write(way.sink, asio::buffer(way.piece, passing),
                        [self, &way](error_code error, std::size_t) { error ? self->reset() : self->passed(way); });
    });
  }

  void passed(Way& way) { bytes_ > parts_.trouble.reset_after ? reset() : read(way); }

  bool swallows(const Way& way) const { return way.answers || !parts_.trouble.only_answers; }

  void end(Way& way, error_code error) {
    if (bytes_ >= parts_.trouble.swallow_after && swallows(way)) return;  // without a notification
    error_code ignored;
    if (error == asio::error::eof)
      way.sink.shutdown(tcp::socket::shutdown_send, ignored);
    else
      reset();
  }

  void reset() {
    error_code ignored;
    for (tcp::socket* socket : {&client_, &server_}) {
      socket->set_option(asio::socket_base::linger(true, 0), ignored);
      socket->close(ignored);
    }
  }

  Parts& parts_;
  tcp::socket client_, server_;
  asio::steady_timer retry_;
  Way asked_, answered_;
  std::size_t bytes_ = 0;
};

namespace {

template <class Connection, class Parts>
void accept(Parts& parts) {
  parts.acceptor.async_accept([&parts](error_code error, tcp::socket client) {
    if (error) return;
    std::make_shared<Connection>(parts, std::move(client))->start();
    accept<Connection>(parts);
  });
}

}  // namespace

Proxy::Proxy(const std::string& address, int target_port, const Trouble& trouble, int port)
    : parts_(std::make_unique<Parts>(address, target_port, trouble, port)) {
  accept<Connection>(*parts_);
  thread_ = std::thread([this] { parts_->io.run(); });
}

Proxy::~Proxy() {
  parts_->io.stop();
  thread_.join();
}

int Proxy::port() const { return parts_->acceptor.local_endpoint().port(); }
std::size_t Proxy::bytes() const { return parts_->bytes; }

}  // namespace duet_test
