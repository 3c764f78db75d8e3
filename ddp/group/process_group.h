// The ranks of one job and what they do together, in the background.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/group/tree_parts.h"
#include "ddp/store/store.h"
#include "lib/monotonic.h"
#include "lib/nn/gradient_hooks.h"
#include "lib/tensor.h"

namespace duet::ddp {

/// The first failure of a process group, or its close, after which all of its operations throw. Thread-safe.
class GroupFailure {
 public:
  bool empty() const;
  /// Throws CommError after a failure or close().
  void check() const;
  /// Records that an operation failed. Returns the text to be thrown: its own, or that of check().
  std::string add(const std::string& operation, int rank, const std::exception& error);
  /// The group is closed. A failure from before stays.
  void close();

 private:
  mutable std::mutex mutex_;
  std::string text_;  // what check() throws
};

/// Where one operation stands. Thread-safe; reused by WorkPool.
class WorkState {
 public:
  /// Makes the state that of a new operation. With `finisher`, the first thread that waits runs it: if it returns true
  /// or throws, that ends the operation; after false another thread calls end().
  void begin(std::string_view name, std::function<bool(Clock::time_point deadline)> finisher = {});
  /// Ends the operation and wakes the threads that wait.
  void end(std::exception_ptr failure = nullptr);
  bool done() const;
  void wait(Clock::time_point deadline, Milliseconds timeout);
  /// The operation's place in the rank's record, which is updated when it ends.
  void set_mark(CallMark mark);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::string name_;
  bool done_ = false;
  std::exception_ptr failure_;
  std::function<bool(Clock::time_point)> finisher_;
  CallMark mark_;
};

/// The end of one operation; its buffers must stay untouched until wait() has returned. Copies share the operation.
/// wait() throws CommError if the group is closed before the operation has ended.
///
/// Dropping the last copy without a wait() never blocks, and the operation continues. A dropped send copies what it
/// still needs of its buffer; a dropped recv discards what arrives. The memory of a dropped collective, and over NCCL
/// of any operation, must stay untouched until a later collective has ended, or the group: a tensor lives on until
/// then.
class Work {
 public:
  /// Nothing to wait for.
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}
  /// Stays false until wait() where only that polls for the end: send, recv, NCCL, buffers that are copied.
  bool done() const { return !state_ || state_->done(); }
  /// Blocks to the end of the operation and rethrows what it threw.
  void wait();
  /// Waits as wait() does, but throws CommError after `timeout`; the operation then goes on in the background.
  void wait(Milliseconds timeout);
  /// Sets the operation's place in the rank's record, which is updated when it ends: see WorkState.
  void set_mark(CallMark mark);

 private:
  std::shared_ptr<WorkState> state_;
};

/// Hands out states and takes back those of ended operations that no Work holds any more, so that a training step
/// allocates none. Used by one thread at a time.
class WorkPool {
 public:
  std::shared_ptr<WorkState> take();

 private:
  std::vector<std::shared_ptr<WorkState>> states_;
};

/// Some ranks of a group that become a group of their own.
struct Subset {
  std::string name;              // new in the whole group
  std::shared_ptr<Store> store;  // the subset's own
  std::vector<int> ranks;        // their numbers in the whole group, in the subset's order
  int rank = 0;                  // this rank's place among them
  int size() const { return static_cast<int>(ranks.size()); }
};

inline constexpr Milliseconds kGroupTimeout{1'800'000};  // PyTorch's 30 minutes

struct GroupOptions {
  Milliseconds timeout = kGroupTimeout;  // for each single operation
  Milliseconds leave_timeout{2000};      // how long the destructor waits for the peers
  bool whole_job = true;                 // its ranks have the job's numbers, which LostRank passes to the launcher
};

/// `avg` is the sum divided by the number of ranks, not for integers.
enum class ReduceOp : std::uint8_t { sum, product, min, max, avg };
const char* name(ReduceOp op);

/// `count` elements in a row, owned by the caller.
struct Buffer {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  Device device{};
  std::shared_ptr<const Storage> owner{};  // of a tensor

