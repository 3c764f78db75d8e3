// LibTorch's optimizers in an elastic job, whose lost ranks are replaced: see docs/elasticity.md.
//
// Include <torch/torch.h> before.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lib/base/recovery.h"
#include "lib/elastic.h"
#include "lib/error.h"
#include "torch/tensors.h"
#include "torch/versions.h"

namespace duet::torch {

/// Writes or reads the elements, in the order of `like`, a dense tensor of this shape and dtype. What autograd has
/// saved of a tensor that is read does not count as changed: a step whose values these are not is void.
inline void stream_tensor(StateStream& state, const at::Tensor& tensor, const at::Tensor& like) {
  const auto stream = [&](const at::Tensor& run) {
    state.bytes({static_cast<std::byte*>(run.data_ptr()), bytes_of(run)});
  };
  if (is_one_run(tensor) && tensor.strides() == like.strides()) return stream(tensor);
  const at::NoGradGuard no_grad;
  const at::Tensor copy = at::empty_like(like, at::MemoryFormat::Preserve);
  if (!state.reads()) copy.copy_(tensor);
  stream(copy);
  if (state.reads()) tensor.variable_data().copy_(copy);
}

/// What a step changes of an optimizer: its parameters' states, and the numbers that a program may set between steps.
class OptimizerState final : private Recoverable {
 public:
  /// Throws UsageError for a class of optimizer that is not LibTorch's, or whose state is not known.
  OptimizerState(std::string name, ::torch::optim::Optimizer& optimizer)
      : name_(std::move(name)), optimizer_(optimizer), stream_(stream_of(optimizer)) {
    for (const OptimizerState* const other : all())
      require<UsageError>(other->name_ != name_, "two states of an elastic job have the name '", name_, "'");
    require<UsageError>(stream_ != nullptr, "the state '", name_,
                        "' is of an optimizer whose state is not known: an elastic job keeps those of "
                        "torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad");
    all().push_back(this);
    join();
  }
  ~OptimizerState() override {
    leave();
    std::erase(all(), this);
  }

  /// Whether any of this process has the parameter.
  static bool is_kept(const at::Tensor& parameter) {
    return std::ranges::any_of(all(), [&](const OptimizerState* one) { return one->has(parameter); });
  }

 private:
  using Stream = void (*)(::torch::optim::Optimizer&, StateStream&);

  static std::vector<const OptimizerState*>& all() {
    static std::vector<const OptimizerState*> list;
    return list;
  }
  bool has(const at::Tensor& parameter) const {
    return std::ranges::any_of(optimizer_.param_groups(), [&](const ::torch::optim::OptimizerParamGroup& group) {
      return std::ranges::any_of(group.params(), [&](const at::Tensor& one) { return one.is_same(parameter); });
    });
  }

  bool is_copied() const override { return true; }
  void stream(StateStream& state) override {
    std::string name = name_;
    state.sequence(name);
    require<CommError>(name == name_, "the state of another rank has the optimizer '", name, "', expected '", name_,
                       "': its training has other ones, or made them in another order");
    stream_(optimizer_, state);
  }

  static Stream stream_of(const ::torch::optim::Optimizer& optimizer) {
    using namespace ::torch::optim;
    const std::type_info& type = typeid(optimizer);
    if (type == typeid(SGD)) return stream_all<SGDOptions, SGDParamState>;
    if (type == typeid(Adam)) return stream_all<AdamOptions, AdamParamState>;
    if (type == typeid(AdamW)) return stream_all<AdamWOptions, AdamWParamState>;
    if (type == typeid(RMSprop)) return stream_all<RMSpropOptions, RMSpropParamState>;
    if (type == typeid(Adagrad)) return stream_all<AdagradOptions, AdagradParamState>;
    return nullptr;
  }

