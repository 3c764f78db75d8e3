// Messages between ranks over TCP.
#pragma once

#include <memory>
#include <string>

#include "ddp/store/store.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

struct TcpTransportOptions {
  std::string address = "127.0.0.1";  // of this rank, where the others reach it
  Milliseconds connect_timeout{30'000};
};

/// Connects this rank with the others, which call this with the same store; see connect_tcp_mesh(). What a rank sends
/// is neither encrypted nor signed. Throws CommError when a rank does not come.
std::unique_ptr<Transport> make_tcp_transport(Store& store, int rank, int size,
                                              const TcpTransportOptions& options = {});

}  // namespace duet::ddp