  Buffer() = default;
  Buffer(void* memory, std::int64_t elements, DType type, Device place = {}, std::shared_ptr<const Storage> of = {})
      : data(memory), count(elements), dtype(type), device(place), owner(std::move(of)) {}
  /// All elements of a tensor, whose memory the operation keeps alive.
  Buffer(const Tensor& tensor)  // NOLINT(google-explicit-constructor): tensors are what is sent
      : Buffer(tensor.raw(), tensor.count(), tensor.dtype(), tensor.device(), tensor.shared_storage()) {}
  template <class T>
  Buffer(std::span<T> values)  // NOLINT(google-explicit-constructor)
      : Buffer(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<T>()) {}

  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }
};

/// The buffer as a tensor, for the device's own kernels.
inline Tensor tensor_of(const Buffer& buffer) {
  return borrow(buffer.data, {buffer.count}, buffer.dtype, buffer.device);
}

enum class Collective : std::uint8_t {
  broadcast,
  all_reduce,
  reduce,
  gather,
  scatter,
  all_gather,
  reduce_scatter,
  all_to_all,
  barrier,
  send,
  recv
};
const char* name(Collective op);
/// Whether it is a message between two ranks.
inline bool is_message(Collective op) { return op == Collective::send || op == Collective::recv; }
/// Whether it has a ReduceOp.
bool reduces(Collective op);
/// Whether one rank has another part in it than the others.
bool has_root(Collective op);

/// Records the forwards and updates of a rank since its gradients were last reduced.
struct StepMark {
  enum Number { forwards, settings, updates, kNumbers };
  /// Forwards whose gradients were to be reduced, a hash of the settings of all updates, calls of step(); -1: unknown.
  std::array<std::int32_t, kNumbers> numbers{-1, -1, -1};
  // The first updates that are distinct, for errors: nn::UpdateSettings, but for eps.
  std::array<std::uint8_t, 4> optimizers{};  // 2, and 2 as padding: every byte that is sent has a value
  std::array<std::array<float, 5>, 2> values{};

  bool operator==(const StepMark&) const = default;
};

/// Records the steps of a rank, and the rows of stamped batches from which the gradients in a collective come. Ranks
/// compare it in the header of the collective.
struct BatchMark {
  std::uint64_t whole = 0;  // sum of hashes of the batches, of which the ranks together have all rows; 0: unknown
  std::uint64_t cover = 0;  // what this rank's rows contribute to `whole`: those of all ranks add up to it
  // The last batch, for errors: this rank has rows [first, end) of its `global` rows.
  std::int64_t step = 0, first = 0, end = 0, global = 0;
  std::uint64_t order = 0;  // hash of the order of samples, from its stamp
  std::int64_t blocks = kBlocks;
  // All ranks have these alike; 0: unknown.
  std::uint64_t values = 0;  // hash of the parameters, in the first step of a pass of an elastic job
  std::uint64_t drawn = 0;   // 1 + whether dropout has drawn for the rows before the wrapper's forward
  StepMark done{};

  bool operator==(const BatchMark&) const = default;
};

/// One call, as an implementation gets it: already checked.
struct Call {
  Collective op = Collective::barrier;
  Buffer in{}, out{};  // broadcast, all_reduce, reduce, send and recv use `in` only, in place
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;  // the peer of send and recv
  int tag = 0;   // message tag, for send and recv
  BatchMark batch{};
  CallMark mark{};
  TreeParts parts{};  // of all_reduce
};

/// The buffer of a rank's part number `part`: see TreeParts.
inline Buffer part_of(const Call& call, int part) {
  Buffer buffer = call.in;
  if (part > 0) buffer.data = call.parts.more[static_cast<std::size_t>(part - 1)];
  return buffer;
}

/// The buffer that is equally long on all ranks and has elements on all.
inline const Buffer& common_buffer(const Call& call) {
  return call.op == Collective::scatter || call.op == Collective::reduce_scatter ? call.out : call.in;
}

/// What one rank puts into a collective or takes out of it, whichever is more.
inline std::int64_t bytes_of(const Call& call) {
  return static_cast<std::int64_t>(std::max(call.in.bytes(), call.out.bytes()));
}

