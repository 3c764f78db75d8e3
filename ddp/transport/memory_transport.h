// Messages between ranks that are threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "ddp/transport/transport.h"

namespace duet::ddp {

/// Transports of ranks 0..size-1, connected with one another. Sending copies the bytes and never waits.
std::vector<std::unique_ptr<Transport>> make_memory_transports(int size);

}  // namespace duet::ddp
