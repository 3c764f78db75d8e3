// NCCL, among ranks that are threads of one process unless nccl_processes.cpp is asked for. A collective is one
// operation of the scheduler: it waits for what every rank's stream did before, and every rank's stream goes on after
// it.
#include <nccl.h>
#include <net/if.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/nccl_group.h"
#include "tests/support/fake_cuda/sim.h"
#include "tests/support/fake_cuda/simulator.h"

namespace duet_sim {
namespace {

thread_local int group_depth = 0;
thread_local std::vector<Request> deferred;
thread_local std::string last_error = "no error";

int version() { return static_cast<int>(setting("DUET_SIM_NCCL_VERSION", NCCL_VERSION_CODE)); }

ncclResult_t refuse(ncclResult_t result, const std::string& why) {
  report("%s", why.c_str());
  last_error = why;
  return result;
}

/// All groups that ever were, by number; communicators are kept, so that a late use of one is seen.
std::map<long, std::unique_ptr<Group>>& groups() {
  static auto* all = new std::map<long, std::unique_ptr<Group>>;
  return *all;
}

/// Adds a rank to its group; refused where NCCL would.
ncclResult_t join(ncclComm_t* made, long number, int size, int rank, int device) {
  std::unique_ptr<Group>& group = groups()[number];
  if (!group) group = std::make_unique<Group>(number, size);
  if (size != static_cast<int>(group->ranks.size()) || rank < 0 || rank >= size ||
      group->ranks[static_cast<std::size_t>(rank)])
    return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(size) + " cannot join");
  const bool shared = version() >= 23000 && setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
  for (const auto& other : group->ranks) {
    if (!other || other->device != device || shared) continue;
    group->failed = true;
    state().changed.notify_all();
    return refuse(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " +
                                        std::to_string(other->rank) + " both on CUDA device " + std::to_string(device));
  }
  *made = (group->ranks[static_cast<std::size_t>(rank)] = std::make_unique<ncclComm>(group.get(), rank, device)).get();
  ++group->arrived;
  state().changed.notify_all();
  return ncclSuccess;
}

/// NCCL_SOCKET_IFNAME="=NAME" must be one of this host's interfaces.
bool interface_exists() {
  const char* const wanted = std::getenv("NCCL_SOCKET_IFNAME");
  return wanted == nullptr || wanted[0] != '=' || ::if_nametoindex(wanted + 1) != 0;
}

/// Whether a communicator can be used.
ncclResult_t usable(const ncclComm* comm) {
  if (comm == nullptr || !comm->alive) return refuse(ncclInvalidArgument, "the communicator was destroyed or aborted");
  return comm->error;
}

/// Queues requests of one rank on one stream, side by side.
ncclResult_t queue(Lock& lock, std::vector<Request> requests) {
  ncclComm* comm = requests[0].comm;
  cudaStream_t given = requests[0].stream, stream = resolve(given);
  if (stream == nullptr || stream->device != comm->device)
    return refuse(ncclInvalidArgument, "the stream is not of the communicator's device");
  if (wait_for_room(lock, stream) != cudaSuccess) return ncclUnhandledCudaError;
  if (!comm->alive) return ncclInternalError;  // aborted meanwhile
  if (comm->group->board && requests[0].is_transfer())
    return refuse(ncclInvalidUsage, "simulated NCCL carries no messages between processes");
  const bool captured = stream->capture != nullptr;
  for (Request& request : requests) {
    request.captured = captured;
    for (const void* p : {request.send, static_cast<const void*>(request.receive)}) {
      const std::string fault = pointer_fault(p, true, comm->device, 1u << comm->device);
      if (!fault.empty()) return refuse(ncclInvalidArgument, std::string("a buffer of ") + request.name + " " + fault);
    }
  }
  const Maker make = [requests, held = captured ? comm->graphs : nullptr](const Ops& before) {
    Ops parts;
    for (const Request& request : requests) parts.push_back(enqueue(request, before));
    return schedule(Op("ncclGroupEnd", requests[0].comm->device), parts);
  };
  return submit(given, make) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t issue(const Request& request) {
  if (enter(request.name) != cudaSuccess) return ncclUnhandledCudaError;
  Lock lock(state().mutex);
  if (const ncclResult_t result = usable(request.comm)) return result;
  if (request.peer < 0 || request.peer >= static_cast<int>(request.comm->group->ranks.size()))
    return refuse(ncclInvalidArgument, "no such root or peer");
  if (group_depth == 0) return queue(lock, {request});
  deferred.push_back(request);
  return ncclSuccess;
}

/// Ends a communicator, also after sticky errors. NCCL waits for the graphs that hold its operations.
ncclResult_t end(const char* function, ncclComm* comm, bool finalized, bool aborted) {
  enter(function);
  Lock lock(state().mutex);
  if (usable(comm) == ncclInvalidArgument) return ncclInvalidArgument;
  comm->alive = finalized;
  state().changed.notify_all();
  if (aborted) abandon(*comm);
  const bool gone = state().changed.wait_for(lock, patience(), [&] { return comm->graphs.use_count() == 1; });
  return gone ? ncclSuccess : refuse(ncclInternalError, "graphs hold operations of a communicator that ends");
}

}  // namespace
}  // namespace duet_sim

