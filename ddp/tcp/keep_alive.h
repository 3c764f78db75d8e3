// Detects a host that is gone without closing its connections: a cut cable, a machine without power.
#pragma once

#include <set>

#include "ddp/store/store.h"

namespace duet::ddp {

/// Descriptors of this process's TCP connections.
std::set<int> tcp_connections();

/// Lets the kernels of both hosts exchange heartbeats over a connection without traffic, and ends it when nothing that
/// was sent over it is acknowledged for `limit`.
void keep_alive(int connection, Milliseconds limit);

}  // namespace duet::ddp
