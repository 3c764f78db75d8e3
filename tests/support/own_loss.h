// A loss of the user's own: a mean over the rows of its argument, whatever their stamp says.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/backend/backend.h"

namespace duet_test {

/// Mean over the rows of the sum of squares of each: y (N, C), f32 on a CPU device -> scalar.
inline duet::Variable own_loss(const duet::Variable& y) {
  struct OwnLossNode final : duet::Node {
    const char* name() const override { return "own_loss"; }
    void backward(const duet::Gradients& g) override {
      const duet::Tensor& dy = g.place(0, y.shape(), y.device());
      const float factor = 2 * g.outputs[0].span<float>()[0] / static_cast<float>(y.size(0));
      for (std::int64_t i = 0; i < y.count(); ++i) dy.data<float>()[i] = factor * y.data<float>()[i];
    }
    duet::Tensor y;
  };
  double sum = 0;
  for (const float value : y.value().span<float>()) sum += double{value} * double{value};
  const duet::Tensor loss = duet::empty({}, duet::DType::f32, y.device());
  loss.span<float>()[0] = static_cast<float>(sum / static_cast<double>(y.shape()[0]));
  if (!y.requires_grad()) return duet::Variable(loss);
  auto node = std::make_shared<OwnLossNode>();
  node->add_edge(y.edge());
  node->y = y.value();
  return duet::Variable(loss, std::move(node));
}

}  // namespace duet_test
