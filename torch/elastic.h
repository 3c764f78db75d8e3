// LibTorch's optimizers in an elastic job, whose lost ranks are replaced: see docs/reference/elastic_loops.md.
//
// Include <torch/torch.h> before.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
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

/// What a step changes of LibTorch's objects. Used by the thread that trains.
class ElasticState final : private Recoverable {
 public:
  /// `optimizer`: whose state it is, if any.
  ElasticState(const std::string& name, std::function<void(StateStream&)> stream,
               const ::torch::optim::Optimizer* optimizer = nullptr)
      : stream_(std::move(stream)), optimizer_(optimizer) {
    join(concat("the state '", name, "'"));
    all().push_back(this);
  }
  ~ElasticState() override {
    leave();
    std::erase(all(), this);
  }

  /// Whether an optimizer of these has the parameter.
  static bool updates(const at::Tensor& parameter) {
    return std::ranges::any_of(
        all(), [&](const ElasticState* one) { return one->optimizer_ != nullptr && has(*one->optimizer_, parameter); });
  }

 private:
  static std::vector<const ElasticState*>& all() {
    static std::vector<const ElasticState*> list;
    return list;
  }
  static bool has(const ::torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
    return std::ranges::any_of(optimizer.param_groups(), [&](const ::torch::optim::OptimizerParamGroup& group) {
      return std::ranges::any_of(group.params(), [&](const at::Tensor& one) { return one.is_same(parameter); });
    });
  }

  bool is_copied() const override { return true; }
  void stream(StateStream& state) override { stream_(state); }

  const std::function<void(StateStream&)> stream_;
  const ::torch::optim::Optimizer* const optimizer_;
};

/// How an optimizer's state is written and read: its parameters' states, and the numbers that a program may set.
class OptimizerStream {
 public:
  using Stream = void (*)(::torch::optim::Optimizer&, StateStream&);

  /// Null for classes whose state is not known.
  static Stream of(const ::torch::optim::Optimizer& optimizer) {
    using namespace ::torch::optim;
    const std::type_info& type = typeid(optimizer);
    if (type == typeid(SGD)) return stream_all<SGDOptions, SGDParamState>;
    if (type == typeid(Adam)) return stream_all<AdamOptions, AdamParamState>;
    if (type == typeid(AdamW)) return stream_all<AdamWOptions, AdamWParamState>;
    if (type == typeid(RMSprop)) return stream_all<RMSpropOptions, RMSpropParamState>;
    if (type == typeid(Adagrad)) return stream_all<AdagradOptions, AdagradParamState>;
    return nullptr;
  }

 private:
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
};

[[nodiscard]] inline elastic::State keep_state(const std::string& name, std::function<void(StateStream&)> stream,
                                               const ::torch::optim::Optimizer* optimizer = nullptr) {
  if (!Recovery::instance().expected()) return nullptr;
  return std::make_shared<ElasticState>(name, std::move(stream), optimizer);
}

/// While what it returns, or a copy of that, lives, the optimizer is part of the training of an elastic job: where a
/// step is done again it is as it was when that began, and a process that replaces a lost one gets it with the rest of
/// the training. Null outside of elastic jobs. All ranks make theirs in the same order, before the first step; the
/// optimizer must outlive it, and its groups stay the same:
///
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     const auto kept = duet::torch::elastic_state("optimizer", optimizer);
///
/// Rates and the like may be set within steps and between them. Throws UsageError for classes other than
/// torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad; CommError in a process that gets another state than it has
/// under this name. Used by the thread that trains.
[[nodiscard]] inline elastic::State elastic_state(const std::string& name, ::torch::optim::Optimizer& optimizer) {
  const OptimizerStream::Stream stream = OptimizerStream::of(optimizer);
  require<UsageError>(stream != nullptr || !Recovery::instance().expected(), "the state '", name,
                      "' is of an optimizer whose state is not known: an elastic job keeps those of torch::optim::SGD, "
                      "Adam, AdamW, RMSprop and Adagrad");
  return keep_state(
      name, [stream, &optimizer](StateStream& state) { stream(optimizer, state); }, &optimizer);
}

/// Likewise a schedule that steps within the bodies of the loop; one that steps between them needs it not.
[[nodiscard]] inline elastic::State elastic_state(const std::string& name, ::torch::optim::LRScheduler& schedule) {
  struct Steps : ::torch::optim::LRScheduler {
    static auto member() { return &Steps::step_count_; }
  };
  return keep_state(name, [&schedule](StateStream& state) { state.value(schedule.*Steps::member()); });
}

/// Likewise the values of tensors that no wrapper's module has, such as parameters and buffers of an average of the
/// trained module: dense ones on the CPU.
[[nodiscard]] inline elastic::State elastic_state(const std::string& name, std::vector<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) require_on_host({name, tensor});
  return keep_state(name, [tensors = std::move(tensors)](StateStream& state) {
    for (const at::Tensor& tensor : tensors) stream_tensor(state, tensor, tensor);
  });
}

}  // namespace duet::torch
