#include "lib/nn/resnet.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "lib/error.h"

namespace duet::nn {
namespace {

Conv2dOptions conv_options(std::int64_t kernel, std::int64_t stride) {
  return {.stride = stride, .padding = kernel / 2, .bias = false};
}

std::unique_ptr<BatchNorm2d> make_norm(std::int64_t features, bool synchronised) {
  if (synchronised) return std::make_unique<SyncBatchNorm>(features);
  return std::make_unique<BatchNorm2d>(features);
}

void fill_downsample(Sequential& downsample, std::int64_t in, std::int64_t out, std::int64_t stride, bool sync) {
  if (stride == 1 && in == out) return;
  downsample.add<Conv2d>(in, out, 1, conv_options(1, stride));
  downsample.append(make_norm(out, sync));
}

/// A block's end: relu(norm(y) + x), x through `downsample` if there is any.
Variable add_input(Context& context, const BatchNorm2d& norm, const Variable& y, const Variable& x,
                   const Sequential& downsample) {
  return norm.forward_relu(context, y, downsample.size() > 0 ? downsample.forward(context, x) : x);
}

struct ResNetPlan {
  int depth;
  ResNet::Block block;
  std::array<int, 4> blocks;
};

constexpr ResNetPlan kResNetPlans[] = {{18, ResNet::Block::basic, {2, 2, 2, 2}},
                                       {34, ResNet::Block::basic, {3, 4, 6, 3}},
                                       {50, ResNet::Block::bottleneck, {3, 4, 6, 3}},
                                       {101, ResNet::Block::bottleneck, {3, 4, 23, 3}},
                                       {152, ResNet::Block::bottleneck, {3, 8, 36, 3}}};

const ResNetPlan& resnet_plan(int depth) {
  const auto* const plan = std::ranges::find(kResNetPlans, depth, &ResNetPlan::depth);
  require<UsageError>(plan != std::end(kResNetPlans), "ResNet: depth ", depth, ", expected 18, 34, 50, 101 or 152");
  return *plan;
}

}  // namespace

BasicBlock::BasicBlock(std::int64_t in, std::int64_t planes, std::int64_t stride, bool sync_batch_norm)
    : conv1_(in, planes, 3, conv_options(3, stride)),
      conv2_(planes, planes, 3, conv_options(3, 1)),
      bn1_(make_norm(planes, sync_batch_norm)),
      bn2_(make_norm(planes, sync_batch_norm)) {
  fill_downsample(downsample_, in, planes, stride, sync_batch_norm);
  register_module("conv1", conv1_);
  register_module("bn1", *bn1_);
  register_module("relu", relu_);
  register_module("conv2", conv2_);
  register_module("bn2", *bn2_);
  if (downsample_.size() > 0) register_module("downsample", downsample_);
}

Variable BasicBlock::forward(Context& context, const Variable& x) const {
  return name_errors([&] {
    const Variable y = chain(context, x, {conv1_, *bn1_, relu_, conv2_});
    return add_input(context, *bn2_, y, x, downsample_);
  });
}

Bottleneck::Bottleneck(std::int64_t in, std::int64_t planes, std::int64_t stride, bool sync_batch_norm)
    : conv1_(in, planes, 1, conv_options(1, 1)),
      conv2_(planes, planes, 3, conv_options(3, stride)),
      conv3_(planes, kExpansion * planes, 1, conv_options(1, 1)),
      bn1_(make_norm(planes, sync_batch_norm)),
      bn2_(make_norm(planes, sync_batch_norm)),
      bn3_(make_norm(kExpansion * planes, sync_batch_norm)) {
  fill_downsample(downsample_, in, kExpansion * planes, stride, sync_batch_norm);
  register_module("conv1", conv1_);
  register_module("bn1", *bn1_);
  register_module("conv2", conv2_);
  register_module("bn2", *bn2_);
  register_module("conv3", conv3_);
  register_module("bn3", *bn3_);
  register_module("relu", relu_);
  if (downsample_.size() > 0) register_module("downsample", downsample_);
}

Variable Bottleneck::forward(Context& context, const Variable& x) const {
  return name_errors([&] {
    const Variable y = chain(context, x, {conv1_, *bn1_, relu_, conv2_, *bn2_, relu_, conv3_});
    return add_input(context, *bn3_, y, x, downsample_);
  });
}

ResNet::ResNet(int depth, const NetworkOptions& options)
    : ResNet(resnet_plan(depth).block, resnet_plan(depth).blocks, options) {}

ResNet::ResNet(Block block, const std::array<int, 4>& blocks, const NetworkOptions& options)
    : conv1_(options.in_channels.value_or(3), options.width, options.stem == Stem::imagenet ? 7 : 3,
             options.stem == Stem::imagenet ? conv_options(7, 2) : conv_options(3, 1)),
      bn1_(make_norm(options.width, options.sync_batch_norm)) {
  require<UsageError>(options.dropout == NetworkOptions{}.dropout, "ResNet has no dropout");
  require<UsageError>(std::ranges::all_of(blocks, [](int count) { return count > 0; }),
                      "ResNet: a layer without blocks");
  register_module("conv1", conv1_);
  register_module("bn1", *bn1_);
  register_module("relu", relu_);
  all_layers_ = {conv1_, *bn1_, relu_};
  if (options.stem == Stem::imagenet) {
    register_module("maxpool", maxpool_.emplace(3, 2, 1));
    all_layers_.emplace_back(*maxpool_);
  }
  if (block == Block::basic)
    add_blocks<BasicBlock>(blocks, options);
  else
    add_blocks<Bottleneck>(blocks, options);
  register_module("avgpool", avgpool_);
  register_module("fc", *fc_);
  all_layers_.insert(all_layers_.end(), {avgpool_, flatten_, *fc_});
  draw_over_as_torchvision(options.zero_init_residual);
}

template <class B>
void ResNet::add_blocks(const std::array<int, 4>& blocks, const NetworkOptions& options) {
  std::int64_t in = options.width, planes = options.width;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer, planes *= 2) {
    for (int i = 0; i < blocks[layer]; ++i) {
      const std::int64_t stride = layer > 0 && i == 0 ? 2 : 1;
      last_norms_.push_back(&layers_[layer].add<B>(in, planes, stride, options.sync_batch_norm).last_norm());
      in = B::kExpansion * planes;
    }
    register_module(concat("layer", layer + 1), layers_[layer]);
    all_layers_.emplace_back(layers_[layer]);
  }
  fc_.emplace(in, options.classes.value_or(1000));
}

void ResNet::draw_over_as_torchvision(bool zero_init_residual) {
  draw_over([this, zero_init_residual](const Module& layer, const std::string& name, const Shape& shape) -> Fill {
    if (dynamic_cast<const Conv2d*>(&layer) != nullptr) return init::kaiming_normal_fan_out(shape);
    const bool zero = zero_init_residual && name == "weight" && std::ranges::count(last_norms_, &layer) > 0;
    return zero ? init::constant(0) : Fill();
  });
}

Variable ResNet::forward(Context& context, const Variable& x) const { return chain(context, x, all_layers_); }

}  // namespace duet::nn