/// Collectives are started in the same order, with the same arguments, on all ranks; each runs in the background, one
/// after the other, and has ended when wait() on its Work has returned. Sums are made in the same order on every rank
/// and are bitwise equal everywhere: for 2, 4, 8... ranks the tree ((0+1)+(2+3))+((4+5)+(6+7)), else 0+1+2+....
/// Sums, averages and products of f16 and bf16 are made in f32 and rounded once, to nearest, ties to even. NCCL has an
/// order and roundings of its own, see ddp/transport/modules.h.
/// Buffers on a GPU go through the host's memory where the group does not take them as they are, and those in the
/// host's memory over a GPU where the group takes only those: what the device was asked before is in them, and wait()
/// has put the result there.
/// A group is used by one thread at a time. Wrong arguments throw UsageError at once; Work::wait() throws CommError
/// that names operation and rank: ranks that disagree about the call, a lost peer, a timeout. After that the group has
/// failed and every later call throws the first reason. The destructor drains what was started, then waits for
/// the peers; while an exception unwinds the stack it drops the connections at once, so that the peers fail at once
/// too.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "shm", "tcp", "tcp+shm", "gloo", "mpi", "nccl", "solo", "memory".
  virtual const char* backend() const = 0;

  /// The next collective carries gradients of these rows: where the ranks' do not fit together it throws CommError on
  /// all of them, over NCCL that or a later call.
  void set_batch(const BatchMark& batch) { batch_ = batch; }

  /// The destructor drops the connections at once, and waits for no peer.
  void drop() { dropped_ = true; }

  /// The store through which the ranks met. Threads of one process may set one for make_memory_transport().
  const std::shared_ptr<Store>& store() const { return store_; }
  void set_store(std::shared_ptr<Store> store) { store_ = std::move(store); }

  /// Where this rank records its calls, if anywhere. `number` is that of the group on all its ranks.
  const std::shared_ptr<FlightRecorder>& flight_recorder() const { return recorder_; }
  void set_flight_recorder(std::shared_ptr<FlightRecorder> recorder, std::uint32_t number);

  /// CPU memory in which all_reduce needs no copies; null where it makes no difference. All ranks ask for the same
  /// number of bytes. It may outlive the group.
  virtual std::shared_ptr<Storage> shared_storage(std::size_t bytes);

  /// Copies the root's buffer to all ranks.
  [[nodiscard]] Work broadcast(const Buffer& buffer, int root = 0) {
    return checked({.op = Collective::broadcast, .in = buffer, .root = root});
  }
  /// Replaces every rank's buffer by the reduction of all.
  [[nodiscard]] Work all_reduce(const Buffer& buffer, ReduceOp op = ReduceOp::sum) {
    return checked({.op = Collective::all_reduce, .in = buffer, .reduce = op});
  }
  /// Replaces every rank's buffer by the sum of all parts of all ranks, by the tree over the blocks. All buffers are in
  /// the host's memory; those of further parts are overwritten. UsageError where takes_parts() is false.
  [[nodiscard]] Work all_reduce(const Buffer& buffer, const TreeParts& parts) {
    return checked({.op = Collective::all_reduce, .in = buffer, .parts = parts});
  }
  bool takes_parts() const { return takes(DeviceKind::cpu); }
  /// Replaces the root's buffer by the reduction of all ranks'; the other buffers stay as they are.
  [[nodiscard]] Work reduce(const Buffer& buffer, int root, ReduceOp op = ReduceOp::sum) {
    return checked({.op = Collective::reduce, .in = buffer, .reduce = op, .root = root});
  }
  /// The root's `out` becomes the ranks' `in` in rank order, size() times as long; elsewhere `out` may be empty.
  [[nodiscard]] Work gather(const Buffer& in, const Buffer& out, int root) {
    return checked({.op = Collective::gather, .in = in, .out = out, .root = root});
  }
  /// `out` becomes this rank's piece of the root's `in`, which is size() times as long; elsewhere `in` may be empty.
  [[nodiscard]] Work scatter(const Buffer& in, const Buffer& out, int root) {
    return checked({.op = Collective::scatter, .in = in, .out = out, .root = root});
  }
  /// Every rank's `out` becomes the ranks' `in` in rank order, size() times as long.
  [[nodiscard]] Work all_gather(const Buffer& in, const Buffer& out) {
    return checked({.op = Collective::all_gather, .in = in, .out = out});
  }
  /// `out` becomes this rank's piece of the reduction of all ranks' `in`, which is size() times as long. It may be that
  /// piece of `in`.
  [[nodiscard]] Work reduce_scatter(const Buffer& in, const Buffer& out, ReduceOp op = ReduceOp::sum) {
    return checked({.op = Collective::reduce_scatter, .in = in, .out = out, .reduce = op});
  }
  /// Sends piece r of size() in `in` to rank r, and receives piece r of `out` from it. The buffers must not overlap.
  [[nodiscard]] Work all_to_all(const Buffer& in, const Buffer& out) {
    return checked({.op = Collective::all_to_all, .in = in, .out = out});
  }
  /// Returns when all ranks have started it.
  [[nodiscard]] Work barrier() { return checked({.op = Collective::barrier}); }
  /// Messages between two ranks arrive in order per tag; both sides name the same count and dtype. Started at once,
  /// in parallel with the collectives (isend and irecv elsewhere); wait() returns when the memory may be used again.
  [[nodiscard]] Work send(const Buffer& buffer, int to, int tag = 0);
  [[nodiscard]] Work recv(const Buffer& buffer, int from, int tag = 0);

  /// Waits for all ranks, at most `timeout`, and throws CommError that names all that have not come; the group goes on
  /// all the same. Costs a few trips to the store, which it needs.
  void monitored_barrier(Milliseconds timeout);

  /// The ranks that give the same color as a group of their own, ordered by key, then by rank; null for a negative
  /// color. All ranks call it. The new group has this one's backend and timeouts, connections of its own, and the store
  /// under a prefix, whose keys are deleted with the last rank's group, or copy of its store(); either may go first.
  std::unique_ptr<ProcessGroup> split(int color, int key = 0);
  /// Makes a group of the listed ranks, in that order; null on the others. All ranks call it, with the same list.
  std::unique_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);

 protected:
  ProcessGroup(int rank, int size);
  /// A group of the same kind, whose ranks all call this at the same time.
  virtual std::unique_ptr<ProcessGroup> connect_subset(const Subset& subset) const = 0;
  /// The call's buffers are on devices of which takes() is true.
  virtual Work start(const Call& call) = 0;
  /// Whether start() reads and writes memory of such devices itself.
  virtual bool takes(DeviceKind kind) const { return kind == DeviceKind::cpu; }
  /// Where copies of other buffers are made for start().
  virtual Device staging_device() const { return {}; }
  /// Starts a call as start() does, for a host that reads the result as soon as wait() has returned.
  virtual Work start_for_host(const Call& call) { return start(call); }
  /// Starts a call of this group in another one, which carries it out for this one; wait() returns when it has ended,
  /// also where it runs on a device.
  static Work start_in(ProcessGroup& group, const Call& call) { return group.start_for_host(call); }
  /// Starts a call whose arguments have been checked as far as they depend on the operation.
  Work checked(const Call& call);
  /// For the destructor: whether an exception unwinds the stack, or drop() was called. Records it first, before peers
  /// fail.
  bool is_dropped() const;
  /// The ranks have other numbers from now on.
  void set_place(int rank, int size);
  /// How many collectives the flight recorder has of this group; those of ranks that have the same number are compared.
  std::int64_t noted() const { return noted_; }
  void set_noted(std::int64_t collectives) { noted_ = collectives; }

 private:
  CallMark noted(const Call& call);
  Work start_staged(const Call& call);
  void require_store(const char* what) const;
  int rank_;
  int size_;
  int exceptions_at_birth_;
  bool dropped_ = false;
  std::shared_ptr<Store> store_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::uint32_t recorded_as_ = 0;
  std::int64_t noted_ = 0;  // collectives
  BatchMark batch_;         // the next collective's
  int splits_ = 0, monitored_barriers_ = 0;
};

/// The group of a job with one rank: copies and nothing else. Every call is done when it returns.
class SoloGroup final : public ProcessGroup {
 public:
  SoloGroup() : ProcessGroup(0, 1) {}
  const char* backend() const override { return "solo"; }

 protected:
  Work start(const Call& call) override {
    if (call.out.count > 0 && call.in.data != call.out.data && call.in.count > 0)
      copy(tensor_of(call.in), tensor_of(call.out));
    return {};
  }
  std::unique_ptr<ProcessGroup> connect_subset(const Subset&) const override { return std::make_unique<SoloGroup>(); }
  bool takes(DeviceKind) const override { return true; }
};

}  // namespace duet::ddp
