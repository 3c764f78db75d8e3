// Process groups of ranks on one host, over memory that they share.
#pragma once

#include <memory>

#include "ddp/group/process_group.h"
#include "ddp/transport/transport_group.h"

namespace duet::ddp {

/// Connects this rank with the others, which call this with the same store. A collective is carried out by the threads
/// that wait for it, at once and without a communication thread; one that no thread waits for is carried out in the
/// background after some milliseconds. So buckets of a shorter backward are not summed in parallel with it: where ranks
/// have a core each, a thread that did it would take that core from backward. Waiting is spinning at first, then
/// parking. Throws CommError when a rank does not come or memory cannot be shared.
std::unique_ptr<ProcessGroup> make_shm_group(std::shared_ptr<Store> store, int rank, int size,
                                             Milliseconds connect_timeout, const GroupOptions& options = {});

}  // namespace duet::ddp
