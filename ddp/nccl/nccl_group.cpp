// A process group whose collectives are NCCL's.
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/nccl/check.h"
#include "ddp/nccl/communicator.h"
#include "ddp/transport/modules.h"
#include "lib/monotonic.h"

namespace duet::ddp::nccl {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
  }
  throw UsageError(concat("NCCL has no ", dtype));
}

ncclRedOp_t operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::product: return ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::avg: return ncclAvg;
  }
  throw UsageError("NCCL has no such reduction");
}

std::size_t elements(const Buffer& buffer) { return static_cast<std::size_t>(buffer.count); }

/// An NCCL group call: its calls start together. Keeps the first failure.
class GroupCall {
 public:
  GroupCall() { add(ncclGroupStart()); }
  void add(ncclResult_t result) {
    if (result_ == ncclSuccess) result_ = result;
  }
  ncclResult_t end() {
    add(ncclGroupEnd());
    return result_;
  }

 private:
  ncclResult_t result_ = ncclSuccess;
};

/// A rank's communicator and stream, and its pieces of a buffer.
struct Ranks {
  int own, size;
  ncclComm_t communicator;
  cudaStream_t stream;

  static void* piece(const Buffer& all, const Buffer& one, int rank) {
    return static_cast<std::byte*>(all.data) + one.bytes() * static_cast<std::size_t>(rank);
  }
  /// After NCCL's calls: it may wait for room in the launch queue, and the communicator may be aborted then.
  void copy_own(const void* from, void* to, std::size_t bytes) const {
    if (from != to) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  }
};

/// The collectives of which NCCL has none of its own; they move pieces between ranks, and reduce nothing.
ncclResult_t move_pieces(const Call& call, const Ranks& ranks) {
  const bool gathers = call.op == Collective::gather, scatters = call.op == Collective::scatter;
  const bool on_root = call.root == ranks.own;
  Buffer one = common_buffer(call);
  if (call.op == Collective::all_to_all) one.count /= ranks.size;
  const ncclDataType_t type = type_of(one.dtype);
  const auto from = [&](int rank) { return gathers ? call.in.data : Ranks::piece(call.in, one, rank); };
  const auto to = [&](int rank) { return scatters ? call.out.data : Ranks::piece(call.out, one, rank); };
  GroupCall all;
  for (int rank = 0; rank < ranks.size; ++rank) {
    if (rank == ranks.own) continue;
    if (scatters ? on_root : !gathers || rank == call.root)
      all.add(ncclSend(from(rank), elements(one), type, rank, ranks.communicator, ranks.stream));
    if (gathers ? on_root : !scatters || rank == call.root)
      all.add(ncclRecv(to(rank), elements(one), type, rank, ranks.communicator, ranks.stream));
  }
  const ncclResult_t result = all.end();
  if (on_root || (!gathers && !scatters)) ranks.copy_own(from(ranks.own), to(ranks.own), one.bytes());
  return result;
}

ncclResult_t submit(const Call& call, const Ranks& ranks) {
  const Buffer& in = call.in;
  const ncclDataType_t type = type_of(in.dtype);
  const ncclRedOp_t op = operation_of(call.reduce);
  const ncclComm_t comm = ranks.communicator;
  switch (call.op) {
    case Collective::broadcast:
      return ncclBroadcast(in.data, in.data, elements(in), type, call.root, comm, ranks.stream);
    case Collective::barrier:
    case Collective::all_reduce: return ncclAllReduce(in.data, in.data, elements(in), type, op, comm, ranks.stream);
    case Collective::reduce: return ncclReduce(in.data, in.data, elements(in), type, op, call.root, comm, ranks.stream);
    case Collective::all_gather: return ncclAllGather(in.data, call.out.data, elements(in), type, comm, ranks.stream);
    case Collective::reduce_scatter:
      return ncclReduceScatter(in.data, call.out.data, elements(call.out), type, op, comm, ranks.stream);
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter: return move_pieces(call, ranks);
    case Collective::send: return ncclSend(in.data, elements(in), type, call.root, comm, ranks.stream);
    case Collective::recv: return ncclRecv(in.data, elements(in), type, call.root, comm, ranks.stream);
  }
  return ncclInvalidArgument;
}

std::string title(const Call& call) {
  if (call.op == Collective::send) return concat("send to rank ", call.root);
  if (call.op == Collective::recv) return concat("recv from rank ", call.root);
  return name(call.op);
}

/// Messages started without a wait between them. They are passed to NCCL together, at the next wait or collective:
/// a send on a stream would keep the recv behind it from starting, while the peer's send waits for that recv.
struct Messages {
  std::vector<Call> calls;
  std::shared_ptr<Operation> operation;  // once they are enqueued
};