  template <class Options, class ParamState>
  static void stream_all(::torch::optim::Optimizer& optimizer, StateStream& state) {
    for (::torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
      stream_options(static_cast<Options&>(group.options()), state);
      for (const at::Tensor& parameter : group.params()) {
        const auto key = optimizer_key(optimizer, parameter);
        const auto found = optimizer.state().find(key);
        bool has = found != optimizer.state().end();
        state.value(has);
        if (!has) {  // without a step yet
          optimizer.state().erase(key);
          continue;
        }
        std::unique_ptr<::torch::optim::OptimizerParamState>& own = optimizer.state()[key];
        if (own == nullptr) own = std::make_unique<ParamState>();
        stream_parameter(static_cast<ParamState&>(*own), parameter, state);
      }
    }
  }

  template <class Options>
  static void stream_options(Options& options, StateStream& state) {
    state.value(options.lr());
    state.value(options.weight_decay());
    if constexpr (requires { options.dampening(); }) state.value(options.dampening());
    if constexpr (requires { options.momentum(); }) state.value(options.momentum());
    if constexpr (requires { options.alpha(); }) state.value(options.alpha());
    if constexpr (requires { options.eps(); }) state.value(options.eps());
    if constexpr (requires { options.lr_decay(); }) state.value(options.lr_decay());
    if constexpr (requires { options.betas(); }) {
      state.value(std::get<0>(options.betas()));
      state.value(std::get<1>(options.betas()));
    }
  }

  template <class ParamState>
  static void stream_parameter(ParamState& own, const at::Tensor& parameter, StateStream& state) {
    if constexpr (requires { own.step(); }) state.value(own.step());
    const auto stream = [&](at::Tensor& tensor) { stream_like(tensor, parameter, state); };
    if constexpr (requires { own.momentum_buffer(); }) stream(own.momentum_buffer());
    if constexpr (requires { own.exp_avg(); }) stream(own.exp_avg());
    if constexpr (requires { own.exp_avg_sq(); }) stream(own.exp_avg_sq());
    if constexpr (requires { own.max_exp_avg_sq(); }) stream(own.max_exp_avg_sq());
    if constexpr (requires { own.square_avg(); }) stream(own.square_avg());
    if constexpr (requires { own.grad_avg(); }) stream(own.grad_avg());
    if constexpr (requires { own.sum(); }) stream(own.sum());
  }

  /// A tensor of the parameter's shape and dtype, or none.
  static void stream_like(at::Tensor& tensor, const at::Tensor& parameter, StateStream& state) {
    bool defined = tensor.defined();
    state.value(defined);
    if (!defined) {
      tensor = at::Tensor();
      return;
    }
    if (!tensor.defined()) tensor = at::empty_like(parameter.detach(), at::MemoryFormat::Preserve);
    require<UsageError>(tensor.sizes() == parameter.sizes() && tensor.scalar_type() == parameter.scalar_type(),
                        "an optimizer's state is ", shape_text(tensor), ", expected that of its parameter, ",
                        shape_text(parameter));
    stream_tensor(state, tensor, parameter);
  }

  const std::string name_;
  ::torch::optim::Optimizer& optimizer_;
  const Stream stream_;
};

/// While it or a copy of it lives, the optimizer is part of the training of an elastic job: where a step is done again
/// it is as it was when that began, and a process that replaces a lost one gets it with the rest of the training. Null
/// outside of elastic jobs. All ranks make them in the same order, before the first step; the optimizer must outlive
/// it, and its groups stay as they are:
///
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     const auto kept = duet::torch::elastic_state("optimizer", optimizer);
///
/// Rates and the like may be set within steps and between them. Throws UsageError for a name that another one has, and
/// for classes other than torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad; CommError in a process that gets another
/// state than its optimizer has. Used by the thread that trains.
[[nodiscard]] inline elastic::State elastic_state(std::string name, ::torch::optim::Optimizer& optimizer) {
  const Recovery& recovery = Recovery::instance();
  if (!recovery.expected()) return nullptr;
  require<UsageError>(recovery.commits() == 0, "the state '", name,
                      "' is made after a step or unit of an elastic job, expected before the first one");
  return std::make_shared<OptimizerState>(std::move(name), optimizer);
}

}  // namespace duet::torch
