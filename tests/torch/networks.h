// Networks of LibTorch, of which tests/torch/parity.py has the same in Python, with fixed values and data:
// wave(shape, phase) is sin(0.7 i + phase) in double, rounded to float.
#pragma once

#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/error.h"
#include "torch/wrapped_module.h"

/// Catch2's own checks are for one thread.
#define EXPECT_ON_RANK(condition) duet::require(condition, "expected ", #condition)

namespace duet_test {

namespace nn = ::torch::nn;
namespace F = ::torch::nn::functional;
using at::Tensor;

/// The compiler in Debian 13's LibTorch 2.6 does not come back from networks as small as Script, in Python either.
inline const bool kFuserIsOff = (torch::jit::setTensorExprFuserEnabled(false), true);

inline constexpr std::int64_t kRows = 12;  // of the global batch

inline Tensor wave(at::IntArrayRef shape, double phase) {
  Tensor values = torch::empty(shape);
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7 + phase));
  return values;
}

/// The rows of one of several ranks.
struct Shard {
  int rank = 0, ranks = 1;
  Tensor of(const Tensor& batch, int dim = 0) const {
    const std::int64_t each = batch.size(dim) / ranks;
    return batch.narrow(dim, rank * each, each);
  }
};

/// Of all ranks in one step.
struct StepBatch {
  Tensor x, y;
  int step = 0;
};

inline Tensor labels(int step) { return (torch::arange(kRows) * 7 + step) % 10; }

/// Each has make(), batch(step) and loss(net, batch, shard), where net is the module or a wrapper of it.
struct SimpleCnn {
  struct Impl : nn::Module {
    nn::Conv2d conv1{register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)))};
    nn::Conv2d conv2{register_module("conv2", nn::Conv2d(nn::Conv2dOptions(4, 8, 3).padding(1)))};
    nn::Linear fc1{register_module("fc1", nn::Linear(8 * 7 * 7, 16))};
    nn::Linear fc2{register_module("fc2", nn::Linear(16, 10))};
    Tensor forward(Tensor x) {
      x = torch::relu(torch::max_pool2d(conv1(x), 2));
      x = torch::relu(torch::max_pool2d(conv2(x), 2));
      x = torch::dropout(torch::relu(fc1(x.flatten(1))), drop, is_training());
      return torch::log_softmax(fc2(x), 1);
    }
    double drop = 0;
  };
  static constexpr const char* kName = "SimpleCnn";
  static std::shared_ptr<Impl> make() { return std::make_shared<Impl>(); }
  static StepBatch batch(int step) { return {wave({kRows, 1, 28, 28}, step), labels(step), step}; }
  template <class Net>
  static Tensor loss(Net& net, const StepBatch& batch, const Shard& shard) {
    return torch::nll_loss(net.forward(shard.of(batch.x)), shard.of(batch.y));
  }
};

struct UnusedBranches {
  struct Impl : nn::Module {
    nn::Linear first{register_module("first", nn::Linear(6, 8))};
    nn::Linear a{register_module("a", nn::Linear(8, 3))};
    nn::Linear b{register_module("b", nn::Linear(8, 3))};
    nn::Linear never{register_module("never", nn::Linear(8, 3))};
    Tensor forward(const Tensor& x, int which) {
      const Tensor hidden = torch::tanh(first(x));
      return which == 0 ? a(hidden) : b(hidden);
    }
  };
  static constexpr const char* kName = "Branches";
  static std::shared_ptr<Impl> make() { return std::make_shared<Impl>(); }
  static StepBatch batch(int step) { return {wave({kRows, 6}, step), wave({kRows, 3}, step + 0.5), step}; }
  template <class Net>
  static Tensor loss(Net& net, const StepBatch& batch, const Shard& shard) {
    return torch::mse_loss(net.forward(shard.of(batch.x), (shard.rank + batch.step) % 3 / 2), shard.of(batch.y));
  }
};

