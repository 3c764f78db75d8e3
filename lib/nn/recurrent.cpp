#include "lib/nn/recurrent.h"

#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/base/environment.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::nn {
namespace {

/// All steps of one layer. Its inputs: the input's products (N, L, gates * hidden), the weight and bias of the state's
/// products, hidden state and cell (N, hidden). Its outputs (N, L, hidden): all hidden states, and the cells of an
/// LSTM.
class LayerNode final : public Node {
 public:
  LayerNode(bool lstm, const Variable& gates, const Variable& w, const Variable& hidden, const Variable& cell)
      : Node(2),
        gates_(gates.value()),
        kept_(ops::result_of(gates, gates.shape().with(2, w.size(1)))),
        squashed_(lstm ? empty_like(kept_) : Tensor()),
        w_(w, "weight_hh"),
        hidden_(hidden, "hidden state"),
        cell_(cell, "cell state"),
        lstm_(lstm) {}
  const char* name() const override { return lstm_ ? "lstm" : "gru"; }

  /// Returns the outputs; the input's products become the activations.
  std::pair<Tensor, Tensor> forward(const Tensor& b) {
    const Tensor h = hidden_.clone(), product = empty({rows(), gates_.size(2)}, DType::f32, w_.device());
    Tensor output = empty_like(kept_);
    output.set_stamp(kept_.stamp());
    for (std::int64_t t = 0; t < steps(); ++t) {
      backend(h).linear_forward(h, w_, b, product);
      lstm_ ? lstm(t, product, at(h)) : gru(t, product, at(h));
      run(P::copy, at(output, t), at(h));
    }
    output_ = SavedTensor(output, "output");
    return {output, kept_};
  }

  void reached() override {
    for (const SavedTensor* const one : {&w_, &hidden_, &cell_, &output_}) one->require_unmodified(name());
  }
  void backward(const Gradients& g) override {
    const Tensor dh = zeros_like(hidden_, hidden_.shape()), dc = zeros_like(hidden_, hidden_.shape());
    const Tensor d = empty({rows(), gates_.size(2)}, DType::f32, w_.device()), e = lstm_ ? d : empty_like(d);
    const Tensor gates = g.place(0, gates_.shape(), w_.device()), scratch = empty_like(dh);
    Tensor products = lstm_ ? gates : empty_like(gates), before = empty_like(output_);
    for (std::int64_t t = steps() - 1; t >= 0; --t) {
      if (g.outputs[0].defined()) run(P::add, at(dh), at(dh), at(g.outputs[0], t));
      if (g.outputs[1].defined()) run(P::add, at(dc), at(dc), at(g.outputs[1], t));
      lstm_ ? lstm_gradient(t, at(dh), at(dc), d, at(scratch)) : gru_gradient(t, at(dh), at(dc), d, e, at(scratch));
      copy_gates(gates, t, d);
      if (!lstm_) copy_gates(products, t, e);
      run(P::copy, at(before, t), last(output_, hidden_, t));
      backend(dh).linear_backward(e, dh, w_, dh, {}, {});
      if (!lstm_) run(P::add, at(dh), at(dh), at(dc));
    }
    // One product for all steps, by the blocks of the batch: a sum over steps would be one of each device's own.
    products.set_stamp(output_.stamp());
    before.set_stamp(output_.stamp());
    const Tensor db = g.wanted(2) ? g.place(2, {w_.size(0)}, w_.device()) : Tensor();
    if (g.wanted(1) || g.wanted(2))
      backend(before).linear_backward(products, before, w_, {}, g.place(1, w_.shape(), w_.device()), db);
    if (g.wanted(3)) g.inputs[3] = dh;
    if (g.wanted(4)) g.inputs[4] = dc;
  }
  void release() override { gates_ = kept_ = squashed_ = w_ = hidden_ = cell_ = output_ = {}; }

 private:
  using P = Pointwise;
  static Tensor empty_like(const Tensor& x) { return empty(x.shape(), DType::f32, x.device()); }
  std::int64_t rows() const { return kept_.size(0); }
  std::int64_t steps() const { return kept_.size(1); }
  std::int64_t width() const { return kept_.size(2); }

