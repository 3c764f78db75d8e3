// DataParallel for LibTorch modules: one process, a replica of the module per device, which stays, and a thread each.
//
// Include <torch/torch.h> before. In programs that use this, `using namespace duet` makes the name `torch` ambiguous.
#pragma once

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/base/threads.h"
#include "lib/device.h"
#include "lib/error.h"
#include "torch/device_order.h"
#include "torch/replica_gather.h"
#include "torch/tensors.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// Cuts each batch along dimension 0 into a piece per device, as torch::nn::parallel::data_parallel does, runs a
/// replica of the module on each in a thread of its own, and joins the outputs. Backward runs the replicas' tapes side
/// by side; the sum of their gradients reaches the module's parameters as any other gradient would. Few rows use fewer
/// replicas.
///
/// Devices are CPUs, "cpu:0" and so on, on which replicas share the module's parameters; or GPUs, where module and
/// replicas are moved to, forward gives each its rows and the values of the module's parameters, and outputs and
/// gradients come to the first GPU. Replicas have gradients and buffers of their own: before each forward they get the
/// module's buffers, and only those of the module, which is the first replica, keep what forward changes. What else a
/// forward reads is each replica's own. All replicas draw random numbers from LibTorch's one generator, in an order
/// that is not fixed: dropout differs from run to run. LibTorch's own threads are in addition:
/// at::set_num_threads(cores / devices).
///
/// Used by one thread at a time, which is the first device's. A second backward through the same outputs is an error.
template <AnyModuleType Module>
class DataParallel {
 public:
  /// factory() makes a module of the same kind each time, a holder, a shared_ptr or a TorchScript module; the first one
  /// is module(). Throws UsageError for no device, a device named twice, and for modules that differ; DeviceError for
  /// devices of two kinds, logical ones, and modules that are on a GPU where the devices are CPUs.
  template <class Factory>
  requires(!ModuleHandle<Factory>) DataParallel(const Factory& factory, const std::vector<Device>& devices)
      : devices_(checked(devices)), pool_(static_cast<int>(devices.size())) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      auto module = factory();
      add_replica(shared_module(module));
    }
  }
  /// Replicas are made by the module's clone(), which torch::nn::Cloneable has, or by TorchScript's deepcopy().
  template <ModuleHandle Given>
  DataParallel(Given&& module, const std::vector<Device>& devices)
      : devices_(checked(devices)), pool_(static_cast<int>(devices.size())) {
    add_replica(shared_module(module));
    while (replicas_.size() < devices_.size()) add_replica(copy_of(*replicas_[0].module));
  }

  Module& module() { return *replicas_[0].module; }
  Module* operator->() { return replicas_[0].module.get(); }

  /// Runs the module's forward in each replica on a piece of the inputs, and joins the outputs, which are tensors, or
  /// tuples, vectors and the like of tensors. Inputs that are no tensors go to all replicas as they are. What a replica
  /// throws passes through as an Error that names replica and device.
  template <class... Inputs>
  auto forward(const Inputs&... inputs) {
    std::vector<std::tuple<Inputs...>> pieces = scatter(inputs...);
    using Output = decltype(run_replica(0, pieces[0]));
    if (pieces.size() == 1) return run_replica(0, pieces[0]);
    const auto step = c10::make_intrusive<ReplicaStep>();
    step->run = [this](std::size_t count, const ReplicaTask& task) { side_by_side(count, task); };
    step->replicas.resize(pieces.size());
    std::vector<at::Tensor> leaves = refresh(*step);
    const auto add_leaf = [&](at::Tensor& input) {
      if (!input.requires_grad()) return;
      leaves.push_back(input);
      step->input_devices.push_back(input.device());
    };
    (visit_copy(inputs, add_leaf), ...);
    std::vector<std::optional<Output>> outputs(pieces.size());
    const at::ThreadLocalState state;  // such as whether gradients are wanted
    side_by_side(pieces.size(), [&](std::size_t i) {
      const at::ThreadLocalStateGuard guard(state);
      ReplicaStep::Replica& replica = step->replicas[i];
      visit_tensors(pieces[i], [&](at::Tensor& piece) {
        if (!piece.requires_grad()) return;
        piece = piece.detach().requires_grad_();
        replica.inputs.push_back(piece);
      });
      outputs[i].emplace(run_replica(i, pieces[i]));
      visit_tensors(*outputs[i], [&](at::Tensor& output) { replica.outputs.push_back(output); });
    });
    step->require_same_outputs();
    const auto joined = ReplicaGather::apply(step, at::TensorList(leaves));
    std::size_t next = 0;
    visit_tensors(*outputs[0], [&](at::Tensor& output) { output = joined[next++]; });
    return std::move(*outputs[0]);
  }
  at::IValue forward(const std::vector<at::IValue>& inputs) requires std::same_as<Module, ScriptModule> {
    return forward<std::vector<at::IValue>>(inputs);
  }
  template <class... Inputs>
  auto operator()(const Inputs&... inputs) {
    return forward(inputs...);
  }

 private:
  struct Replica {
    std::shared_ptr<Module> module;
    ModuleTensors tensors;
  };

  static const std::vector<Device>& checked(const std::vector<Device>& devices) {
    require<UsageError>(!devices.empty(), "DataParallel needs at least one device");
    for (std::size_t i = 0; i < devices.size(); ++i) {
      require<DeviceError>(devices[i].kind == devices[0].kind, "DataParallel got ", devices[0], " and ", devices[i],
                           ", expected devices of one kind");
      for (std::size_t other = 0; other < i; ++other)
        require<UsageError>(devices[i] != devices[other], "device ", devices[i], " is named twice");
    }
    return devices;
  }

  static std::shared_ptr<Module> copy_of(const Module& module) {
    if constexpr (std::same_as<Module, ScriptModule>)
      return std::make_shared<ScriptModule>(module.deepcopy());
    else
      return std::dynamic_pointer_cast<Module>(module.clone());
  }

  void add_replica(std::shared_ptr<Module> module) {
    const at::Device device = torch_device(devices_[replicas_.size()]);
    if (device.is_cuda()) move_to(*module, device);
    Replica replica{module, tensors_of(*module)};
    const auto check = [&](const std::vector<NamedTensorRef>& own, const std::vector<NamedTensorRef>& first) {
      require<UsageError>(own.size() == first.size(), "replica ", replicas_.size(), " has ", own.size(),
                          " tensors where the module has ", first.size());
      for (std::size_t i = 0; i < own.size(); ++i) {
        require_dense(own[i]);
        require<DeviceError>(own[i].value.device() == device, own[i].name, " is on ", own[i].value.device().str(),
                             ", but replica ", replicas_.size(), " computes on ", device.str());
        require<UsageError>(own[i].name == first[i].name && shape_text(own[i].value) == shape_text(first[i].value),
                            "replica ", replicas_.size(), " has ", own[i].name, " ", shape_text(own[i].value),
                            " where the module has ", first[i].name, " ", shape_text(first[i].value));
      }
    };
    const ModuleTensors& first = replicas_.empty() ? replica.tensors : replicas_[0].tensors;
    check(replica.tensors.parameters, first.parameters);
    check(replica.tensors.buffers, first.buffers);
    replicas_.push_back(std::move(replica));
  }

  /// Cuts all tensors in the inputs alike, as chunk() does along dimension 0, one piece per device at most.
  template <class... Inputs>
  std::vector<std::tuple<Inputs...>> scatter(const Inputs&... inputs) const {
    const std::int64_t rows = rows_of(inputs...), devices = static_cast<std::int64_t>(devices_.size());
    const std::int64_t most = std::max<std::int64_t>(1, (rows + devices - 1) / devices);
    const std::int64_t count = std::max<std::int64_t>(1, (rows + most - 1) / most);
    std::vector<std::tuple<Inputs...>> pieces;
    for (std::int64_t i = 0; i < count; ++i) {
      pieces.emplace_back(inputs...);
      const at::Device device = torch_device(devices_[static_cast<std::size_t>(i)]);
      visit_tensors(pieces.back(), [&](at::Tensor& tensor) {
        require<UsageError>(count == 1 || (tensor.dim() > 0 && tensor.size(0) == rows), "an input of DataParallel is ",
                            shape_text(tensor), ", expected the ", rows, " rows of the first one");
        if (count > 1) tensor = tensor.narrow(0, i * most, std::min(most, rows - i * most));
        tensor = tensor.to(device);
      });
    }
    return pieces;
  }

  template <class... Inputs>
  auto run_replica(std::size_t i, std::tuple<Inputs...>& inputs) {
    return std::apply([&](auto&... values) { return call(*replicas_[i].module, values...); }, inputs);
  }

  /// Runs task(i) in the thread of replica i, on its device and with the calling thread's current streams.
  void side_by_side(std::size_t count, const ReplicaTask& task) {
    std::vector<c10::Stream> streams;
    for (const Device own : devices_)
      streams.push_back(c10::impl::VirtualGuardImpl(torch_device(own).type()).getStream(torch_device(own)));
    pool_.run(static_cast<int>(devices_.size()), [&](int i, int) {
      const auto replica = static_cast<std::size_t>(i);
      if (replica < count)
        with_prefix([&] { return concat("replica ", i, " on device ", devices_[replica], ": "); },
                    [&] {
                      const c10::MultiStreamGuard current(streams);  // on all devices: gradients come from the first
                      const c10::StreamGuard guard(streams[replica]);
                      task(replica);
                    });
    });
  }

  /// Gives the replicas the module's values, and the step the leaves of their tapes. Returns the module's parameters.
  std::vector<at::Tensor> refresh(ReplicaStep& step) {
    const at::NoGradGuard no_grad;
    const ModuleTensors& first = replicas_[0].tensors;
    std::vector<at::Tensor> leaves;
    for (std::size_t p = 0; p < first.parameters.size(); ++p) {
      const at::Tensor& value = first.parameters[p].value;
      for (std::size_t i = 1; i < replicas_.size(); ++i) {
        at::Tensor own = replicas_[i].tensors.parameters[p].value;
        if (own.data_ptr() != value.data_ptr()) own.set_data(value.to(own.device()));
        own.set_requires_grad(value.requires_grad());
      }
      if (!value.requires_grad()) continue;
      leaves.push_back(value);
      step.parameters.push_back(first.parameters[p]);
      step.versions.push_back(value._version());
      for (std::size_t i = 0; i < step.replicas.size(); ++i)
        step.replicas[i].parameters.push_back(replicas_[i].tensors.parameters[p].value);
    }
    for (std::size_t i = 1; i < step.replicas.size(); ++i) {
      replicas_[i].module->train(replicas_[0].module->is_training());
      for (std::size_t b = 0; b < first.buffers.size(); ++b)
        replicas_[i].tensors.buffers[b].value.copy_(first.buffers[b].value);
    }
    return leaves;
  }

  std::vector<Device> devices_;
  std::vector<Replica> replicas_;
  ThreadPool pool_;
};

/// The class of the modules that a factory makes. Of a handle there is none: clang 14 substitutes before it looks at
/// constraints, and a holder's call operator is an error without arguments.
template <class Factory>
struct MadeBy {
  using Module = ModuleOf<std::invoke_result_t<Factory>>;
};
template <ModuleHandle Handle>
struct MadeBy<Handle> {};

template <ModuleHandle Given>
DataParallel(Given&&, const std::vector<Device>&) -> DataParallel<ModuleOf<Given>>;
template <class Factory>
DataParallel(const Factory&, const std::vector<Device>&) -> DataParallel<typename MadeBy<Factory>::Module>;

}  // namespace duet::torch
