// The backends of process groups, and how ranks are connected over one of them.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "lib/device.h"

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

struct ConnectOptions {
  std::string backend;  // not "auto"
  Milliseconds connect_timeout{30'000};
  GroupOptions group{};
  std::string address = "127.0.0.1";  // tcp, gloo: of this rank, where the others reach it
  /// tcp: a number for every rank, equal for those on one host, which then exchange over memory what stays there;
  /// empty: all goes over the network.
  std::vector<int> hosts{};
  Device device = {DeviceKind::cuda, 0};  // nccl: this rank's
  std::string interface {};               // nccl: see NcclOptions
};

/// Connects this rank with the others, which call this with the same store, which the group keeps. `store` may be used
/// for another group once this one is gone on all ranks, under another prefix. Throws CommError that names the ranks
/// that did not come, or says why they cannot be connected, DeviceError where the backend is not there.
std::unique_ptr<ProcessGroup> connect(const ConnectOptions& options, std::shared_ptr<Store> store, int rank, int size);

}  // namespace duet::ddp
