// Messages between ranks over TCP, and the connections for them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddp/store/store.h"
#include "ddp/transport/transport.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// Connects this rank with the others, which call this with the same store; see connect_tcp_mesh(). What a rank sends
/// is neither encrypted nor signed. Throws CommError when a rank does not come.
std::unique_ptr<Transport> make_tcp_transport(Store& store, int rank, int size, const ConnectOptions& options = {});

/// A TCP socket to every other rank, by rank; this rank's own place is empty. All ranks call it with the same store.
/// `address` is this rank's, where the others reach it. Both ends prove that they have the store's secret() before
/// anything else is read from them; any other connection is dropped. Throws CommError when a rank does not come within
/// the timeout.
std::vector<Descriptor> connect_tcp_mesh(Store& store, int rank, int size, const std::string& address,
                                         Milliseconds timeout);

}  // namespace duet::ddp