  /// The place of step t of x (N, L, ...), or of x (N, ...), from a gate on.
  Strided at(const Tensor& x, std::int64_t t = 0, int gate = 0) const {
    Strided place{.tensor = x, .strides = {x.shape().count_from(1), 1}};
    place.begin = t * x.size(-1) + gate * width();
    return place;
  }
  Strided last(const Tensor& all, const Tensor& first, std::int64_t t) const {
    return t > 0 ? at(all, t - 1) : at(first);
  }
  /// y = f(a, b, c) for a number of gates.
  void run(P f, const Strided& y, const Strided& a, const Strided& b = {}, const Strided& c = {}, int gates = 1) const {
    backend(y.tensor).pointwise(f, {rows(), gates * width()}, {a, b, c}, y);
  }
  void copy_gates(const Tensor& all, std::int64_t t, const Tensor& one) const {
    run(P::copy, at(all, t), at(one), {}, {}, lstm_ ? 4 : 3);
  }

  void lstm(std::int64_t t, const Tensor& product, const Strided& h) const {
    const Strided i = at(gates_, t), f = at(gates_, t, 1), g = at(gates_, t, 2), o = at(gates_, t, 3);
    const Strided c = at(kept_, t), squashed = at(squashed_, t);
    run(P::add, i, i, at(product), {}, 4);
    run(P::sigmoid, i, i, {}, {}, 2), run(P::tanh, g, g), run(P::sigmoid, o, o);
    run(P::mul, c, f, last(kept_, cell_, t)), run(P::mul, h, i, g), run(P::add, c, c, h);
    run(P::tanh, squashed, c), run(P::mul, h, o, squashed);
  }
  /// dc becomes the gradient of the cell before.
  void lstm_gradient(std::int64_t t, const Strided& dh, const Strided& dc, const Tensor& d, const Strided& s) const {
    const Strided i = at(gates_, t), f = at(gates_, t, 1), g = at(gates_, t, 2), o = at(gates_, t, 3);
    const Strided squashed = at(squashed_, t);
    run(P::mul, s, dh, squashed), run(P::sigmoid_gradient, at(d, 0, 3), o, {}, s);
    run(P::mul, s, dh, o), run(P::tanh_gradient, s, squashed, {}, s), run(P::add, dc, dc, s);
    run(P::mul, s, dc, g), run(P::sigmoid_gradient, at(d), i, {}, s);
    run(P::mul, s, dc, last(kept_, cell_, t)), run(P::sigmoid_gradient, at(d, 0, 1), f, {}, s);
    run(P::mul, s, dc, i), run(P::tanh_gradient, at(d, 0, 2), g, {}, s), run(P::mul, dc, dc, f);
  }

  void gru(std::int64_t t, const Tensor& product, const Strided& h) const {
    const Strided r = at(gates_, t), z = at(gates_, t, 1), n = at(gates_, t, 2), of_n = at(product, 0, 2);
    run(P::add, r, r, at(product), {}, 2), run(P::sigmoid, r, r, {}, {}, 2), run(P::copy, at(kept_, t), of_n);
    run(P::mul, of_n, of_n, r), run(P::add, n, n, of_n), run(P::tanh, n, n);
    run(P::sub, h, h, n), run(P::mul, h, h, z), run(P::add, h, h, n);
  }
  /// `d`: of the input's products; `e`: of the state's; `rest`: of the state before, but for that through its product.
  void gru_gradient(std::int64_t t, const Strided& dh, const Strided& rest, const Tensor& d, const Tensor& e,
                    const Strided& s) const {
    const Strided r = at(gates_, t), z = at(gates_, t, 1), n = at(gates_, t, 2), dn = at(d, 0, 2);
    run(P::sub, s, last(output_, hidden_, t), n), run(P::mul, s, s, dh);
    run(P::sigmoid_gradient, at(d, 0, 1), z, {}, s), run(P::mul, rest, dh, z), run(P::sub, s, dh, rest);
    run(P::tanh_gradient, dn, n, {}, s), run(P::mul, s, dn, at(kept_, t)), run(P::sigmoid_gradient, at(d), r, {}, s);
    run(P::copy, at(e), at(d), {}, {}, 2), run(P::mul, at(e, 0, 2), dn, r);
  }

  Tensor gates_;     // activations
  Tensor kept_;      // cells of an LSTM; of a GRU the state's products for gate n
  Tensor squashed_;  // tanh of the cells
  SavedTensor w_, hidden_, cell_, output_;
  bool lstm_;
};

/// All hidden states and cells of one layer; `gates` is used up.
std::pair<Variable, Variable> run_layer(bool lstm, const Variable& gates, const Variable& w, const Variable& b,
                                        const Variable& hidden, const Variable& cell) {
  const auto node = std::make_shared<LayerNode>(lstm, gates, w, hidden, cell);
  const auto [output, cells] = node->forward(ops::value_or_none(b));
  const Variable* const inputs[] = {&gates, &w, &b, &hidden, &cell};
  if (!ops::recorded(inputs)) return {output, cells};
  for (const Variable* const input : inputs) node->add_edge(input->defined() ? input->edge() : Edge{});
  node->set_kinds(ops::kinds_of_result(output, inputs, {}));
  if (checks_finite()) ops::require_finite_step(*node, output, inputs);
  ops::require_blocks(node->name(), inputs);
  return {Variable(output, node, 0), Variable(cells, node, 1)};
}

}  // namespace

