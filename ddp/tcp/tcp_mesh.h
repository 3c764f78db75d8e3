// Connections between all ranks of a group, each with a proof that its other end is a rank.
#pragma once

#include <string>
#include <vector>

#include "ddp/store/store.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// A TCP socket to every other rank, by rank; this rank's own place is empty. All ranks call it with the same store.
/// `address` is this rank's, where the others reach it. Both ends prove that they have the store's secret() before
/// anything else is read from them; any other connection is dropped. Throws CommError when a rank does not come within
/// the timeout.
std::vector<Descriptor> connect_tcp_mesh(Store& store, int rank, int size, const std::string& address,
                                         Milliseconds timeout);

}  // namespace duet::ddp
