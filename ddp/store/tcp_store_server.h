// The serving side of TcpStore. Private to ddp: this header includes Asio.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddp/store/asio.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store_wire.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// Serves one table on a thread of its own until destroyed.
class TcpStoreServer {
 public:
  /// Throws CommError with port and errno when it cannot listen.
  TcpStoreServer(const boost::asio::ip::tcp::endpoint& endpoint, const std::string& run, std::string secret,
                 Milliseconds handshake_timeout);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  int port() const { return port_; }

 private:
  class Session;
  struct Waiter {
    std::shared_ptr<Session> session;  // kept alive: nothing is being read from it
    StoreOp op;
    std::vector<std::string> keys;
    Milliseconds timeout;
    boost::asio::steady_timer timer;
    bool served = false;
  };
  void serve();
  void accept();
  /// Holds the spare descriptor again, or cannot.
  bool has_spare();
  void handle(const std::shared_ptr<Session>& session, const StoreFrame& request);
  /// What a request is answered that need not wait, or the error that it throws.
  StoreFrame answer(StoreOp op, const std::vector<std::string>& strings);
  void add_waiter(const std::shared_ptr<Session>& session, const StoreFrame& request);
  void serve_waiters();

  /// Clients that have not yet authenticated, the oldest first.
  std::list<std::weak_ptr<Session>> unauthenticated_;
  void add_unauthenticated(const std::shared_ptr<Session>& session);
  boost::asio::io_context io_;
  boost::asio::ip::tcp::acceptor acceptor_{io_};
  boost::asio::steady_timer pause_{io_};  // after a failed accept
  /// Given up for the one connection that there is no descriptor for, so that its client receives kStoreFull.
  Descriptor spare_;
  int port_ = 0;
  const std::string run_mark_, secret_;
  const Milliseconds handshake_timeout_;
  StoreTable table_;
  std::list<std::shared_ptr<Waiter>> waiters_;
  std::thread thread_;
};

}  // namespace duet::ddp
