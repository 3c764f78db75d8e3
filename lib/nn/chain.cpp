#include "lib/nn/chain.h"

#include <typeinfo>

#include "lib/autograd/check_finite.h"
#include "lib/nn/layers.h"
#include "lib/ops/ops.h"

namespace duet::nn {
namespace {

using Layers = std::span<const LayerRef>;

/// The output of the first `layers` layers, computed by one operator. 0 layers: no fused operator covers them.
struct FusedRun {
  std::size_t layers = 0;
  Variable output;
};

/// layers[i] if it is a T and no subclass, which may override forward.
template <class T>
const T* exactly(Layers layers, std::size_t i) {
  if (i >= layers.size()) return nullptr;
  const Module& layer = layers[i];
  return typeid(layer) == typeid(T) ? static_cast<const T*>(&layer) : nullptr;
}

DropoutKey next_key_of(const Dropout* dropout, Context& context, const Variable& x) {
  return dropout != nullptr ? dropout->next_key(context, x.value()) : DropoutKey{};
}

/// Whether the pool's windows fit into the convolution of x. If not, the layers one by one name the one that fails.
bool pool_fits(const Variable& x, const Window2d& conv, const Window2d& pool) {
  return x.defined() && x.shape().rank() == 4 && pool.fits(conv.out_h(x.shape()[2]), conv.out_w(x.shape()[3]));
}

/// Conv2d, MaxPool2d and ReLU in either order, Dropout or not.
FusedRun run_conv(const Conv2d& conv, Context& context, const Variable& x, Layers layers) {
  const bool relu_first = exactly<ReLU>(layers, 1) != nullptr;
  const MaxPool2d* const pool = exactly<MaxPool2d>(layers, relu_first ? 2 : 1);
  if (pool == nullptr || (!relu_first && exactly<ReLU>(layers, 2) == nullptr)) return {};
  if (!conv.has_bias() || conv.groups() != 1) return {};
  if (!ops::pool_tiles(pool->window()) || !pool_fits(x, conv.window(), pool->window())) return {};
  const Dropout* const dropout = exactly<Dropout>(layers, 3);
  const std::size_t count = dropout != nullptr ? 4 : 3;
  const bool plain_output = exactly<Flatten>(layers, count) != nullptr;
  return conv.name_errors([&]() -> FusedRun {
    const ConvPoolRelu op = {
        .conv = conv.window(), .pool = pool->window(), .dropout = next_key_of(dropout, context, x)};
    return {count, ops::conv_pool_relu(x, conv.weight(context), conv.bias(context), op, plain_output)};
  });
}

/// Linear, then LogSoftmax; or Linear and ReLU, Dropout or not.
FusedRun run_linear(const Linear& linear, Context& context, const Variable& x, Layers layers) {
  // The layers one by one have the same bits, and CheckFinite then names the one whose result is not finite.
  if (!x.defined() || x.shape().rank() != 2 || checks_finite()) return {};
  if (const auto* const last = exactly<LogSoftmax>(layers, 1);
      last != nullptr && (last->dim() == 1 || last->dim() == -1))
    return linear.name_errors([&]() -> FusedRun {
      return {2, ops::linear_log_softmax(x, linear.weight(context), linear.bias(context))};
    });
  if (exactly<ReLU>(layers, 1) == nullptr) return {};
  const Dropout* const dropout = exactly<Dropout>(layers, 2);
  return linear.name_errors([&]() -> FusedRun {
    return {dropout != nullptr ? 3u : 2u, ops::linear_relu_dropout(x, linear.weight(context), linear.bias(context),
                                                                   next_key_of(dropout, context, x))};
  });
}

/// BatchNorm2d or SyncBatchNorm, then ReLU.
FusedRun run_norm(const BatchNorm2d& norm, Context& context, const Variable& x, Layers layers) {
  if (exactly<ReLU>(layers, 1) == nullptr) return {};
  return {2, norm.forward_relu(context, x)};
}

FusedRun run_fused(Context& context, const Variable& x, Layers layers) {
  if (const Conv2d* const conv = exactly<Conv2d>(layers, 0)) return run_conv(*conv, context, x, layers);
  if (const Linear* const linear = exactly<Linear>(layers, 0)) return run_linear(*linear, context, x, layers);
  if (const BatchNorm2d* const norm = exactly<BatchNorm2d>(layers, 0)) return run_norm(*norm, context, x, layers);
  if (const SyncBatchNorm* const norm = exactly<SyncBatchNorm>(layers, 0)) return run_norm(*norm, context, x, layers);
  return {};
}

}  // namespace

Variable chain(Context& context, const Variable& x, Layers layers) {
  const bool fuse = context.fuse && context.stream == nullptr;
  Variable y = x;
  while (!layers.empty()) {
    FusedRun run = fuse ? run_fused(context, y, layers) : FusedRun{};
    if (run.layers == 0) {
      const Module& layer = layers.front();
      run = {1, layer.name_errors([&] { return layer.forward(context, y); })};
    }
    y = run.output;
    layers = layers.subspan(run.layers);
  }
  return y;
}

void Sequential::append(std::unique_ptr<Module> child) {
  register_module(std::to_string(children_.size()), *child);
  layers_.emplace_back(*child);
  children_.push_back(std::move(child));
}

Variable Sequential::forward(Context& context, const Variable& x) const { return chain(context, x, layers_); }

Variable ModuleList::forward(Context&, const Variable&) const {
  throw UsageError("ModuleList has no forward: call its children one by one");
}

}  // namespace duet::nn
