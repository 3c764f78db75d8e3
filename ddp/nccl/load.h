// Process groups over NCCL, which is a module that is loaded when first needed.
#pragma once

#include <memory>
#include <string>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"

namespace duet::ddp {

struct NcclOptions {
  Device device = {DeviceKind::cuda, 0};  // this rank's
  Milliseconds connect_timeout{30'000};
  GroupOptions group{};
  /// Network interface of NCCL's sockets; empty: NCCL chooses. NCCL_SOCKET_IFNAME takes precedence, and so does the
  /// choice of this process's first group, as NCCL reads it only once.
  std::string interface {};
};

/// Connects this rank with the others, which call this with the same store. In addition to ProcessGroup:
/// - Buffers lie on the device of the options, else UsageError; those in the host's memory are copied there and back.
/// - Collectives run on a stream of their own, after work enqueued on the device before; wait() returns at once and the
///   device waits. The host waits for a barrier, for results in its memory, and for room in a full launch queue.
/// - A start costs the host NCCL's launch; the first of a kind connects the ranks. A recorded step is one launch.
/// - Sums are equal on all ranks, but NCCL chooses their order, and how often those of f16 and bf16 are rounded. It
///   chooses alike for recorded and plain steps, unless NCCL_GRAPH_REGISTER is set.
/// - NCCL does not compare what ranks call. A thread of each rank does, through the store, at most 20 times a second: a
///   disagreement ends the group with both sides named, but results from before may be wrong.
/// - NCCL's initialisation and end may hang where a rank fails; then the thread that makes the call is left behind.
/// - A failure ends all ranks' groups. Work whose wait() has returned before it may hold anything; the next call
/// throws.
/// - Messages have no tags (UsageError). Those that are started without a wait between them go together.
/// Throws CommError that names the missing ranks, DeviceError when the module is not there, when the libraries
/// do not fit, and when ranks share a GPU and NCCL does not allow it.
std::unique_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Store> store, int rank, int size,
                                              const NcclOptions& options);

/// What the module exports under kNcclConnectName. The caller owns the group.
using NcclConnect = ProcessGroup* (*)(std::shared_ptr<Store> store, int rank, int size, const NcclOptions& options);
inline constexpr const char* kNcclConnectName = "duet_nccl_connect";

/// Empty if NCCL can be used, else why not. Touches no GPU.
std::string why_no_nccl();

}  // namespace duet::ddp
