// A small transformer that learns to write a text, character by character. Alone, under DataParallel and under
// DistributedDataParallel, with the same bits.
//
//   char_gpt [MODE [DEVICES [TEXT [STEPS]]]]      MODE: single, dp or ddp; TEXT: a file, LICENSE unless given
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/data/dataset.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/error.h>
#include <duet/lib/nn/chain.h>
#include <duet/lib/nn/layers.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/ops/ops.h>
#include <duet/lib/optim/adam.h>
#include <duet/lib/random.h>

#include "modes.h"
#include "program.h"

using namespace duet;

namespace {

constexpr std::int64_t kBatch = 32, kLength = 32, kWidth = 32, kHeads = 4;

/// (N, length, width) -> the same: attention to earlier characters, then a network for each character.
class Block : public nn::Module {
 public:
  Block() {
    register_module("norm1", norm1_);
    register_module("qkv", qkv_);
    register_module("out", out_);
    register_module("norm2", norm2_);
    register_module("wide", wide_);
    register_module("narrow", narrow_);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable qkv = nn::chain(context, x, {norm1_, qkv_});
    const auto heads = [&](std::int64_t i) {  // (N, heads, length, width / heads) of the queries, keys or values
      const Variable part = ops::slice(qkv, 2, i * kWidth, (i + 1) * kWidth);
      return ops::transpose(ops::reshape(part, {-1, kLength, kHeads, kWidth / kHeads}), 1, 2);
    };
    const Variable seen = ops::scaled_dot_product_attention(heads(0), heads(1), heads(2), /*causal=*/true);
    const Variable y = x + out_.forward(context, ops::reshape(ops::transpose(seen, 1, 2), {-1, kLength, kWidth}));
    return y + nn::chain(context, y, {norm2_, wide_, gelu_, narrow_});
  }
  using nn::Module::forward;

 private:
  nn::LayerNorm norm1_{{kWidth}}, norm2_{{kWidth}};
  nn::Linear qkv_{kWidth, 3 * kWidth}, out_{kWidth, kWidth}, wide_{kWidth, 4 * kWidth}, narrow_{4 * kWidth, kWidth};
  nn::GELU gelu_;
};

/// Characters (N, length), as numbers -> logits of those that follow each (N, length, symbols).
class CharGpt : public nn::Module {
 public:
  explicit CharGpt(std::int64_t symbols) : symbols_(symbols, kWidth), head_(kWidth, symbols) {
    register_module("symbols", symbols_);
    register_module("places", places_);
    register_module("block1", block1_);
    register_module("block2", block2_);
    register_module("norm", norm_);
    register_module("head", head_);
    initialise(std::uint64_t{1});
  }
  Variable forward(nn::Context& context, const Variable& characters) const override {
    const Variable x = symbols_.forward(context, characters) + places_.weight(context);
    return nn::chain(context, x, {block1_, block2_, norm_, head_});
  }
  using nn::Module::forward;

 private:
  nn::Embedding symbols_, places_{kLength, kWidth};
  Block block1_, block2_;
  nn::LayerNorm norm_{{kWidth}};
  nn::Linear head_;
};

/// A text, its characters in order of their codes, and samples of length + 1 characters from drawn places.
class Text : public data::Dataset {
 public:
  Text(const std::string& file, std::int64_t samples) : samples_(samples) {
    std::ifstream stream(file);
    text_.assign(std::istreambuf_iterator<char>(stream), {});
    require<DataError>(std::ssize(text_) > kLength, "got ", text_.size(), " characters of ", file,
                       ", expected more than ", kLength);
    const std::set<char> found(text_.begin(), text_.end());
    symbols.assign(found.begin(), found.end());
  }
  std::int64_t size() const override { return samples_; }
  Shape sample_shape() const override { return {kLength + 1}; }
  bool has_labels() const override { return false; }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor&) const override {
    check(indices);
    float* number = samples.data<float>();
    for (const std::int64_t index : indices) {
      Mt19937 generator(static_cast<std::uint64_t>(index));
      const auto begin = static_cast<std::size_t>(generator.randint(0, std::ssize(text_) - kLength));
      for (const char one : text_.substr(begin, kLength + 1)) *number++ = static_cast<float>(symbols.find(one));
    }
  }
  std::string symbols;

 private:
  std::string text_;
  std::int64_t samples_;
};

/// The characters of samples (N, length + 1) from `begin` on, (N, length).
Tensor characters(const Tensor& samples, std::int64_t begin) {
  Tensor part = empty({samples.size(0), kLength}, DType::i64);
  for (std::int64_t i = 0; i < part.count(); ++i)
    part.data<std::int64_t>()[i] = static_cast<std::int64_t>(samples.data<float>()[i + i / kLength + begin]);
  return part.set_stamp(samples.stamp());
}

/// Writes on, behind these characters (1, length), until a line ends or has 80 characters.
std::string write_on(nn::Module& model, const Tensor& begin, const std::string& symbols) {
  const NoGrad no_grad;
  model.eval();
  Mt19937 generator(1);
  Tensor last = begin.clone();
  const std::span<std::int64_t> window = last.span<std::int64_t>();
  std::string line;
  while (line.size() < 80) {
    const Variable chances = ops::softmax(model(last), 2);
    const std::span<const float> next = chances.value().span<float>().last(symbols.size());
    std::size_t symbol = 0;
    for (double left = generator.uniform(); symbol + 1 < next.size() && (left -= next[symbol]) > 0;) ++symbol;
    std::shift_left(window.begin(), window.end(), 1);
    window.back() = static_cast<std::int64_t>(symbol);
    if (symbols[symbol] == '\n' && !line.empty()) break;
    line += symbols[symbol];
  }
  return line;
}

/// `net` is the model itself, or a wrapper around it.
void train(nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group, const Text& text) {
  data::Loader loader(text, examples::shuffled(text, kBatch, group));
  optim::AdamW opt(model, {.lr = 0.01f});
  std::int64_t step = 0;
  for (auto& [samples, labels] : loader) {
    opt.zero_grad();
    const Variable loss = ops::cross_entropy(net(characters(samples, 0)), characters(samples, 1));
    loss.backward();
    opt.step();
    if (examples::rank_of(group) == 0) examples::print_loss(step++, loader.steps(), loss);
  }
  if (examples::rank_of(group) != 0) return;
  const Tensor sample = empty({1, kLength + 1});
  text.fetch(std::vector<std::int64_t>{0}, sample, {});
  std::printf("written: %s\n", write_on(model, characters(sample, 1), text.symbols).c_str());
  examples::print_digest(model);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage =
      "[MODE [DEVICES [TEXT [STEPS]]]]      MODE: single, dp or ddp; TEXT: a file, LICENSE unless given";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    const std::string file = arguments.text(2);
    const Text text(file.empty() ? "LICENSE" : file, arguments.number(3, 500, 100'000) * kBatch);
    return examples::run_in_mode(
        arguments, [&] { return CharGpt(std::ssize(text.symbols)); },
        [&](nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group) { train(model, net, group, text); });
  });
}
