// The serving side of TcpStore. Private to ddp: this header includes Asio.
#pragma once

#include <string>
#include <vector>

#include "ddp/store/listener.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store_wire.h"

namespace duet::ddp {

/// Serves one table, each client on a thread of its own, until destroyed.
class TcpStoreServer {
 public:
  /// Throws CommError with port and errno when it cannot listen.
  explicit TcpStoreServer(ListenerOptions options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  int port() const { return listener_.port(); }

 private:
  void serve(Listener::Caller& client);
  /// The answer to a request, or the error that it throws.
  StoreFrame answer(StoreFrame request);

  MemoryStore table_{kStoreTimeout, check_frame};
  Listener listener_;
};

}  // namespace duet::ddp