void flush(Communicator& core, Messages& messages, int rank, int size) {
  if (messages.operation != nullptr) return;
  std::string what = title(messages.calls[0]);
  if (messages.calls.size() > 1) what += concat(" and ", messages.calls.size() - 1, " more");
  messages.operation = core.run(what, false, [&](ncclComm_t communicator, cudaStream_t stream) {
    GroupCall all;
    for (const Call& call : messages.calls) all.add(submit(call, {rank, size, communicator, stream}));
    return all.end();
  });
}

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(std::shared_ptr<Store> store, int rank, int size, const ConnectOptions& options)
      : ProcessGroup(rank, size),
        options_(options),
        core_(std::make_shared<Communicator>(store, rank, size, options)),
        one_(zeros({1}, DType::f32, options.device)) {
    set_store(std::move(store));
  }

  ~NcclGroup() override {
    const bool drop = is_dropped();
    try {
      if (!drop && messages_ != nullptr) flush(*core_, *messages_, rank(), size());
    } catch (const Error&) {  // the group has failed; the next wait throws
    }
    core_->close(drop);
  }

  const char* backend() const override { return "nccl"; }

 protected:
  bool takes(DeviceKind kind) const override { return kind == DeviceKind::cuda; }
  Device staging_device() const override { return core_->device(); }
  std::unique_ptr<ProcessGroup> connect_subset(const Subset& subset) const override {
    return std::make_unique<NcclGroup>(subset.store, subset.rank, subset.size(), options_);
  }
  Work start(const Call& call) override { return start(call, call.op == Collective::barrier); }
  Work start_for_host(const Call& call) override { return start(call, true); }

 private:
  using Limit = Clock::time_point;
  static bool end(Communicator& core, const Operation& operation, bool host_waits, Limit limit) {
    if (host_waits) return core.wait_on_host(operation, limit);
    core.wait(operation);
    return true;
  }

  Work start(Call call, bool host_waits) {
    for (const Buffer& buffer : {call.in, call.out})
      require<UsageError>(buffer.count == 0 || buffer.device == core_->device(), name(call.op), ": a buffer is on ",
                          buffer.device, ", but this rank's device is ", core_->device());
    core_->require_alive();
    require<UsageError>(!host_waits || !core_->records(), name(call.op),
                        ": the host waits for it, so it cannot be part of a recorded step");
    if (!is_message(call.op)) core_->note_header(call);
    if (call.op == Collective::barrier) call.in = one_;
    if (common_buffer(call).count == 0) return {};
    if (is_message(call.op)) return start_message(call, host_waits);
    if (messages_ != nullptr) flush(*core_, *std::exchange(messages_, nullptr), rank(), size());
    auto operation = core_->run(title(call), true, [&](ncclComm_t communicator, cudaStream_t stream) {
      return submit(call, {rank(), size(), communicator, stream});
    });
    auto state = std::make_shared<WorkState>();
    state->begin(name(call.op), [core = core_, operation = std::move(operation), host_waits](Limit limit) {
      return end(*core, *operation, host_waits, limit);
    });
    return Work(std::move(state));
  }

  Work start_message(const Call& call, bool host_waits) {
    require<UsageError>(!core_->records(), name(call.op), ": messages cannot be part of a recorded step");
    require<UsageError>(call.tag == 0, name(call.op), ": messages over NCCL have no tags, got ", call.tag);
    if (messages_ == nullptr || messages_->operation != nullptr) messages_ = std::make_shared<Messages>();
    messages_->calls.push_back(call);
    auto state = std::make_shared<WorkState>();
    state->begin(name(call.op), [core = core_, batch = messages_, host_waits, own = rank(), all = size()](Limit limit) {
      flush(*core, *batch, own, all);
      return end(*core, *batch->operation, host_waits, limit);
    });
    return Work(std::move(state));
  }

  const ConnectOptions options_;
  std::shared_ptr<Communicator> core_;
  Tensor one_;  // for barriers
  std::shared_ptr<Messages> messages_;
};

}  // namespace
}  // namespace duet::ddp::nccl

// The module's only name; ddp/transport/modules.cpp spells it.
extern "C" __attribute__((visibility("default"))) duet::ddp::ProcessGroup* duet_nccl_connect(
    std::shared_ptr<duet::ddp::Store> store, int rank, int size, const duet::ddp::ConnectOptions& options);
duet::ddp::ProcessGroup* duet_nccl_connect(std::shared_ptr<duet::ddp::Store> store, int rank, int size,
                                           const duet::ddp::ConnectOptions& options) {
  return new duet::ddp::nccl::NcclGroup(std::move(store), rank, size, options);
}
