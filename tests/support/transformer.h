// A small transformer that is written from layers and operators.
#pragma once

#include <cstdint>

#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/ops/ops.h"

namespace duet_test {

struct TransformerSizes {
  std::int64_t width, heads, length, symbols;
  double dropout = 0;
  int blocks = 1;
};

/// (N, length, width) -> the same: causal attention, then a hidden layer, each added to what it reads.
struct CausalBlock final : duet::nn::Module {
  explicit CausalBlock(const TransformerSizes& s) : sizes(s) {
    register_module("norm1", norm1);
    register_module("in", in);
    register_module("out", out);
    register_module("norm2", norm2);
    register_module("wide", wide);
    register_module("narrow", narrow);
    register_module("dropout", dropout);
  }
  duet::Variable forward(duet::nn::Context& context, const duet::Variable& x) const override {
    const duet::Variable all = duet::nn::chain(context, x, {norm1, in});
    const auto heads = [&](std::int64_t i) {
      const duet::Variable part = duet::ops::slice(all, 2, i * sizes.width, (i + 1) * sizes.width);
      const duet::Variable of_heads =
          duet::ops::reshape(part, {-1, sizes.length, sizes.heads, sizes.width / sizes.heads});
      return duet::ops::transpose(of_heads, 1, 2);
    };
    const duet::Variable seen = duet::ops::scaled_dot_product_attention(heads(0), heads(1), heads(2), true);
    const duet::Variable joined = duet::ops::reshape(duet::ops::transpose(seen, 1, 2), {-1, sizes.length, sizes.width});
    const duet::Variable y = x + out.forward(context, joined);
    return y + duet::nn::chain(context, y, {norm2, wide, gelu, narrow, dropout});
  }
  using duet::nn::Module::forward;
  TransformerSizes sizes;
  duet::nn::LayerNorm norm1{{sizes.width}}, norm2{{sizes.width}};
  duet::nn::Linear in{sizes.width, 3 * sizes.width}, out{sizes.width, sizes.width}, wide{sizes.width, 4 * sizes.width},
      narrow{4 * sizes.width, sizes.width};
  duet::nn::GELU gelu;
  duet::nn::Dropout dropout{sizes.dropout};
};

/// (N, length) symbols -> (N, length, symbols) logits.
struct CausalTransformer : duet::nn::Module {
  CausalTransformer(const TransformerSizes& s, std::uint64_t seed)
      : symbols(s.symbols, s.width), places(s.length, s.width), norm({s.width}), head(s.width, s.symbols) {
    for (int i = 0; i < s.blocks; ++i) blocks.add<CausalBlock>(s);
    register_module("symbols", symbols);
    register_module("places", places);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
    initialise(seed);
  }
  duet::Variable forward(duet::nn::Context& context, const duet::Variable& x) const override {
    return duet::nn::chain(context, symbols.forward(context, x) + places.weight(context), {blocks, norm, head});
  }
  using duet::nn::Module::forward;
  duet::nn::Embedding symbols, places;
  duet::nn::Sequential blocks;
  duet::nn::LayerNorm norm;
  duet::nn::Linear head;
};

}  // namespace duet_test
