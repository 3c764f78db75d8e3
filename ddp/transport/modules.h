// Messages over Gloo and over MPI, and process groups over NCCL: modules that are loaded when first needed.
#pragma once

#include <memory>
#include <string>

#include "ddp/group/process_group.h"
#include "ddp/store/store.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

/// Connects this rank with the others, which call this with the same store; a connection that has had no answer for
/// `group.timeout` has ended. Throws CommError when a rank does not come, DeviceError when the module is not there. The
/// process ignores SIGPIPE from then on, unless it has a handler for it. Other libraries of the program may export a
/// Gloo of their own, as PyTorch's wheels do, but not under a sanitizer.
std::unique_ptr<Transport> make_gloo_transport(Store& store, int rank, int size, const ConnectOptions& options = {});

/// Empty if Gloo can be used, else why not.
std::string why_no_gloo();

/// Connects this rank with the others, which call this with the same store; the first call in a process is one of all
/// ranks of MPI_COMM_WORLD. MPI is initialised unless the program has done so, with MPI_THREAD_MULTIPLE, and then also
/// finalised when the process exits with 0 and no message has failed. Throws UsageError where no MPI launcher has
/// started the process or where MPI counts other ranks, CommError when a rank does not come, DeviceError when the
/// module is not there.
std::unique_ptr<Transport> make_mpi_transport(Store& store, int rank, int size, const ConnectOptions& options = {});

/// Empty if the module can be used, else why not.
std::string why_no_mpi();

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
                                              const ConnectOptions& options);

/// Empty if NCCL can be used, else why not. Touches no GPU.
std::string why_no_nccl();

}  // namespace duet::ddp
