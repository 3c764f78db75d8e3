// Your own operator, outside duet: swish with a parameter for each column, y = x / (1 + exp(-b x)).
#include <cmath>
#include <cstdint>
#include <iostream>
#include <vector>

#include <duet/lib/ops/custom.h>

using namespace duet;

namespace {

struct Swish {
  static constexpr const char* kName = "swish";
  static constexpr bool kSumsRows = true;  // the gradient of b has a row for each of x: duet adds them up

  Tensor forward(const ops::Tensors& in) {
    const Tensor &x = in[0], &b = in[1], y = empty(x.shape());
    for (std::int64_t i = 0; i < x.count(); ++i) y.data<float>()[i] = x.data<float>()[i] * gate(x, b, i);
    return y;
  }
  ops::Tensors backward(const Tensor& dy, const ops::Tensors& in, const Tensor&) {
    const Tensor &x = in[0], &b = in[1], dx = empty(x.shape()), db = empty(x.shape());
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const float v = x.data<float>()[i], g = gate(x, b, i), slope = dy.data<float>()[i] * v * g * (1 - g);
      dx.data<float>()[i] = dy.data<float>()[i] * g + slope * b.data<float>()[i % b.count()];
      db.data<float>()[i] = slope * v;
    }
    return {dx, db};
  }

 private:
  static float gate(const Tensor& x, const Tensor& b, std::int64_t i) {
    return 1 / (1 + std::exp(-b.data<float>()[i % b.count()] * x.data<float>()[i]));
  }
};

}  // namespace

int main() {
  const ops::Tensors inputs = {from_values<float>({2, 3}, {0.5f, -1, 2, 1, 0, -1}),
                               from_values<float>({3}, {1, 2, -1})};
  const auto swish = [](const std::vector<Variable>& in) { return ops::custom(Swish{}, {in[0], in[1]}); };
  ops::check_gradients(swish, inputs);  // throws if backward isn't the gradient of forward
  const Variable x(inputs[0], true), b(inputs[1], true), y = swish({x, b});
  y.backward(inputs[0]);
  const Tensor gradient = b.grad();
  for (const float value : gradient.span<float>()) std::cout << value << '\n';
}