Recurrent::Recurrent(bool lstm, std::int64_t input_size, std::int64_t hidden_size, const RecurrentOptions& options)
    : lstm_(lstm), input_(input_size), hidden_(hidden_size), options_(options) {
  const char* const name = lstm ? "LSTM" : "GRU";
  require<UsageError>(input_ > 0 && hidden_ > 0 && options.num_layers > 0, name, ": ", input_, " to ", hidden_,
                      " features in ", options.num_layers, " layers, expected 1 or more");
  ops::require_probability(name, options.dropout);
  if (options.dropout > 0 && options.num_layers == 1 && is_first_rank())
    std::cerr << concat("warning: ", name, ": dropout is between layers, of which there is one: it has no effect\n");
  const std::int64_t gates = (lstm ? 4 : 3) * hidden_;
  const double bound = 1 / std::sqrt(static_cast<double>(hidden_));
  for (int layer = 0; layer < options.num_layers; ++layer) {
    const auto add = [&](const char* of, const Shape& shape) {
      register_parameter(concat(of, "_l", layer), shape, init::uniform(-bound, bound));
    };
    add("weight_ih", {gates, layer == 0 ? input_ : hidden_});
    add("weight_hh", {gates, hidden_});
    if (!options.bias) continue;
    add("bias_ih", {gates});
    add("bias_hh", {gates});
  }
}

Variable Recurrent::drop(Context& context, const Variable& x) const {
  if (!training() || options_.dropout == 0) return x;
  if (context.stream != nullptr) return Dropout::drop_by_stream(context, x, options_.dropout);
  return ops::dropout(x, Dropout::key_of(context, x.value(), options_.dropout, layer(context)));
}

Recurrent::Result Recurrent::with_state(Context& context, const Variable& x, const Variable& hidden,
                                        const Variable& cell) const {
  return name_errors([&] {
    ops::require_rank("recurrent layer", x, 3, "(N, L, input)");
    const std::int64_t steps = x.size(1);
    require<ShapeError>(steps > 0, "recurrent layer: got shape ", x.shape(), ", expected 1 or more steps");
    require<UsageError>(lstm_ || !cell.defined(), "got a cell, expected a hidden state only");
    const Shape all = {x.size(0), options_.num_layers, hidden_};
    const Variable zero(zeros_like(parameter(context, 0), {x.size(0), hidden_}));
    const auto first = [&](const Variable& state, const char* what, int layer) {
      if (!state.defined()) return zero;
      require<ShapeError>(state.shape() == all, what, " of shape ", state.shape(), ", expected ", all);
      return ops::reshape(ops::slice(ops::on(zero.device(), state), 1, layer, layer + 1), {-1, hidden_});
    };
    Result result{.output = x, .hidden = {}, .cell = {}};
    std::vector<Variable> hiddens, cells;
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      const int number = layer * (options_.bias ? 4 : 2);
      const auto bias = [&](int of) { return options_.bias ? parameter(context, number + of) : Variable(); };
      const Variable in = layer > 0 ? drop(context, result.output) : x;
      const auto [output, all_cells] =
          run_layer(lstm_, ops::linear(in, parameter(context, number), bias(2)), parameter(context, number + 1),
                    bias(3), first(hidden, "hidden state", layer), first(cell, "cell state", layer));
      result.output = output;
      hiddens.push_back(ops::slice(output, 1, steps - 1, steps));
      if (lstm_) cells.push_back(ops::slice(all_cells, 1, steps - 1, steps));
    }
    result.hidden = ops::concat(std::span<const Variable>(hiddens));
    if (lstm_) result.cell = ops::concat(std::span<const Variable>(cells));
    return result;
  });
}

std::string Recurrent::details() const {
  std::string text = concat(input_, ", ", hidden_);
  if (options_.num_layers != 1) text += concat(", num_layers=", options_.num_layers);
  text += options_.bias ? ", batch_first=True" : ", bias=False, batch_first=True";
  return options_.dropout != 0 ? concat(text, ", dropout=", options_.dropout) : text;
}

}  // namespace duet::nn
