// A dropout that runs more than once on a batch: in one forward, in two, on parts of the batch.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/autograd/grad_mode.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::nn;

namespace {

using Values = std::vector<float>;

Values values_of(const Variable& y) {
  const Tensor all = y.value();
  return {all.span<float>().begin(), all.span<float>().end()};
}

double share_kept(const Values& values) {
  return 1 - static_cast<double>(std::ranges::count(values, 0.0f)) / static_cast<double>(values.size());
}

Tensor ones(const Shape& shape) {
  Tensor x = empty(shape);
  std::ranges::fill(x.span<float>(), 1.0f);
  return x;
}

/// drop(x), or drop(drop(x)).
struct Drops : Module {
  explicit Drops(int the_times) : times(the_times) {
    register_module("drop", drop);
    initialise(std::uint64_t{5});
  }
  Variable forward(Context& context, const Variable& x) const override {
    Variable y = x;
    for (int i = 0; i < times; ++i) y = drop.forward(context, y);
    return y;
  }
  using Module::forward;
  std::string type_name() const override { return "Drops"; }
  int times;
  Dropout drop{0.5};
};

/// 16 samples of ones, in batches of 8.
struct Ones : data::Dataset {
  std::int64_t size() const override { return 16; }
  Shape sample_shape() const override { return {256}; }
  bool has_labels() const override { return false; }
  void fetch(std::span<const std::int64_t>, const Tensor& samples, const Tensor&) const override {
    std::ranges::fill(samples.span<float>(), 1.0f);
  }
};

std::unique_ptr<data::Loader> loader_of(const Ones& set, int workers = 0) {
  return std::make_unique<data::Loader>(
      set,
      std::make_unique<samplers::BlockedBatches>(std::make_unique<samplers::SequentialSampler>(set.size()),
                                                 samplers::BlockedOptions{.global_batch = 8}),
      data::LoaderOptions{.workers = workers});
}

}  // namespace

TEST_CASE("one dropout at two places of forward draws two masks") {
  Tensor x = ones({64, 256});
  const double once = share_kept(values_of(Drops(1)(x))), twice = share_kept(values_of(Drops(2)(x)));
  CHECK(once > 0.48);
  CHECK(once < 0.52);
  CHECK(twice > 0.23);
  CHECK(twice < 0.27);
  x.set_stamp({.step = 3, .first = 0, .global = 64});
  CHECK(share_kept(values_of(Drops(4)(x))) < 0.08);
}

TEST_CASE("one dropout in two fused runs of a chain draws two masks") {
  struct Chain : Module {
    Chain() {
      register_module("linear", linear);
      register_module("drop", drop);
      initialise(std::uint64_t{5});
      std::ranges::fill(parameters().value(0).span<float>(), 0.0f);
      std::ranges::fill(parameters().value(1).span<float>(), 1.0f);
    }
    Variable forward(Context& context, const Variable& x) const override {
      const Variable y = chain(context, x, {linear, relu, drop});
      outputs[0] = values_of(y);
      outputs[1] = values_of(chain(context, x, {linear, relu, drop}));
      return y;
    }
    using Module::forward;
    std::string type_name() const override { return "Chain"; }
    Linear linear{4, 64};
    ReLU relu;
    Dropout drop{0.5};
    mutable Values outputs[2];
  };
  Chain net;
  net(ones({32, 4}));
  CHECK(net.outputs[0] != net.outputs[1]);
}

TEST_CASE("two forwards of one batch draw two masks, and the batch delivered again draws the first ones again") {
  const Ones set;
  for (const int workers : {0, 1}) {
    CAPTURE(workers);
    const auto loader = loader_of(set, workers);
    Drops net(1);
    std::vector<Values> first;
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<Values> all;
      loader->set_position({0, 0});
      for (auto& [x, labels] : *loader) {
        all.push_back(values_of(net(x)));
        all.push_back(values_of(net(x)));
      }
      REQUIRE(all.size() == 4);
      CHECK(all[0] != all[1]);
      CHECK(all[2] != all[3]);
      CHECK(all[1] != all[2]);
      if (pass == 0) first = all;
      CHECK(all == first);
    }
    // A training that begins with the second batch, as after a checkpoint; and one with one forward for each batch.
    Drops resumed(1), once(1);
    loader->set_position({0, 1});
    const auto at = loader->begin();
    CHECK(values_of(resumed(at->images)) == first[2]);
    CHECK(values_of(resumed(at->images)) == first[3]);
    loader->set_position({0, 0});
    std::size_t number = 0;
    for (auto& [x, labels] : *loader) {
      once.eval();  // which draws nothing, and counts nothing
      once(x);
      once.train();
      CHECK(values_of(once(x)) == first[number]);
      number += 2;
    }
  }
}

TEST_CASE("forwards without a stamp draw other masks each time, as Monte Carlo dropout needs without gradients") {
  std::optional<NoGrad> guard;
  if (GENERATE(false, true)) guard.emplace();
  const Tensor x = ones({8, 256});
  Drops net(1);
  std::vector<Values> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(values_of(net(x)));
    CHECK(std::ranges::count(all, all.back()) == 1);
  }
}

TEST_CASE("parts of a batch draw what they draw in the whole batch") {
  const Ones set;
  const auto loader = loader_of(set);
  const auto at = loader->begin();
  const Tensor x = at->images;
  Drops whole(2), parts(2);
  for (int pass = 0; pass < 2; ++pass) {
    const Values all = values_of(whole(x));
    Values joined;
    for (const std::int64_t begin : {0, 3, 6}) {
      const Values part = values_of(parts(x.rows(begin, std::min<std::int64_t>(begin + 3, 8))));
      joined.insert(joined.end(), part.begin(), part.end());
    }
    CHECK(all == joined);
  }
  // Rows that were in any forward before draw other numbers.
  Drops net(1);
  const Values before = values_of(net(x)), part = values_of(net(x.rows(4, 8)));
  CHECK_FALSE(std::equal(part.begin(), part.end(), before.begin() + 4 * 256));
  const Values after = values_of(net(x));
  CHECK_FALSE(std::equal(part.begin(), part.end(), after.begin() + 4 * 256));
}

TEST_CASE("initialise resets a dropout's counts") {
  Tensor x = ones({8, 256});
  x.set_stamp({.step = 2, .first = 0, .global = 8});
  Drops net(1);
  const Values first = values_of(net(x));
  CHECK(values_of(net(x)) != first);
  net.initialise(std::uint64_t{5});
  CHECK(values_of(net(x)) == first);
}
