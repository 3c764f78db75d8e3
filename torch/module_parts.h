// A module of LibTorch as parts of a duet model: names, initial values and order of all its tensors.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/error.h"
#include "lib/nn/module.h"
#include "lib/random.h"
#include "lib/tensor.h"
#include "torch/tensors.h"
#include "torch/wrapped_module.h"

namespace duet::torch {

/// The tensors of one part of a module, and its parts. A parameter that takes no gradient counts as a buffer; a tensor
/// that is registered twice is listed where it is met first.
struct ModuleTree {
  std::string type;  // "Conv2d"
  std::string name;  // in the module that has it
  std::vector<NamedTensorRef> parameters, buffers;
  std::vector<ModuleTree> children;
};

/// Adds the tree's tensors, parameters and buffers apart, in the order in which duet registers them.
inline void append_tensors(const ModuleTree& tree, std::vector<at::Tensor>& parameters,
                           std::vector<at::Tensor>& buffers) {
  for (const NamedTensorRef& own : tree.parameters) parameters.push_back(own.value);
  for (const NamedTensorRef& own : tree.buffers) buffers.push_back(own.value);
  for (const ModuleTree& child : tree.children) append_tensors(child, parameters, buffers);
}

/// Collects trees; one object for one module.
class TreeWalk {
 public:
  ModuleTree walk(const ::torch::nn::Module& module, const std::string& name = "") {
    ModuleTree tree{.type = short_name(module.name()), .name = name, .parameters = {}, .buffers = {}, .children = {}};
    for (const auto& item : module.named_parameters(false)) add(tree, item.key(), item.value());
    for (const auto& item : module.named_buffers(false)) add(tree, item.key(), item.value());
    for (const auto& item : module.named_children()) tree.children.push_back(walk(*item.value(), item.key()));
    return tree;
  }
  ModuleTree walk(const ScriptModule& module, const std::string& name = "") {
    const auto type = module.type()->name();
    ModuleTree tree{
        .type = type ? type->name() : "ScriptModule", .name = name, .parameters = {}, .buffers = {}, .children = {}};
    for (const auto& item : module.named_parameters(false)) add(tree, item.name, item.value);
    for (const auto& item : module.named_buffers(false)) add(tree, item.name, item.value);
    for (const auto& item : module.named_children()) tree.children.push_back(walk(item.value, item.name));
    return tree;
  }

 private:
  /// "Conv2d" of "torch::nn::Conv2dImpl".
  static std::string short_name(std::string name) {
    if (const std::size_t at = name.rfind("::"); at != std::string::npos) name.erase(0, at + 2);
    if (name.ends_with("Impl")) name.resize(name.size() - 4);
    return name;
  }
  void add(ModuleTree& tree, const std::string& name, const at::Tensor& value) {
    if (!value.defined()) return;
    for (const at::Tensor& other : seen_)
      if (other.is_same(value)) return;
    seen_.push_back(value);
    (value.requires_grad() ? tree.parameters : tree.buffers).push_back({name, value});
  }

  std::vector<at::Tensor> seen_;
};

/// The dtype of a buffer's memory: a bool is a byte. Throws UsageError that names the tensor for a dtype that duet has
/// not.
inline DType buffer_dtype(const NamedTensorRef& tensor) {
  const at::ScalarType type = tensor.value.scalar_type();
  const std::optional<DType> dtype = dtype_of(type == at::kBool ? at::kByte : type);
  require<UsageError>(dtype.has_value(), tensor.name, " is ", shape_text(tensor.value), ": duet has no such numbers");
  return *dtype;
}

inline Shape shape_of(const at::Tensor& tensor) {
  Shape shape;
  for (const std::int64_t size : tensor.sizes()) shape.append(size);
  return shape;
}

/// A part of a duet model whose values a module of LibTorch computes with.
class ModulePart : public nn::Module {
 public:
  /// Initial values are copies of the tree's. Throws UsageError that names a parameter which is not Float, and
  /// DeviceError for one that is not in the host's memory.
  explicit ModulePart(const ModuleTree& tree) : type_(tree.type) {
    const at::NoGradGuard no_grad;
    for (const NamedTensorRef& own : tree.parameters) {
      require_on_host(own);
      require<UsageError>(own.value.scalar_type() == at::kFloat, own.name, " of ", type_, " is ", shape_text(own.value),
                          ": parameters of duet's models are Float");
      register_parameter(own.name, shape_of(own.value),
                         [values = own.value.detach().contiguous()](std::span<float> to, Mt19937&) {
                           std::memcpy(to.data(), values.data_ptr(), to.size_bytes());
                         });
    }
    for (const NamedTensorRef& own : tree.buffers) {
      require_on_host(own);
      Tensor initial = empty(shape_of(own.value), buffer_dtype(own));
      const at::Tensor values = own.value.detach().contiguous();
      if (values.numel() > 0) std::memcpy(initial.raw(), values.data_ptr(), bytes_of(values));
      register_buffer(own.name, initial);
    }
    parameters_ = static_cast<int>(tree.parameters.size());
    buffers_ = static_cast<int>(tree.buffers.size());
    for (const ModuleTree& child : tree.children) {
      children_.push_back(std::make_unique<ModulePart>(child));
      register_module(child.name, *children_.back());
    }
  }

 protected:
  /// Adds the context's values in the order of append_tensors().
  void append_values(const nn::Context& context, std::vector<Variable>& parameters,
                     std::vector<Tensor>& buffers) const {
    for (int i = 0; i < parameters_; ++i) parameters.push_back(parameter(context, i));
    for (int i = 0; i < buffers_; ++i) buffers.push_back(buffer(context, i));
    for (const auto& child : children_) child->append_values(context, parameters, buffers);
  }
  std::string type_name() const override { return type_; }

 private:
  std::string type_;
  int parameters_ = 0, buffers_ = 0;
  std::vector<std::unique_ptr<ModulePart>> children_;
};

}  // namespace duet::torch
