// A duet process group as a backend of PyTorch's c10d: under c10d::Reducer and DistributedDataParallel, from C++ and
// (with torch/python) from Python.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "ddp/group/process_group.h"
#include "ddp/init.h"
#include "lib/error.h"
#include "torch/c10d/arguments.h"
#include "torch/c10d/call.h"
#include "torch/c10d/call_queue.h"
#include "torch/c10d/errors.h"
#include "torch/c10d/store.h"
#include "torch/c10d/work.h"

namespace duet::torch {

/// Collectives and messages of dense CPU tensors, as duet's ProcessGroup has them: ranks that disagree about a call, a
/// lost rank and a timeout are named on every rank, and end the group. Strides may be any. Dtypes that duet has not
/// (bool, int8, complex) are moved, but not reduced; BAND, BOR, BXOR, PREMUL_SUM, recv from any rank and sparse
/// tensors are errors. Wrong arguments throw c10::ValueError, all else c10::DistBackendError from wait().
/// Collectives run when their Work is waited for, or in the background for a future; while a future has not completed,
/// later collectives start behind it, see CallQueue. A message runs when its Work is waited for; without that its
/// tensor is kept as long as the group. Thread-safe, but ranks must make their calls in the same order.
class C10dBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkRef = c10::intrusive_ptr<c10d::Work>;

  explicit C10dBackend(std::unique_ptr<ddp::ProcessGroup> group)
      : Backend(group->rank(), group->size()), group_(std::move(group)) {}
  ~C10dBackend() override { shutdown(); }

  const std::string getBackendName() const override { return "duet"; }
  /// The number of collectives so far.
  std::uint64_t getSequenceNumberForGroup() override { return collectives_; }

  /// Ends what was started, and the group. Every later call throws.
  void shutdown() override {
    queue_->stop();
    const std::lock_guard lock(mutex_);
    group_ = nullptr;
    in_flight_.clear();
  }

