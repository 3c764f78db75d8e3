// LSTM and GRU: PyTorch's numbers, gradients against differences, and what they refuse.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/autograd/check_finite.h"
#include "lib/base/sha256.h"
#include "lib/nn/recurrent.h"
#include "lib/ops/custom.h"
#include "lib/ops/ops.h"
#include "lib/optim/sgd.h"
#include "tests/support/catch2.h"
#include "tests/support/said.h"

using namespace duet;
using duet_test::Approx;

namespace {

/// What PyTorch 1.13.1 gives for kind(3, 5, num_layers=2, batch_first=True) after torch.manual_seed(1234), the input,
/// state and loss below, and optim.SGD with lr=0.5; tensors by probe().
struct Recorded {
  const char *text, *digest;
  double from_zero;                          // output from a state of zeros
  std::vector<double> values;                // output, hidden state, cell
  std::vector<double> gradients, of_inputs;  // of the parameters; of the input, hidden state and cell
  std::vector<double> after;                 // parameters after three steps of SGD
};
const Recorded kLstm = {"LSTM(3, 5, num_layers=2, batch_first=True)",
                        "6d0c58d6244f07fb0ab8c76b610e4d103178f529cf8d470cc54fe09a3b99ce61",
                        .005298781,
                        {.4151707, -.219114, -.5921245},
                        {.0472414, .05869046, .16378119, .1637812, -.03677614, .01895493, -.03024348, -.03024348},
                        {.004373885, .004728447, .001079788},
                        {.9925037, 3.0136995, .3256881, -.6698172, .144292, .9960496, .2065682, .2052468}};
const Recorded kGru = {"GRU(3, 5, num_layers=2, batch_first=True)",
                       "57f1f99c9724dc4496bed9c6c243956107ffa5fb59c31e826797badcb4ca7bc8",
                       .1514148876,
                       {-.9980757, 2.0530399},
                       {-.03289615, .02818935, -.09972073, -.05254089, -.06258745, .24199978, .28553989, .18199863},
                       {-.0120920586, .1804525295},
                       {1.2477168, -2.5999163, -.9348069, .9142156, 2.2950498, -.5106759, .0686641, .1769667}};

/// The sum of t[i] cos(i), which tells elements apart.
double probe(const Tensor& t) {
  double sum = 0;
  for (std::int64_t i = 0; i < t.count(); ++i) sum += double{t.data<float>()[i]} * std::cos(static_cast<double>(i));
  return sum;
}

Tensor waves(const Shape& shape, float (*wave)(float), float factor = 1) {
  Tensor x = empty(shape);
  for (std::int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = wave(factor * static_cast<float>(i));
  return x;
}

void check_probes(const std::vector<Tensor>& tensors, const std::vector<double>& expected) {
  REQUIRE(tensors.size() == expected.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) CHECK(probe(tensors[i]) == Approx(expected[i]).margin(3e-7));
}

template <class Layer>
void check_parity(const Recorded& recorded) {
  Layer model(3, 5, {.num_layers = 2});
  model.initialise(std::uint64_t{1234});
  CHECK(model.str() == recorded.text);
  Sha256 sha;
  for (int slot = 0; slot < 8; ++slot) sha.update(std::as_bytes(model.parameters().value(slot).template span<float>()));
  CHECK(sha.hex() == recorded.digest);
  std::string names;
  for (const NamedTensor& one : model.state_dict()) names += one.name + " ";
  CHECK(names == "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_ih_l1 weight_hh_l1 bias_ih_l1 bias_hh_l1 ");

  const Variable x(waves({4, 6, 3}, std::sin), true), h(waves({4, 2, 5}, std::cos), true);
  const Variable c(waves({4, 2, 5}, std::sin, 2), true);
  CHECK(probe(model(x).value()) == Approx(recorded.from_zero).margin(3e-7));
  const bool lstm = recorded.values.size() == 3;
  const auto run = [&] { return model.with_state(model.context(), x, h, lstm ? c : Variable()); };
  const auto loss_of = [&](const nn::Recurrent::Result& result) {
    const auto squares = [](const Variable& y) { return ops::mean(y * y); };
    const Variable loss = squares(result.output) + squares(result.hidden);
    return lstm ? loss + squares(result.cell) : loss;
  };
  const nn::Recurrent::Result result = run();
  std::vector<Tensor> values = {result.output.value(), result.hidden.value()}, of_inputs, gradients, after;
  if (lstm) values.push_back(result.cell.value());
  check_probes(values, recorded.values);
  loss_of(result).backward();
  for (int slot = 0; slot < 8; ++slot) gradients.push_back(model.parameters().gradient(slot).clone());
  check_probes(gradients, recorded.gradients);
  of_inputs = {x.grad(), h.grad()};
  if (lstm) of_inputs.push_back(c.grad());
  check_probes(of_inputs, recorded.of_inputs);
  optim::SGD opt(model, {.lr = 0.5f});
  for (int step = 0; step < 3; ++step) {
    opt.zero_grad();
    loss_of(run()).backward();
    opt.step();
  }
  for (int slot = 0; slot < 8; ++slot) after.push_back(model.parameters().value(slot));
  check_probes(after, recorded.after);
}

template <class Layer>
void check_differences(bool bias) {
  Layer model(2, 3, {.num_layers = 2, .bias = bias});
  model.initialise(std::uint64_t{1});
  // Of one loss, so that gradients of the output, of the last state, and of both meet.
  const auto all = [&](const std::vector<Variable>& in) {
    const bool lstm = std::is_same_v<Layer, nn::LSTM>;
    const auto result = model.with_state(model.context(), in[0], in[1], lstm ? in[2] : Variable());
    return ops::concat({result.output, lstm ? result.cell : in[2], result.hidden});
  };
  ops::check_gradients(all, {waves({2, 4, 2}, std::sin), waves({2, 2, 3}, std::cos), waves({2, 2, 3}, std::sin)});
}

}  // namespace

TEST_CASE("an LSTM and a GRU have PyTorch's weights, values, gradients and steps") {
  check_parity<nn::LSTM>(kLstm);
  check_parity<nn::GRU>(kGru);
}

TEST_CASE("gradients of recurrent layers are slopes") {
  for (const bool bias : {true, false}) {
    check_differences<nn::LSTM>(bias);
    check_differences<nn::GRU>(bias);
  }
}

TEST_CASE("recurrent layers continue from a state, and refuse other shapes") {
  nn::LSTM model(3, 5);
  const Tensor x = waves({2, 4, 3}, std::sin);
  const auto all = model.with_state(model.context(), x, zeros({2, 1, 5}));
  const auto first = model.with_state(model.context(), ops::slice(x, 1, 0, 3));
  const auto last = model.with_state(model.context(), ops::slice(x, 1, 3, 4), first.hidden, first.cell);
  CHECK(probe(last.hidden.value()) == probe(all.hidden.value()));
  CHECK(probe(last.cell.value()) == probe(all.cell.value()));
  CHECK_THROWS_WITH(model(zeros({2, 3})), "LSTM: recurrent layer: got shape [2, 3], expected (N, L, input)");
  CHECK_THROWS_WITH(model(zeros({2, 0, 3})), "LSTM: recurrent layer: got shape [2, 0, 3], expected 1 or more steps");
  CHECK_THROWS_WITH(model.with_state(model.context(), x, zeros({1, 2, 5})),
                    "LSTM: hidden state of shape [1, 2, 5], expected [2, 1, 5]");
  nn::GRU gru(3, 5);
  CHECK_THROWS_WITH(gru.with_state(gru.context(), x, {}, zeros({2, 1, 5})),
                    "GRU: got a cell, expected a hidden state only");
  CHECK_THROWS_WITH(nn::GRU(3, 0), "GRU: 3 to 0 features in 1 layers, expected 1 or more");
}

TEST_CASE("dropout between recurrent layers has the checks of Dropout, and warns if it has no effect") {
  const duet_test::Said said;
  for (const int layers : {1, 2}) nn::GRU(3, 5, {.num_layers = layers, .dropout = 0.5});
  CHECK(said.text() == "warning: GRU: dropout is between layers, of which there is one: it has no effect\n");
  nn::LSTM model(3, 5, {.num_layers = 2, .dropout = 0.5});
  const CheckFinite check;
  nn::Context context = model.context();
  context.stamped = true;
  CHECK_THROWS_WITH(model.with_state(context, waves({2, 4, 3}, std::sin)),
                    duet_test::ContainsSubstring("its input has no stamp, but the model's input has"));
}
