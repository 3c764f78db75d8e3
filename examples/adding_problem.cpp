// The adding problem (Hochreiter and Schmidhuber, 1997): an LSTM reads numbers, of which two are marked, and gives the
// sum of these. Alone, under DataParallel and under DistributedDataParallel, with the same bits.
//
//   adding_problem [MODE [DEVICES [STEPS]]]      MODE: single, dp or ddp
#include <cstdint>
#include <span>

#include <duet/duet.h>

#include "modes.h"
#include "program.h"

using namespace duet;

namespace {

constexpr std::int64_t kBatch = 64, kLength = 16, kHidden = 32;

/// Sequences (length, 2) of a number in [0, 1) and a mark, 1 at one place in each half and else 0.
struct Sequences : data::Dataset {
  std::int64_t size() const override { return samples; }
  Shape sample_shape() const override { return {kLength, 2}; }
  bool has_labels() const override { return false; }
  void fetch(std::span<const std::int64_t> indices, const Tensor& sequences, const Tensor&) const override {
    float* pair = sequences.data<float>();
    for (const std::int64_t index : indices) {
      Mt19937 generator(static_cast<std::uint64_t>(index));
      const std::int64_t half = kLength / 2, marks[] = {generator.randint(0, half), generator.randint(half, kLength)};
      for (std::int64_t i = 0; i < kLength; ++i, pair += 2) {
        pair[0] = static_cast<float>(generator.uniform());
        pair[1] = i == marks[0] || i == marks[1] ? 1.0f : 0.0f;
      }
    }
  }
  std::int64_t samples = 0;
};

/// (N, length, 2) -> the sum (N, 1), from the state after the last step.
struct Adder : nn::Module {
  Adder() {
    register_module("lstm", lstm);
    register_module("head", head);
    initialise(std::uint64_t{1});
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return head.forward(context, ops::reshape(lstm.with_state(context, x).hidden, {-1, kHidden}));
  }
  using nn::Module::forward;
  nn::LSTM lstm{2, kHidden};
  nn::Linear head{kHidden, 1};
};

/// `net` is the model itself, or a wrapper around it.
void train(nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group, const Sequences& set) {
  data::Loader loader(set, examples::shuffled(set, kBatch, group));
  optim::Adam opt(model, {.lr = 0.01f});
  std::int64_t step = 0;
  for (auto& [sequences, labels] : loader) {
    opt.zero_grad();
    const Variable sums = ops::sum(ops::slice(sequences, 2, 0, 1) * ops::slice(sequences, 2, 1, 2), {1});
    const Variable loss = ops::mse_loss(net(sequences), sums.value());
    loss.backward();
    opt.step();
    if (examples::rank_of(group) == 0) examples::print_loss(step++, loader.steps(), loss);
  }
  if (examples::rank_of(group) == 0) examples::print_digest(model);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage = "[MODE [DEVICES [STEPS]]]      MODE: single, dp or ddp";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    Sequences set;
    set.samples = arguments.number(2, 1000, 100'000) * kBatch;
    return examples::run_in_mode(
        arguments, [] { return Adder(); },
        [&](nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group) { train(model, net, group, set); });
  });
}
