// What the tests of the tape share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/nn/layers.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"

namespace duet_test {

using namespace duet;

inline Variable leaf(std::vector<float> values) {
  return Variable(from_values<float>({static_cast<std::int64_t>(values.size())}, values), true);
}

inline std::vector<float> numbers(const Tensor& tensor) {
  const auto values = tensor.span<float>();
  return {values.begin(), values.end()};
}

/// Two linear layers of which one may go unused, and one that is used twice.
struct Branches : nn::Module {
  Branches() {
    register_module("shared", shared);
    register_module("unused", unused);
    register_module("last", last);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable once = shared.forward(context, x);
    const Variable twice = shared.forward(context, ops::relu(once));
    return last.forward(context, ops::add(once, twice));
  }
  using Module::forward;
  std::string type_name() const override { return "Branches"; }
  nn::Linear shared{3, 3}, unused{3, 3}, last{3, 2};
};

inline Tensor input() { return from_values<float>({2, 3}, {1, -2, 3, 0.5f, 4, -1}); }
inline Tensor target() { return from_values<float>({2, 2}, {1, 2, 3, 4}); }
inline Variable loss_of(nn::Module& net) { return ops::mse_loss(net(input()), target()); }

}  // namespace duet_test
