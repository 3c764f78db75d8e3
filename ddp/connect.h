// The backends of process groups, and how ranks are connected over one of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "lib/device.h"

namespace duet::ddp {

/// What ranks may be that are connected over a backend.
struct Backend {
  const char* name;
  bool processes, threads;
};
/// All of them: "shm", "tcp", "gloo", "mpi", "nccl", "memory" and "solo".
const std::vector<Backend>& backends();
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
