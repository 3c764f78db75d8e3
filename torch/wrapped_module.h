// What the wrappers ask of a module: LibTorch's own classes, those that users derive, and TorchScript's.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/error.h"
#include "torch/tensors.h"

namespace duet::torch {

using ScriptModule = ::torch::jit::Module;

template <class T>
concept NnModule = std::derived_from<T, ::torch::nn::Module>;
template <class T>
concept NnModuleHolder = std::is_base_of_v<::torch::detail::ModuleHolderIndicator, T>;  // a private base
template <class T>
concept AnyModuleType = NnModule<T> || std::same_as<T, ScriptModule>;

/// The module that a holder holds, shared; one that is given by reference is borrowed. A TorchScript module is a
/// reference already.
template <NnModuleHolder Holder>
std::shared_ptr<typename Holder::ContainedType> shared_module(Holder& holder) {
  return holder.ptr();
}
template <NnModule Module>
std::shared_ptr<Module> shared_module(Module& module) {
  return std::shared_ptr<Module>(std::shared_ptr<Module>(), &module);
}
template <AnyModuleType Module>
std::shared_ptr<Module> shared_module(const std::shared_ptr<Module>& module) {
  return module;
}
inline std::shared_ptr<ScriptModule> shared_module(ScriptModule& module) {
  return std::make_shared<ScriptModule>(module);
}

template <class T>
concept ModuleHandle = requires(T& given) {
  shared_module(given);
};
/// The class of module that a wrapper of `T` calls.
template <ModuleHandle T>
using ModuleOf = typename decltype(shared_module(std::declval<T&>()))::element_type;

/// In the order of registration. A tensor that is registered twice is listed once, under its first name.
struct ModuleTensors {
  std::vector<NamedTensorRef> parameters, buffers;
};

inline void add_once(std::vector<NamedTensorRef>& list, const std::string& name, const at::Tensor& value) {
  for (const NamedTensorRef& other : list)
    if (other.value.is_same(value)) return;
  list.push_back({name, value});
}

inline ModuleTensors tensors_of(const ::torch::nn::Module& module) {
  ModuleTensors tensors;
  for (const auto& item : module.named_parameters()) add_once(tensors.parameters, item.key(), item.value());
  for (const auto& item : module.named_buffers()) add_once(tensors.buffers, item.key(), item.value());
  return tensors;
}

inline ModuleTensors tensors_of(const ScriptModule& module) {
  ModuleTensors tensors;
  for (const auto& item : module.named_parameters()) add_once(tensors.parameters, item.name, item.value);
  for (const auto& item : module.named_buffers()) add_once(tensors.buffers, item.name, item.value);
  return tensors;
}

template <NnModule Module, class... Inputs>
decltype(auto) call(Module& module, Inputs&&... inputs) {
  return module.forward(std::forward<Inputs>(inputs)...);
}

/// Moves the module's tensors, which stay the same objects. Throws DeviceError where LibTorch cannot.
template <AnyModuleType Module>
void move_to(Module& module, const at::Device& device) {
  using Base = std::conditional_t<std::same_as<Module, ScriptModule>, ScriptModule, ::torch::nn::Module>;
  try {
    static_cast<Base&>(module).to(device);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace(), why = device.is_cuda() ? why_no_cuda() : "";
    require<DeviceError>(why.empty(), "no CUDA device: ", why);
    // Behind it is a list of all backends.
    throw DeviceError(concat("LibTorch: ", text.substr(0, text.find(". This could be because"))));
  }
}

/// The inputs of a TorchScript module become its list of values; such a list is taken as it is. Runs without LibTorch's
/// graph optimiser, whose second run of a module has other bits than its first, and which hangs in Debian 13's 2.6.
template <class... Inputs>
at::IValue call(ScriptModule& module, Inputs&&... inputs) {
  const ::torch::jit::GraphOptimizerEnabledGuard without_optimiser(false);
  if constexpr ((std::is_same_v<std::remove_cvref_t<Inputs>, std::vector<at::IValue>> && ...) && sizeof...(Inputs) == 1)
    return module.forward(std::forward<Inputs>(inputs)...);
  else
    return module.forward({at::IValue(std::forward<Inputs>(inputs))...});
}

/// Calls visit(at::Tensor&) for each tensor in a value, in order: a tensor, tuples, vectors and optionals of such, and
/// TorchScript's tuples, lists and dictionaries of tensors. Of other types there are none in it.
template <class T, class Visit>
void visit_tensors(T& value, const Visit& visit);

template <class Visit>
void visit_script_value(at::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    at::Tensor tensor = value.toTensor();
    visit(tensor);
    value = tensor;
  } else if (value.isTuple()) {
    std::vector<at::IValue> elements = value.toTupleRef().elements().vec();
    for (at::IValue& element : elements) visit_script_value(element, visit);
    value = c10::ivalue::Tuple::create(std::move(elements));
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) visit(tensor);
    value = tensors;
  } else if (value.isGenericDict()) {
    const auto dictionary = value.toGenericDict().copy();
    for (const auto& entry : dictionary) {
      at::IValue element = entry.value();
      visit_script_value(element, visit);
      entry.setValue(element);
    }
    value = dictionary;
  }
}

template <class Visit, class... Parts>
void visit_tensors_of(std::tuple<Parts...>& value, const Visit& visit) {
  std::apply([&](auto&... parts) { (visit_tensors(parts, visit), ...); }, value);
}
template <class Visit, class A, class B>
void visit_tensors_of(std::pair<A, B>& value, const Visit& visit) {
  visit_tensors(value.first, visit);
  visit_tensors(value.second, visit);
}
template <class Visit, class T>
void visit_tensors_of(std::vector<T>& value, const Visit& visit) {
  for (T& part : value) visit_tensors(part, visit);
}
template <class Visit, class T>
void visit_tensors_of(std::optional<T>& value, const Visit& visit) {
  if (value) visit_tensors(*value, visit);
}

template <class T, class Visit>
void visit_tensors(T& value, const Visit& visit) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (value.defined()) visit(value);
  } else if constexpr (std::is_same_v<T, at::IValue>) {
    visit_script_value(value, visit);
  } else if constexpr (requires { visit_tensors_of(value, visit); }) {
    visit_tensors_of(value, visit);
  }
}

template <class T, class Visit>
void visit_copy(T value, const Visit& visit) {
  visit_tensors(value, visit);
}

/// Dimension 0 of the first tensor in the inputs; 1 where there is none.
template <class... Inputs>
std::int64_t rows_of(const Inputs&... inputs) {
  std::optional<std::int64_t> rows;
  const auto note = [&](const at::Tensor& tensor) {
    if (!rows) rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  };
  (visit_copy(inputs, note), ...);
  return rows.value_or(1);
}

}  // namespace duet::torch