  /// Drops the connections, so that what is in flight throws here and on the peers. Every later call throws.
  void abort() override {
    try {
      const std::lock_guard lock(mutex_);
      const auto dropped = std::move(group_);
      throw CommError("the process group is aborted");  // while the stack unwinds a group drops its connections
    } catch (const CommError&) {
    }
    shutdown();
  }

  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return start(c10d::OpType::BROADCAST, "duet:broadcast", options.timeout, [&](C10dCall& call) {
      for (const at::Tensor& tensor : tensors)
        call.add([buffer = call.in_place(tensor), root = rank_of(options.rootRank)](ddp::ProcessGroup& group) {
          return group.broadcast(buffer, root);
        });
    });
  }

  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return start(c10d::OpType::ALLREDUCE, "duet:all_reduce", options.timeout, [&](C10dCall& call) {
      for (const at::Tensor& tensor : tensors)
        call.add([buffer = call.in_place(tensor, Elements::reduced),
                  op = reduce_op(options.reduceOp)](ddp::ProcessGroup& group) { return group.all_reduce(buffer, op); });
    });
  }
  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return allreduce(tensors, options);
  }

  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return start(c10d::OpType::REDUCE, "duet:reduce", options.timeout, [&](C10dCall& call) {
      for (const at::Tensor& tensor : tensors)
        call.add(
            [buffer = call.in_place(tensor, Elements::reduced), root = rank_of(options.rootRank),
             op = reduce_op(options.reduceOp)](ddp::ProcessGroup& group) { return group.reduce(buffer, root, op); });
    });
  }

  WorkRef allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return start(c10d::OpType::ALLGATHER, "duet:all_gather", options.timeout, [&](C10dCall& call) {
      same_length(outputs, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        add_all_gather(call, call.in(inputs[i]), call.out_row(list_of_ranks(outputs[i], inputs[i])));
    });
  }
  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkRef allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return start(c10d::OpType::_ALLGATHER_BASE, "duet:all_gather", options.timeout, [&](C10dCall& call) {
      same_length(outputs, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        same_dtype(outputs[i], inputs[i]);
        add_all_gather(call, call.in(inputs[i]), call.in_place(outputs[i]));
      }
    });
  }

  /// One list for each rank, with a tensor for each input.
  WorkRef allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return start(c10d::OpType::ALLGATHER_COALESCED, "duet:all_gather", options.timeout, [&](C10dCall& call) {
      same_length(outputs, Tensors(static_cast<std::size_t>(size_)));
      for (const Tensors& list : outputs) same_length(list, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        Tensors row;
        for (const Tensors& list : outputs) row.push_back(list[i]);
        add_all_gather(call, call.in(inputs[i]), call.out_row(list_of_ranks(row, inputs[i])));
      }
    });
  }

  WorkRef gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return start(c10d::OpType::GATHER, "duet:gather", options.timeout, [&](C10dCall& call) {
      const int root = rank_of(options.rootRank);
      same_length(inputs, Tensors(1));
      const ddp::Buffer in = call.in(inputs[0]);
      const ddp::Buffer out =
          at_root(outputs, root, rank_) ? call.out_row(list_of_ranks(outputs[0], inputs[0])) : empty_like(in);
      call.add([in, out, root](ddp::ProcessGroup& group) { return group.gather(in, out, root); });
    });
  }

  WorkRef scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    return start(c10d::OpType::SCATTER, "duet:scatter", options.timeout, [&](C10dCall& call) {
      const int root = rank_of(options.rootRank);
      same_length(outputs, Tensors(1));
      const ddp::Buffer out = call.in_place(outputs[0]);
      const ddp::Buffer in =
          at_root(inputs, root, rank_) ? call.in_row(list_of_ranks(inputs[0], outputs[0])) : empty_like(out);
      call.add([in, out, root](ddp::ProcessGroup& group) { return group.scatter(in, out, root); });
    });
  }

  WorkRef reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override {
    return start(c10d::OpType::REDUCE_SCATTER, "duet:reduce_scatter", options.timeout, [&](C10dCall& call) {
      same_length(outputs, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        add_reduce_scatter(call, call.in_row(list_of_ranks(inputs[i], outputs[i]), Elements::reduced),
                           call.in_place(outputs[i]), options.reduceOp);
    });
  }
  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkRef reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return start(c10d::OpType::_REDUCE_SCATTER_BASE, "duet:reduce_scatter", options.timeout, [&](C10dCall& call) {
      same_length(outputs, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        same_dtype(outputs[i], inputs[i]);
        add_reduce_scatter(call, call.in(inputs[i], Elements::reduced), call.in_place(outputs[i]), options.reduceOp);
      }
    });
  }

  /// Splits of unequal size, or given ones, travel as messages, of which ranks do not check the order.
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    if (!output_sizes.empty() || !input_sizes.empty()) {
      Tensors outputs = pieces_of(output, output_sizes, size_), inputs = pieces_of(input, input_sizes, size_);
      return exchange(outputs, inputs, {output}, options);
    }
    return start(c10d::OpType::ALLTOALL_BASE, "duet:all_to_all", options.timeout, [&](C10dCall& call) {
      same_dtype(output, input);
      call.add([in = call.in(input), out = call.in_place(output)](ddp::ProcessGroup& group) {
        return group.all_to_all(in, out);
      });
    });
  }
  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return exchange(outputs, inputs, outputs, options);
  }

  WorkRef send(Tensors& tensors, int to, int tag) override {
    return start(c10d::OpType::SEND, "duet:send", c10d::kUnsetTimeout, [&](C10dCall& call) {
      call.parts().message = true;
      same_length(tensors, Tensors(1));
      add_send(call, tensors[0], to, tag);
    });
  }
  WorkRef recv(Tensors& tensors, int from, int tag) override {
    return start(c10d::OpType::RECV, "duet:recv", c10d::kUnsetTimeout, [&](C10dCall& call) {
      call.parts().message = true;
      same_length(tensors, Tensors(1));
      add_recv(call, tensors[0], from, tag);
    });
  }

  WorkRef barrier(const c10d::BarrierOptions& options) override {
    return start(c10d::OpType::BARRIER, "duet:barrier", options.timeout,
                 [&](C10dCall& call) { call.add([](ddp::ProcessGroup& group) { return group.barrier(); }); });
  }
  /// Names all ranks that don't come, on each rank that waits; the group continues after the error.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) override {
    with_torch_errors([&] {
      const auto group = [&] {
        const std::lock_guard lock(mutex_);
        return group_;
      }();
      require<UsageError>(group != nullptr, "duet:monitored_barrier: the process group has been shut down");
      const auto store = group->store();
      require<UsageError>(store != nullptr, "duet:monitored_barrier: the process group has no store");
      group->monitored_barrier(options.timeout < kNoTimeout ? store->timeout() : options.timeout);
    });
  }

 private:
  static constexpr int kAllToAllTag = -1;  // users' tags are not negative

  /// Makes the call that `body` describes.
  template <class Body>
  WorkRef start(c10d::OpType type, const char* title, std::chrono::milliseconds timeout, const Body& body) {
    const std::lock_guard lock(mutex_);
    const at::NoGradGuard no_grad;
    return with_torch_errors([&]() -> WorkRef {
      require<UsageError>(group_ != nullptr, title, ": the process group has been shut down");
      C10dCall call;
      call.parts().timeout = timeout;
      try {
        body(call);
      } catch (const Error&) {
        rethrow_with_prefix(concat(title, ": "));
      }
      const bool message = call.parts().message;
      if (!message) ++collectives_;
      auto work = c10::make_intrusive<C10dWork>(type, title, std::move(call.parts()), queue_);
      std::erase_if(in_flight_, [](const auto& earlier) { return earlier->over(); });
      in_flight_.push_back(work);
      if (!message && queue_->busy() && !queue_->is_here()) {
        const auto self = c10::intrusive_ptr<C10dBackend>::unsafe_reclaim_from_nonowning(this);
        const bool added = queue_->add([self, work] {
          const std::lock_guard later(self->mutex_);
          work->start(self->group_.get());
        });
        require<UsageError>(added, title, ": the process group is being shut down");
        return work;
      }
      work->start(group_.get());
      work->check_start();
      return work;
    });
  }

  /// An all_to_all by messages.
  WorkRef exchange(Tensors& outputs, Tensors& inputs, const Tensors& results, const c10d::AllToAllOptions& options) {
    return start(c10d::OpType::ALLTOALL, "duet:all_to_all", options.timeout, [&](C10dCall& call) {
      same_length(outputs, Tensors(static_cast<std::size_t>(size_)));
      same_length(inputs, outputs);
      for (int peer = 0; peer < size_; ++peer) {
        const auto place = static_cast<std::size_t>(peer);
        same_dtype(outputs[place], inputs[place]);
        if (peer == rank_) {
          outputs[place].copy_(inputs[place]);
          continue;
        }
        if (inputs[place].numel() > 0) add_send(call, inputs[place], peer, kAllToAllTag);
        if (outputs[place].numel() > 0) add_recv(call, outputs[place], peer, kAllToAllTag);
      }
      call.parts().results = results;
    });
  }

  static void add_all_gather(C10dCall& call, const ddp::Buffer& in, const ddp::Buffer& out) {
    call.add([in, out](ddp::ProcessGroup& group) { return group.all_gather(in, out); });
  }
  static void add_reduce_scatter(C10dCall& call, const ddp::Buffer& in, const ddp::Buffer& out,
                                 const c10d::ReduceOp& op) {
    call.add([in, out, as = reduce_op(op)](ddp::ProcessGroup& group) { return group.reduce_scatter(in, out, as); });
  }
  static void add_send(C10dCall& call, const at::Tensor& tensor, int to, int tag) {
    call.add([buffer = call.in(tensor), to, tag](ddp::ProcessGroup& group) { return group.send(buffer, to, tag); });
  }
  static void add_recv(C10dCall& call, const at::Tensor& tensor, int from, int tag) {
    call.add([buffer = call.in_place(tensor), from, tag](ddp::ProcessGroup& group) {
      return group.recv(buffer, from, tag);
    });
  }

  int rank_of(std::int64_t rank) const {
    require<UsageError>(rank >= 0 && rank < size_, "invalid root rank: ", rank, " of ", size_);
    return static_cast<int>(rank);
  }

  /// The list of the ranks' tensors, each like `one`.
  const Tensors& list_of_ranks(const Tensors& list, const at::Tensor& one) const {
    require<UsageError>(list.size() == static_cast<std::size_t>(size_), "got a list of ", list.size(),
                        " tensors, expected one for each of ", size_, " ranks");
    same_dtype(list[0], one);
    return list;
  }

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<ddp::ProcessGroup> group_;
  std::vector<c10::intrusive_ptr<C10dWork>> in_flight_;  // their tensors are in use
  std::atomic<std::uint64_t> collectives_{0};
  const std::shared_ptr<CallQueue> queue_ = std::make_shared<CallQueue>();
};

/// Joins the ranks that call this with the same store, which has no other use. `options` as of init_process_group().
/// Throws c10::ValueError and c10::DistBackendError.
inline c10::intrusive_ptr<C10dBackend> make_c10d_backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                         const ddp::InitOptions& options = {}) {
  return with_torch_errors([&] {
    return c10::make_intrusive<C10dBackend>(
        ddp::init_process_group(std::make_shared<C10dStore>(std::move(store)), rank, size, options));
  });
}

/// c10d's process group over a duet group: what c10d::Reducer takes.
inline c10::intrusive_ptr<c10d::ProcessGroup> make_c10d_group(std::unique_ptr<ddp::ProcessGroup> group) {
  auto all = c10::make_intrusive<c10d::ProcessGroup>(group->rank(), group->size());
  all->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                  c10::make_intrusive<C10dBackend>(std::move(group)));
  all->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return all;
}

}  // namespace duet::torch
