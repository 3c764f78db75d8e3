// Process groups of ranks on one host, over memory that they share, and messages that use it within each host.
#pragma once

#include <memory>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

/// Connects this rank with the others, which call this with the same store. A collective is carried out by the threads
/// that wait for it, at once and without a communication thread; one that no thread waits for is carried out in the
/// background after some milliseconds. So buckets of a shorter backward are not summed in parallel with it: where ranks
/// have a core each, a thread that did it would take that core from backward. Waiting is spinning at first, then
/// parking. Throws CommError when a rank does not come or memory cannot be shared.
std::unique_ptr<ProcessGroup> make_shm_group(std::shared_ptr<Store> store, int rank, int size,
                                             Milliseconds connect_timeout, const GroupOptions& options = {});

/// Connects the ranks of this host, which call this with the same store; `network` connects all. `hosts` has a number
/// for every rank, equal for those on one host. Where a host has no memory to share, its ranks use the network too.
std::unique_ptr<Transport> make_multi_host_transport(std::unique_ptr<Transport> network,
                                                     const std::shared_ptr<Store>& store, std::vector<int> hosts,
                                                     Milliseconds connect_timeout);

}  // namespace duet::ddp
