#include "lib/ops/custom.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/backend/backend.h"
#include "lib/error.h"
#include "lib/ops/ops.h"
#include "lib/ops/record.h"
#include "lib/pool.h"
#include "lib/random.h"

namespace duet::ops {
namespace {

std::string text_of(const Tensor& tensor) {
  return tensor.defined()
             ? duet::concat(tensor.dtype(), tensor.shape(), " ", name(tensor.layout()), " on ", tensor.device())
             : "nothing";
}

void require_floats_of(const char* op, const std::string& what, const Tensor& tensor, const Shape& shape,
                       Device device) {
  require<ShapeError>(tensor.defined() && tensor.dtype() == DType::f32 && tensor.layout() == Layout::plain &&
                          tensor.shape() == shape && tensor.device() == device,
                      op, ": ", what, " is ", text_of(tensor), ", expected f32", shape, " plain on ", device,
                      tensor.defined() && tensor.device() != device ? ": make it there, by zeros_like(x, shape)" : "");
}

/// The stamp of the batch whose rows a result of this shape has, as one of the inputs, or of none.
Rows stamp_of(const char* op, const Tensors& inputs, const Shape& shape) {
  Rows stamp;
  for (const Tensor& input : inputs) {
    const bool has_rows = input.stamp().stamped() && shape.rank() > 0 && shape[0] == input.size(0);
    if (!has_rows && !(input.stamp().known() && shape == input.shape())) continue;
    if (!stamp.known()) stamp = input.stamp();
    require_same_rows(op, stamp, input.stamp());
  }
  return stamp;
}

class CustomNode final : public Node {
 public:
  CustomNode(const CustomCalls& calls, const Tensors& inputs, const Tensor& result)
      : calls_(calls), result_(result, "result") {
    for (const Tensor& input : inputs) inputs_.emplace_back(input, "input");
  }
  const char* name() const override { return calls_.name; }
  void reached() override {
    for (const SavedTensor& input : inputs_) input.require_unmodified(calls_.name);
    result_.require_unmodified(calls_.name);
  }
  void backward(const Gradients& g) override {
    const Tensors inputs(inputs_.begin(), inputs_.end());
    Tensor dy = g.outputs[0];
    dy.set_stamp(result_.stamp());
    const Tensors gradients = calls_.backward(dy, inputs, result_);
    require<ShapeError>(gradients.size() == inputs.size(), calls_.name, ": its backward gave ", gradients.size(),
                        " gradients, expected ", inputs.size(), ", undefined ones among them");
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (g.wanted(i) && gradients[i].defined()) take(g, i, inputs[i], on(inputs[i].device(), gradients[i]));
  }
  void release() override {
    inputs_.clear();
    result_ = {};
    calls_ = {};
  }

 private:
  /// Hands on the gradient of an input, or the sum of its rows.
  void take(const Gradients& g, std::size_t i, const Tensor& input, const Tensor& gradient) const {
    const std::string what = duet::concat("the gradient of input ", i);
    // Where no tensor has a stamp, only the gradient's own dimensions tell a parameter.
    const bool has_rows =
        input.stamp().stamped() || (!result_.stamp().stamped() && gradient.shape().rank() <= input.shape().rank());
    if (!calls_.sums_rows || has_rows) {
      require_floats_of(calls_.name, what, gradient, input.shape(), input.device());
      g.inputs[i] = gradient;
      return;
    }
    Shape each = {result_.size(0)}, one = {1};
    for (const std::int64_t size : input.shape()) each.append(size), one.append(size);
    require_floats_of(calls_.name, what, gradient, each, input.device());
    Tensor rows = gradient;
    rows.set_stamp(result_.stamp());
    backend(rows).sum(rows, true, g.place(i, input.shape(), input.device()).reshape(one));
  }

