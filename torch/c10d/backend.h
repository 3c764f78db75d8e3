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
#include "torch/c10d/call.h"
#include "torch/c10d/errors.h"
#include "torch/c10d/store.h"
#include "torch/c10d/work.h"

namespace duet::torch {

/// Collectives and messages of dense CPU tensors, as duet's ProcessGroup has them: ranks that disagree about a call, a
/// lost rank and a timeout are named on every rank, and end the group. Strides may be any. Dtypes that duet has not
/// (bool, int8, complex) are moved, but not reduced; BAND, BOR, BXOR, PREMUL_SUM, recv from any rank and sparse
/// tensors are errors. Wrong arguments throw c10::ValueError, all else c10::DistBackendError from wait().
/// Collectives run when their Work is waited for, or in the background for a future. A message runs when its Work is
/// waited for; without that its tensor is kept as long as the group. Thread-safe, but ranks must make their calls in
/// the same order.
class C10dBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkRef = c10::intrusive_ptr<c10d::Work>;

  explicit C10dBackend(std::unique_ptr<ddp::ProcessGroup> group)
      : Backend(group->rank(), group->size()), group_(std::move(group)) {}
  ~C10dBackend() override { shutdown(); }

  const std::string getBackendName() const override { return "duet"; }
  /// Of collectives so far.
  std::uint64_t getSequenceNumberForGroup() override { return collectives_; }