using namespace duet_sim;

ncclResult_t ncclGetVersion(int* out) {
  *out = version();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* out) {
  if (!interface_exists()) return refuse(ncclInvalidUsage, "Bootstrap : no socket interface found");
  static std::atomic<long> number = 0;
  const Id id{::getpid(), ++number, among_processes() ? make_board() : -1};
  *out = {};
  std::memcpy(out, &id, sizeof id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId given, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (enter("ncclCommInitRankConfig") != cudaSuccess) return ncclSystemError;
  if (config == nullptr || config->blocking != 1)
    return refuse(ncclInvalidUsage, "a communicator that does not block costs a thread per call, and is not simulated");
  Id id;
  std::memcpy(&id, &given, sizeof id);
  if (among_processes()) return join_processes(comm, id, nranks, rank, current_device());
  if (id.process != ::getpid())
    return refuse(ncclSystemError, "rank " + std::to_string(rank) + " is another process than the one that made the " +
                                       "unique id; simulated NCCL joins threads of one process, unless " +
                                       "DUET_SIM_PROCESSES=1");
  Lock lock(state().mutex);
  if (const ncclResult_t result = join(comm, id.number, nranks, rank, current_device())) return result;
  const Group& group = *(*comm)->group;
  const auto decided = [&] { return group.complete() || group.failed; };
  if (!state().changed.wait_for(lock, patience(), decided)) return refuse(ncclSystemError, "ranks did not come");
  if (group.failed) return ncclInvalidUsage;
  return setting("NCCL_COMM_BLOCKING", 1) == 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return end("ncclCommFinalize", comm, true, false); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end("ncclCommDestroy", comm, false, false); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return end("ncclCommAbort", comm, false, true); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  std::lock_guard lock(state().mutex);
  if (usable(comm) == ncclInvalidArgument) return ncclInvalidArgument;
  if (const int wrong = injected("ncclCommGetAsyncError", ncclRemoteError))
    comm->error = static_cast<ncclResult_t>(wrong);
  *error = comm->error;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return kTexts[result];
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth != 0) return ncclSuccess;
  const auto calls = std::exchange(deferred, {});
  if (calls.empty()) return ncclSuccess;
  for (const Request& call : calls)
    if (call.comm != calls[0].comm || call.stream != calls[0].stream)
      return refuse(ncclInvalidUsage, "a group of calls for several ranks or streams is not simulated");
  Lock lock(state().mutex);
  return queue(lock, calls);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue({"ncclAllReduce", Kind::all_reduce, send, receive, count, type, op, 0, comm, stream});
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return issue({"ncclReduce", Kind::reduce, send, receive, count, type, op, root, comm, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return issue({"ncclReduceScatter", Kind::reduce_scatter, send, receive, count, type, op, 0, comm, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue({"ncclBroadcast", Kind::broadcast, send, receive, count, type, ncclSum, root, comm, stream});
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return issue({"ncclAllGather", Kind::all_gather, send, receive, count, type, ncclSum, 0, comm, stream});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue({"ncclSend", Kind::send, send, nullptr, count, type, ncclSum, peer, comm, stream});
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue({"ncclRecv", Kind::receive, nullptr, receive, count, type, ncclSum, peer, comm, stream});
}
