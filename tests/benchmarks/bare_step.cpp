#include "tests/benchmarks/bare_step.h"

#include <algorithm>
#include <vector>

#include "lib/error.h"

namespace duet::benchmarks {

BareStep::BareStep(nn::FlatParameters& store, const data::ImageDataset& images, std::int64_t batch, std::uint64_t seed)
    : store_(store), images_(images), seed_(seed), kernels_(backend(store.values())) {
  first_ = {.conv = {3, 3, 1, 1, 1, 1}, .pool = {2, 2, 2, 2, 0, 0}, .dropout = {}};
  second_ = first_;
  const Shape s1 = {batch, 32, 14, 14}, s2 = {batch, 64, 7, 7}, hidden = {batch, 128}, classes = {batch, 10};
  const Layout layout = kernels_.conv2d_layout({batch, 1, 28, 28}, {32, 1, 3, 3});
  x_ = empty({batch, 1, 28, 28});
  labels_ = empty({batch}, DType::i64);
  y1_ = empty(s1, DType::f32, {}, layout);
  index1_ = empty(s1, DType::u8, {}, layout);
  y2_ = empty(s2);
  index2_ = empty(s2, DType::u8);
  flat_ = y2_.reshape({batch, 3136});
  hidden_ = empty(hidden);
  logits_ = empty(classes);
  log_probs_ = empty(classes);
  loss_ = empty({});
  d_logits_ = empty(classes);
  d_hidden_ = empty(hidden);
  d_flat_ = empty({batch, 3136});
  d_y1_ = empty(s1, DType::f32, {}, layout);
  momentum_ = store.flat_zeros(0, store.slot_count());
}

int BareStep::slot(const char* name) const {
  const std::vector<nn::Slot>& slots = store_.slots();
  const auto at = std::find_if(slots.begin(), slots.end(), [&](const nn::Slot& slot) { return slot.name == name; });
  require<UsageError>(at != slots.end(), "no parameter ", name);
  return static_cast<int>(at - slots.begin());
}

float BareStep::run(std::span<const std::int64_t> samples, std::int64_t step, const SGDRule& rule) {
  require<UsageError>(static_cast<std::int64_t>(samples.size()) == x_.size(0), "got ", samples.size(),
                      " samples, expected ", x_.size(0));
  images_.fetch(samples, x_, labels_);
  lap("gather, normalise");
  forward(step);
  backward();
  kernels_.sgd_step(store_.values(), store_.gradients(), momentum_, rule, 0, 1);
  lap("update");
  return *loss_.data<float>();
}

void BareStep::forward(std::int64_t step) {
  constexpr std::uint32_t kDropout1 = 3, kDropout2 = 4;  // layer numbers in SimpleCNN's module tree
  const auto number = static_cast<std::uint64_t>(step);
  second_.dropout = {.seed = seed_, .step = number, .layer = kDropout1, .p = 0.25f};
  second_dropout_ = {.seed = seed_, .step = number, .layer = kDropout2, .p = 0.5f};
  kernels_.conv_pool_relu_forward(x_, value("conv1.weight"), value("conv1.bias"), y1_, index1_, first_);
  lap("conv1+pool+relu");
  kernels_.conv_pool_relu_forward(y1_, value("conv2.weight"), value("conv2.bias"), y2_, index2_, second_);
  lap("conv2+pool+relu+dropout");
  kernels_.linear_relu_dropout_forward(flat_, value("fc1.weight"), value("fc1.bias"), hidden_, second_dropout_);
  lap("fc1+relu+dropout");
  kernels_.linear_forward(hidden_, value("fc2.weight"), value("fc2.bias"), logits_);
  lap("fc2");
  kernels_.log_softmax_forward(logits_, log_probs_);
  const float factor = 1.0f / static_cast<float>(x_.size(0));
  kernels_.log_softmax_nll_forward(log_probs_, labels_, factor, loss_, factor, d_logits_);
  lap("log_softmax, nll_loss, their gradients");
}

void BareStep::backward() {
  kernels_.linear_backward(d_logits_, hidden_, value("fc2.weight"), d_hidden_, gradient("fc2.weight"),
                           gradient("fc2.bias"));
  lap("fc2 gradients");
  kernels_.linear_relu_dropout_backward(d_hidden_, hidden_, flat_, value("fc1.weight"), d_flat_, gradient("fc1.weight"),
                                        gradient("fc1.bias"), second_dropout_);
  lap("fc1+... gradients");
  kernels_.conv_pool_relu_backward(d_flat_.reshape(y2_.shape()), index2_, y1_, value("conv2.weight"), d_y1_,
                                   gradient("conv2.weight"), gradient("conv2.bias"), second_);
  lap("conv2+pool+... gradients");
  kernels_.conv_pool_relu_backward(d_y1_, index1_, x_, value("conv1.weight"), Tensor(), gradient("conv1.weight"),
                                   gradient("conv1.bias"), first_);
  lap("conv1+pool+... gradients");
}

}  // namespace duet::benchmarks