  /// Ends what was started, and the group. Every later call throws.
  void shutdown() override {
    background_->stop();
    const std::lock_guard lock(mutex_);
    group_ = nullptr;
    in_flight_.clear();
  }

  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return start(c10d::OpType::BROADCAST, "duet:broadcast", options.timeout, [&](C10dCall& call) {
      for (const at::Tensor& tensor : tensors)
        call.add(group_->broadcast(call.in_place(tensor), rank_of(options.rootRank)));
    });
  }

  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return start(c10d::OpType::ALLREDUCE, "duet:all_reduce", options.timeout, [&](C10dCall& call) {
      for (const at::Tensor& tensor : tensors)
        call.add(group_->all_reduce(call.in_place(tensor, Elements::reduced), reduce_op(options.reduceOp)));
    });
  }
  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return allreduce(tensors, options);
  }

  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return start(c10d::OpType::REDUCE, "duet:reduce", options.timeout, [&](C10dCall& call) {
      for (const at::Tensor& tensor : tensors)
        call.add(group_->reduce(call.in_place(tensor, Elements::reduced), rank_of(options.rootRank),
                                reduce_op(options.reduceOp)));
    });
  }

  WorkRef allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return start(c10d::OpType::ALLGATHER, "duet:all_gather", options.timeout, [&](C10dCall& call) {
      same_length(outputs, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        call.add(group_->all_gather(call.in(inputs[i]), call.out_row(list_of_ranks(outputs[i], inputs[i]))));
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
        call.add(group_->all_gather(call.in(inputs[i]), call.in_place(outputs[i])));
      }
    });
  }

  WorkRef gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return start(c10d::OpType::GATHER, "duet:gather", options.timeout, [&](C10dCall& call) {
      const int root = rank_of(options.rootRank);
      same_length(inputs, Tensors(1));
      const ddp::Buffer in = call.in(inputs[0]);
      call.add(group_->gather(
          in, at_root(outputs, root) ? call.out_row(list_of_ranks(outputs[0], inputs[0])) : empty_like(in), root));
    });
  }

  WorkRef scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    return start(c10d::OpType::SCATTER, "duet:scatter", options.timeout, [&](C10dCall& call) {
      const int root = rank_of(options.rootRank);
      same_length(outputs, Tensors(1));
      const ddp::Buffer out = call.in_place(outputs[0]);
      call.add(group_->scatter(
          at_root(inputs, root) ? call.in_row(list_of_ranks(inputs[0], outputs[0])) : empty_like(out), out, root));
    });
  }

  WorkRef reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override {
    return start(c10d::OpType::REDUCE_SCATTER, "duet:reduce_scatter", options.timeout, [&](C10dCall& call) {
      same_length(outputs, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        call.add(group_->reduce_scatter(call.in_row(list_of_ranks(inputs[i], outputs[i]), Elements::reduced),
                                        call.in_place(outputs[i]), reduce_op(options.reduceOp)));
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
        call.add(group_->reduce_scatter(call.in(inputs[i], Elements::reduced), call.in_place(outputs[i]),
                                        reduce_op(options.reduceOp)));
      }
    });
  }

  /// Splits of unequal size, or given ones, travel as messages, of which ranks do not check the order.
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    if (!output_sizes.empty() || !input_sizes.empty()) {
      Tensors outputs = pieces_of(output, output_sizes), inputs = pieces_of(input, input_sizes);
      return alltoall(outputs, inputs, options);
    }
    return start(c10d::OpType::ALLTOALL_BASE, "duet:all_to_all", options.timeout, [&](C10dCall& call) {
      same_dtype(output, input);
      call.add(group_->all_to_all(call.in(input), call.in_place(output)));
    });
  }
  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return start(c10d::OpType::ALLTOALL, "duet:all_to_all", options.timeout, [&](C10dCall& call) {
      call.parts().message = true;
      same_length(outputs, Tensors(static_cast<std::size_t>(size_)));
      same_length(inputs, outputs);
      for (int peer = 0; peer < size_; ++peer) {
        const auto place = static_cast<std::size_t>(peer);
        same_dtype(outputs[place], inputs[place]);
        if (peer == rank_) {
          outputs[place].copy_(inputs[place]);
          continue;
        }
        if (inputs[place].numel() > 0) call.add(group_->send(call.in(inputs[place]), peer, kAllToAllTag));
        if (outputs[place].numel() > 0) call.add(group_->recv(call.in_place(outputs[place]), peer, kAllToAllTag));
      }
    });
  }

  WorkRef send(Tensors& tensors, int to, int tag) override {
    return start(c10d::OpType::SEND, "duet:send", c10d::kUnsetTimeout, [&](C10dCall& call) {
      call.parts().message = true;
      same_length(tensors, Tensors(1));
      call.add(group_->send(call.in(tensors[0]), to, tag));
    });
  }
  WorkRef recv(Tensors& tensors, int from, int tag) override {
    return start(c10d::OpType::RECV, "duet:recv", c10d::kUnsetTimeout, [&](C10dCall& call) {
      call.parts().message = true;
      same_length(tensors, Tensors(1));
      call.add(group_->recv(call.in_place(tensors[0]), from, tag));
    });
  }

  WorkRef barrier(const c10d::BarrierOptions& options) override {
    return start(c10d::OpType::BARRIER, "duet:barrier", options.timeout,
                 [&](C10dCall& call) { call.add(group_->barrier()); });
  }

 private:
  static constexpr int kAllToAllTag = -1;  // users' tags are not negative

  /// Makes a call by `body`, with the group.
  template <class Body>
  WorkRef start(c10d::OpType type, const char* title, std::chrono::milliseconds timeout, const Body& body) {
    const std::lock_guard lock(mutex_);
    const at::NoGradGuard no_grad;
    C10dCall call;
    call.parts().timeout = timeout;
    const auto flies = [&] {
      auto work = c10::make_intrusive<C10dWork>(type, title, std::move(call.parts()), background_);
      std::erase_if(in_flight_, [](const auto& earlier) { return earlier->over(); });
      in_flight_.push_back(work);
      return work;
    };
    return with_torch_errors([&]() -> WorkRef {
      require<UsageError>(group_ != nullptr, title, ": the process group has been shut down");
      try {
        body(call);
      } catch (const Error&) {
        flies();  // what was started before uses the memory
        rethrow_with_prefix(concat(title, ": "));
      } catch (...) {
        flies();
        throw;
      }
      if (!call.parts().message) ++collectives_;
      return flies();
    });
  }

  static ddp::ReduceOp reduce_op(const c10d::ReduceOp& op) {
    switch (op.op_) {
      case c10d::ReduceOp::SUM: return ddp::ReduceOp::sum;
      case c10d::ReduceOp::AVG: return ddp::ReduceOp::avg;
      case c10d::ReduceOp::PRODUCT: return ddp::ReduceOp::product;
      case c10d::ReduceOp::MIN: return ddp::ReduceOp::min;
      case c10d::ReduceOp::MAX: return ddp::ReduceOp::max;
      case c10d::ReduceOp::BAND: throw UsageError("duet has no ReduceOp BAND");
      case c10d::ReduceOp::BOR: throw UsageError("duet has no ReduceOp BOR");
      case c10d::ReduceOp::BXOR: throw UsageError("duet has no ReduceOp BXOR");
      case c10d::ReduceOp::PREMUL_SUM: throw UsageError("duet has no ReduceOp PREMUL_SUM");
      case c10d::ReduceOp::UNUSED: break;
    }
    throw UsageError(concat("duet has no ReduceOp ", static_cast<int>(op.op_)));
  }

  int rank_of(std::int64_t rank) const {
    require<UsageError>(rank >= 0 && rank < size_, "invalid root rank: ", rank, " of ", size_);
    return static_cast<int>(rank);
  }

  static ddp::Buffer empty_like(const ddp::Buffer& buffer) { return {nullptr, 0, buffer.dtype}; }

  template <class Lefts, class Rights>
  static void same_length(const Lefts& lefts, const Rights& rights) {
    require<UsageError>(lefts.size() == rights.size(), "got ", lefts.size(), " tensors or lists, expected ",
                        rights.size());
  }
  static void same_dtype(const at::Tensor& output, const at::Tensor& input) {
    require<UsageError>(output.scalar_type() == input.scalar_type(), "the output is ", output.scalar_type(),
                        ", the input ", input.scalar_type());
  }
  /// The list of the ranks' tensors, each like `one`.
  const Tensors& list_of_ranks(const Tensors& list, const at::Tensor& one) const {
    require<UsageError>(list.size() == static_cast<std::size_t>(size_), "got a list of ", list.size(),
                        " tensors, expected one for each of ", size_, " ranks");
    same_dtype(list[0], one);
    return list;
  }
  /// Whether this rank is the root, which alone has a list.
  bool at_root(const Lists& lists, int root) const {
    require<UsageError>(lists.size() == (rank_ == root ? 1U : 0U), "got ", lists.size(), " lists on rank ", rank_,
                        ", expected one on the root only, rank ", root);
    return rank_ == root;
  }

  /// Pieces along the first dimension; of equal size where no sizes are given.
  Tensors pieces_of(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes) const {
    const bool fits = sizes.empty() ? tensor.dim() > 0 && tensor.size(0) % size_ == 0
                                    : sizes.size() == static_cast<std::size_t>(size_);
    if (!fits)
      C10_THROW_ERROR(ValueError, concat("duet:all_to_all: ", tensor.sizes(), " is not split into ", size_, " by ",
                                         sizes.size(), " sizes"));
    return sizes.empty() ? tensor.split(tensor.size(0) / size_) : tensor.split_with_sizes(sizes);
  }

  std::mutex mutex_;  // of what follows
  std::unique_ptr<ddp::ProcessGroup> group_;
  std::vector<c10::intrusive_ptr<C10dWork>> in_flight_;  // their tensors are in use
  std::atomic<std::uint64_t> collectives_{0};
  const std::shared_ptr<BackgroundThread> background_ = std::make_shared<BackgroundThread>();
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
