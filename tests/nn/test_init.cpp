// Initial values: the numbers of torch.nn.init, taken from PyTorch 2.15, and the order in which a network draws them.
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/nn/chain.h"
#include "lib/nn/init.h"
#include "lib/nn/layers.h"
#include "lib/random.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::nn;
using Words = std::vector<std::uint32_t>;

namespace {

std::vector<float> drawn(std::size_t count, const init::Fill& fill, Mt19937& generator) {
  std::vector<float> values(count);
  fill(values, generator);
  return values;
}

Words bits(const std::vector<float>& values) {
  Words words;
  for (const float value : values) words.push_back(std::bit_cast<std::uint32_t>(value));
  return words;
}

std::string digest(std::span<const float> values) { return sha256_hex(std::as_bytes(values)); }

/// Draws over its linear layers, as VGG's constructor in PyTorch does.
struct Redrawn : Module {
  Redrawn() {
    body.add<Linear>(4, 6);
    body.add<Linear>(6, 3);
    register_module("conv", conv);
    register_module("body", body);
    draw_over([](const Module& layer, const std::string& name, const Shape&) -> Fill {
      if (dynamic_cast<const Linear*>(&layer) == nullptr) return {};
      return name == "bias" ? init::constant(0) : init::normal(0, 0.01);
    });
  }
  Conv2d conv{2, 5, 3};
  Sequential body;
};

/// Draws over a part of another model's.
struct Adopting : Module {
  explicit Adopting(Linear& part) {
    register_module("part", part);
    draw_over([](const Module&, const std::string&, const Shape&) -> Fill { return init::constant(7); });
  }
};

struct Pair : Module {
  Pair() {
    register_module("first", first);
    register_module("second", second);
  }
  Redrawn first;
  Linear second{3, 2};
};

}  // namespace

TEST_CASE("a part that had values before it was registered is not drawn over, unless the model is drawn again") {
  Linear part(4, 6);
  part.initialise(std::uint64_t{3});
  const std::string before = digest(part.parameters().values().span<float>());
  Adopting model(part);
  CHECK(digest(model.parameters().values().span<float>()) == before);
  model.initialise(std::uint64_t{3});
  CHECK(model.parameters().values().span<float>()[0] == 7);
}

// torch.manual_seed(5); t = torch.empty(n).normal_(mean, std), one after the other.
TEST_CASE("normal values are PyTorch's, many at once and few, which keep half a pair") {
  Mt19937 generator(5);
  CHECK(digest(drawn(40, init::normal(0.5, 0.01), generator)) ==
        "8352aced7c672d16fdc207f876baf0e860ba2bc013b1c5e564ae495d641d93e2");
  CHECK(bits(drawn(5, init::normal(0.5, 0.01), generator)) ==
        Words{0x3ef5fed9, 0x3efd23a8, 0x3f01197d, 0x3ef4681d, 0x3efef79d});
  CHECK(bits(drawn(5, init::normal(1.5, 3), generator)) ==
        Words{0x40968013, 0x401e544b, 0x3fa5c077, 0xbfbe7046, 0x409f0098});
  CHECK(digest(drawn(40, init::kaiming_normal_fan_out({2, 5, 2, 2}), generator)) ==
        "d59bbdff03b4010614ab41a9ad62999beb3323dd38b7a5b35020c676e7c8ca18");
}

TEST_CASE("constants draw nothing, uniform values one word each") {
  Mt19937 generator(1), other(1);
  CHECK(drawn(2, init::constant(1.5f), generator) == std::vector<float>{1.5f, 1.5f});
  std::vector<float> expected(3);
  other.uniform(expected, -2, 1);
  CHECK(drawn(3, init::uniform(-2, 1), generator) == expected);
  CHECK(generator.random() == other.random());
  CHECK_THROWS_WITH(init::kaiming_normal_fan_out({4}),
                    "kaiming_normal_fan_out: got a weight of shape [4], expected two dimensions or more");
}

// torch.manual_seed(3), a module with the constructor of VGG's form, then torch.nn.Linear(3, 2).
TEST_CASE("a network draws over its layers' values after all of them, and before the next module draws") {
  Pair model;
  model.initialise(std::uint64_t{3});
  const std::vector<std::string> expected = {"27b7fd68353fb6b2", "be1570ae888afb5d", "8a48261134ded8c0",
                                             "9d908ecfb6b256de", "b6f4f5be0c2af3c7", "15ec7bf0b50732b4",
                                             "433735eea58d591d", "c4b28ee10d742bc7"};
  const FlatParameters& store = model.parameters();
  REQUIRE(store.slot_count() == 8);
  for (int slot = 0; slot < 8; ++slot) {
    INFO(store.slots()[static_cast<std::size_t>(slot)].name);
    CHECK(digest(store.value(slot).span<float>()).substr(0, 16) == expected[static_cast<std::size_t>(slot)]);
  }
}

TEST_CASE("parameters are counted without making values") {
  Pair model;
  CHECK(model.parameter_count() == 5 * 2 * 9 + 5 + 4 * 6 + 6 + 6 * 3 + 3 + 3 * 2 + 2);
  model.first.body.add<Linear>(3, 3);  // refused once there are values
  CHECK(model.parameter_count() == 5 * 2 * 9 + 5 + 4 * 6 + 6 + 6 * 3 + 3 + 3 * 2 + 2 + 12);
}
