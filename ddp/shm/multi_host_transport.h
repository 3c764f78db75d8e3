// Messages between ranks of several hosts: over memory within a host, over a network between them.
#pragma once

#include <memory>
#include <vector>

#include "ddp/store/store.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

/// Connects the ranks of this host, which call this with the same store; `network` connects all. `hosts` has a number
/// for every rank, equal for those on one host. Where a host has no memory to share, its ranks use the network too.
std::unique_ptr<Transport> make_multi_host_transport(std::unique_ptr<Transport> network,
                                                     const std::shared_ptr<Store>& store, std::vector<int> hosts,
                                                     Milliseconds connect_timeout);

}  // namespace duet::ddp