  CustomCalls calls_;
  std::vector<SavedTensor> inputs_;
  SavedTensor result_;
};

}  // namespace

Variable run_custom(const CustomCalls& calls, std::span<const Variable> arguments) {
  require<UsageError>(!arguments.empty(), calls.name, ": got no inputs, expected 1 or more");
  std::vector<Variable> plain;
  const Variable* place = &arguments[0];  // the first that is not on cpu:0, if there is one
  for (const Variable& argument : arguments) {
    require_floats(calls.name, argument);
    if (place->device() == Device{}) place = &argument;
  }
  const Device device = place->device();
  for (const Variable& argument : arguments) device_to_share(calls.name, {place, &argument});
  for (const Variable& argument : arguments) plain.push_back(to_plain(on(device, argument)));
  Tensors inputs;
  PooledVector<const Variable*> places;
  for (const Variable& input : plain) {
    inputs.push_back(input.value());
    places.push_back(&input);
  }
  Tensor y = calls.forward(inputs);
  require<ShapeError>(y.defined(), calls.name, ": its result is nothing, expected a tensor");
  y = on(device, y);
  require_floats_of(calls.name, "its result", y, y.shape(), inputs[0].device());
  require<ShapeError>(!calls.sums_rows || y.shape().rank() > 0, calls.name,
                      ": its result is a scalar, expected rows of a batch, over which it sums");
  y.set_stamp(stamp_of(calls.name, inputs, y.shape()));
  const std::span<const Variable* const> tape(places.data(), places.size());
  const OperatorKind kind{.linear = calls.linear, .sums = !calls.sums_rows, .reads = true, .reads_rows = true};
  if (!recorded(tape)) return constant_of(y, tape, kind);
  auto node = std::make_shared<CustomNode>(calls, inputs, y);
  for (const Variable& input : plain) node->add_edge(input.edge());
  node->set_kinds(kinds_of_result(y, tape, kind));
  if (checks_finite()) require_finite_step(*node, y, tape);
  if (calls.sums_rows) require_blocks(calls.name, tape);
  return Variable(y, std::move(node));
}

void check_gradients(const std::function<Variable(const std::vector<Variable>&)>& f, const Tensors& inputs,
                     const GradientCheck& options) {
  Tensor weights;  // of the elements of f, so that the check is one of a sum
  const auto value = [&](const std::vector<Variable>& x) {
    const Tensor y = to_plain(f(x)).value().to(Device{});
    double sum = 0;
    for (std::int64_t i = 0; i < y.count(); ++i)
      sum += static_cast<double>(weights.data<float>()[i]) * static_cast<double>(y.data<float>()[i]);
    return sum;
  };
  std::vector<Variable> leaves;
  for (const Tensor& input : inputs) leaves.emplace_back(input.clone(), true);
  const Variable y = to_plain(f(leaves));
  weights = empty(y.shape());
  Mt19937 generator(0);
  generator.uniform(weights.span<float>(), -1, 1);
  y.backward(weights.to(y.device()));
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Tensor gradient = leaves[k].grad().defined() ? leaves[k].grad().to(Device{}) : zeros(inputs[k].shape());
    double largest = 0;
    for (const float g : gradient.span<float>()) largest = std::max(largest, std::abs(static_cast<double>(g)));
    for (std::int64_t i = 0; i < inputs[k].count(); ++i) {
      double sides[2] = {}, at[2] = {};
      for (int side = 0; side < 2; ++side) {
        Tensor moved = inputs[k].to(Device{}).clone();
        moved.data<float>()[i] += static_cast<float>(side == 0 ? options.step : -options.step);
        at[side] = static_cast<double>(moved.data<float>()[i]);
        std::vector<Variable> x(inputs.begin(), inputs.end());
        x[k] = Variable(moved.to(inputs[k].device()).set_stamp(inputs[k].stamp()));
        sides[side] = value(x);
      }
      const double slope = (sides[0] - sides[1]) / (at[0] - at[1]),
                   got = static_cast<double>(gradient.data<float>()[i]);
      require<NumericError>(std::abs(got - slope) <= options.tolerance * std::max(largest, std::abs(slope)),
                            "check_gradients: element ", i, " of input ", k, " ", inputs[k].shape(), " has gradient ",
                            got, ", but slope ", slope);
    }
  }
}

}  // namespace duet::ops