struct BatchNorm {
  struct Impl : nn::Module {
    nn::Conv2d conv{register_module("conv", nn::Conv2d(2, 4, 3))};
    nn::BatchNorm2d bn{register_module("bn", nn::BatchNorm2d(4))};
    nn::Linear fc{register_module("fc", nn::Linear(64, 10))};
    Tensor forward(const Tensor& x) { return torch::log_softmax(fc(torch::relu(bn(conv(x))).flatten(1)), 1); }
  };
  static constexpr const char* kName = "BatchNorm";
  static std::shared_ptr<Impl> make() { return std::make_shared<Impl>(); }
  static StepBatch batch(int step) { return {wave({kRows, 2, 6, 6}, step), labels(step), step}; }
  template <class Net>
  static Tensor loss(Net& net, const StepBatch& batch, const Shard& shard) {
    return torch::nll_loss(net.forward(shard.of(batch.x)), shard.of(batch.y));
  }
};

/// Rows are dimension 1.
struct Transformer {
  struct Impl : nn::Module {
    nn::TransformerEncoderLayer block{register_module(
        "block", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)))};
    nn::Linear head{register_module("head", nn::Linear(8, 3))};
    Tensor forward(const Tensor& x) { return head(block(x)); }
  };
  static constexpr const char* kName = "Transformer";
  static std::shared_ptr<Impl> make() { return std::make_shared<Impl>(); }
  static StepBatch batch(int step) { return {wave({5, kRows, 8}, step), wave({5, kRows, 3}, step + 0.5), step}; }
  template <class Net>
  static Tensor loss(Net& net, const StepBatch& batch, const Shard& shard) {
    return torch::mse_loss(net.forward(shard.of(batch.x, 1)), shard.of(batch.y, 1));
  }
};

struct Script {
  static constexpr const char* kName = "Script";
  static std::shared_ptr<torch::jit::Module> make() {
    torch::jit::Module module("Script");
    module.register_parameter("w1", torch::zeros({6, 16}).requires_grad_(), false);
    module.register_parameter("b1", torch::zeros({16}).requires_grad_(), false);
    module.register_parameter("w2", torch::zeros({16, 3}).requires_grad_(), false);
    module.define("def forward(self, x):\n    return torch.tanh(x @ self.w1 + self.b1) @ self.w2\n");
    return std::make_shared<torch::jit::Module>(module);
  }
  static StepBatch batch(int step) { return {wave({kRows, 6}, step), wave({kRows, 3}, step + 0.5), step}; }
  template <class Net>
  static Tensor loss(Net& net, const StepBatch& batch, const Shard& shard) {
    return torch::mse_loss(net.forward({shard.of(batch.x)}).toTensor(), shard.of(batch.y));
  }
};

/// Sorted by name.
template <class Module>
std::vector<Tensor> parameters_of(const Module& module) {
  auto list = duet::torch::tensors_of(module).parameters;
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<Tensor> values;
  for (const auto& parameter : list) values.push_back(parameter.value);
  return values;
}

inline std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> list;
  for (const Tensor& parameter : parameters)
    list.push_back(parameter.grad().defined() ? parameter.grad() : torch::zeros_like(parameter));
  return list;
}

/// What zero_grad() does in new versions; 1.13 sets gradients to zero.
inline void drop_gradients(const std::vector<Tensor>& parameters) {
  for (const Tensor& parameter : parameters) parameter.mutable_grad() = Tensor();
}

/// A module whose parameter k, in the order of names, is 0.3 wave(k).
template <class Network>
auto make_with_values() {
  auto module = Network::make();
  const torch::NoGradGuard no_grad;
  double k = 0;
  for (Tensor& parameter : parameters_of(*module)) parameter.copy_(0.3 * wave(parameter.sizes(), k++));
  return module;
}

inline std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> list;
  for (const Tensor& tensor : tensors) list.push_back(tensor.detach().clone());
  return list;
}

inline double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

inline bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return torch::equal(x, y); });
}

}  // namespace duet_test
