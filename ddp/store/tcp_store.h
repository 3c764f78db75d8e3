// A store over TCP: rank 0 serves it, each client on a thread of its own; all ranks are its clients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/store/store.h"

namespace duet::ddp {

/// "HOST:PORT" where other ranks reach rank 0's store by address translation, such as a container's published port.
/// Read by init_process_group() on rank 0.
inline constexpr const char* kStoreEndpointVariable = "DUET_STORE_ENDPOINT";

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 29500;    // 0 = pick a free one (with `serve`)
  int more_ports = 0;  // the server takes the first free one of so many more; clients find it by `run`
  /// A store that only the job's ranks can reach. With port 0 the server publishes its port in it, where clients read
  /// it.
  std::shared_ptr<Store> port_store{};
  std::string run{};  // names the run: a server rejects clients of another one
  /// Shared by the ranks of the job only; needed where the ranks do not meet on a loopback address. Empty there: the
  /// user's own, which other users of the host cannot read. See ddp/store/secret.h.
  std::string secret{};
  /// All ranks are on this host: without a secret they meet on its loopback address, whatever `host` is.
  bool one_host = false;
  bool early = false;  // the first request goes out before the server has proven itself: saves a round trip
  bool serve = false;  // true on rank 0
  int ranks = 1;       // so many clients may authenticate at once, besides 64 others
  /// Where clients reach the server by address translation, besides the address on which it listens.
  std::string reached_host{};
  int reached_port = 0;
  Milliseconds timeout = kStoreTimeout;
  int interrupt = -1;  // a descriptor that ends waits for the server, as the timeout does, while it is readable
  Milliseconds handshake_timeout{1000};  // after which the server drops an unauthenticated client
};

/// Rank 0 listens on exactly the address that `host` means, so on loopback for a loopback name. Server and clients
/// prove to each other that they have the secret, and that there is no relay (see Note [Handshake] of
/// ddp/store/connection.h). What follows is not encrypted, but an end that receives what the other has not sent, or
/// not in this place, ends the connection. Clients are dropped that do not speak the protocol: wrong magic or proof,
/// not through with it in time, the oldest of more than `ranks` and 64 of them, frames over the limits. Throws
/// CommError: the port is taken (with port and errno), no peer answers within the timeout, or one without the secret
/// or through a relay does; UsageError beyond loopback without a secret.
class TcpStore final : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  /// The port in use, also where 0 was asked for.
  int port() const;
  /// Returns the store that this process serves, without a connection: its calls wait for no network. With `serve`.
  Store& served();
  /// Refuses all further clients, as all ranks are connected. One whose next group meets at the same port waits for
  /// the next store, and can't take this one for it. Does nothing without `serve`.
  void accept_no_more();
  /// This side's address of the connection to the server: one that the other ranks can reach too.
  std::string local_address() const;

  std::string secret() override;
  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace duet::ddp
