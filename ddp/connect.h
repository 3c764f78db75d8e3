// The backends of process groups, and how ranks are connected over one of them.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

/// A backend, and what the ranks may be that it connects.
struct Backend {
  const char* name;
  bool processes, threads;
};
inline constexpr std::array kBackends = {
    Backend{.name = "shm", .processes = true, .threads = true},
    Backend{.name = "tcp", .processes = true, .threads = true},
    Backend{.name = "gloo", .processes = true, .threads = true},
    Backend{.name = "mpi", .processes = true, .threads = false},
    Backend{.name = "nccl", .processes = true, .threads = true},
    Backend{.name = "memory", .processes = false, .threads = true},
    Backend{.name = "solo", .processes = true, .threads = false},
};
/// Throws UsageError unless there is one of that name for such ranks; "auto" is one for both.
void check_backend(const std::string& name, bool threads);

/// Connects this rank with the others, which call this with the same store, which the group keeps. `store` may be used
/// for another group once this one is gone on all ranks, under another prefix. Throws CommError that names the ranks
/// that did not come, or says why they cannot be connected, DeviceError where the backend is not there.
std::unique_ptr<ProcessGroup> connect(const ConnectOptions& options, std::shared_ptr<Store> store, int rank, int size);

/// Connects ranks of one host like connect(): over shared memory, or over tcp if a rank can't use shared memory.
std::unique_ptr<ProcessGroup> connect_on_host(ConnectOptions over, const std::shared_ptr<Store>& store, int rank,
                                              int size);

}  // namespace duet::ddp
