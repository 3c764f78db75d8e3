// Products of matrices on CPU: every element against its definition, to the bit, on every instruction set.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/cpu_backend.h"
#include "lib/random.h"
#include "tests/backend/bits.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet_test;

namespace {

std::vector<float> random_numbers(std::int64_t n, Mt19937& generator, bool with_zeros = false) {
  std::vector<float> numbers(static_cast<std::size_t>(n));
  generator.uniform(numbers, -1, 1);
  if (with_zeros)
    for (float& x : numbers) x = x > 0.2f ? x : 0;
  return numbers;
}

/// The definition: fused multiply-adds within chunks of 256 terms, chunk after chunk.
float sum_in_chunks(std::int64_t begin, std::int64_t end, auto a, auto b) {
  float total = 0;
  for (std::int64_t chunk = begin; chunk < end; chunk += 256) {
    float sum = 0;
    for (std::int64_t k = chunk; k < std::min(end, chunk + 256); ++k) sum = std::fma(a(k), b(k), sum);
    total = chunk == begin ? sum : total + sum;
  }
  return total;
}

/// Operands of a product and its result by the definition.
struct ProductCase {
  ProductCase(std::int64_t rows, std::int64_t columns, std::int64_t terms, int orders, bool has_bias, const Rows& stamp,
              Mt19937& generator)
      : a(random_numbers(rows * terms, generator)),
        b(random_numbers(terms * columns, generator)),
        bias(random_numbers(columns, generator)),
        c(static_cast<std::size_t>(rows * columns)),
        blocks(blocks_of(stamp, terms)),
        leaves(cpu::leaves_of(blocks)) {
    product = {.a = orders % 2 ? cpu::Matrix{a.data(), 1, rows} : cpu::Matrix{a.data(), terms, 1},
               .b = orders / 2 ? cpu::Matrix{b.data(), 1, terms} : cpu::Matrix{b.data(), columns, 1},
               .pitch = columns,
               .m = rows,
               .n = columns,
               .k = terms,
               .bias = has_bias ? bias.data() : nullptr,
               .leaves = stamp.known() ? &leaves : nullptr};
    for (std::int64_t i = 0; i < rows * columns; ++i)
      c[static_cast<std::size_t>(i)] = element(i / columns, i % columns);
  }

  float element(std::int64_t i, std::int64_t j) const {
    const auto sum = [&](std::int64_t begin, std::int64_t end) {
      return sum_in_chunks(
          begin, end, [&](std::int64_t k) { return product.a.p[i * product.a.row + k * product.a.column]; },
          [&](std::int64_t k) { return product.b.p[k * product.b.row + j * product.b.column]; });
    };
    std::array<float, kMostBlocks> parts{};
    for (int leaf = 0; leaf < blocks.leaf_count; ++leaf)
      parts[static_cast<std::size_t>(leaf)] = sum(blocks.leaf(leaf).begin, blocks.leaf(leaf).end);
    const float total = product.leaves ? sum_by_tree(blocks, parts) : sum(0, product.k);
    return product.bias ? total + product.bias[j] : total;
  }

  bool holds(const cpu::Kernels& kernels) {
    std::vector<float> got(c.size(), NAN);
    product.c = got.data();
    std::vector<float> scratch(static_cast<std::size_t>(kernels.product_scratch_bytes(product) / 4 + 1));
    kernels.multiply(product, scratch.data());
    return got == c;
  }

  std::vector<float> a, b, bias, c;
  Blocks blocks;
  cpu::Leaves leaves;
  cpu::Product product;
};

}  // namespace

TEST_CASE("every element of a product is the same sum on all instruction sets, whatever its place is") {
  Mt19937 generator(17);
  for (int i = 0; i < 60; ++i) {
    const std::int64_t rows = generator.randint(1, i % 3 ? 40 : 300),
                       columns = generator.randint(1, i % 10 ? 80 : 1200);
    const std::int64_t terms = generator.randint(1, i % 4 ? 100 : 700), global = terms + generator.randint(0, 50);
    Rows stamp;
    if (i % 2) stamp = {.first = generator.randint(0, global - terms + 1), .global = global};
    CAPTURE(i, rows, columns, terms, stamp.first, stamp.global);
    ProductCase c(rows, columns, terms, i % 4, i % 5 == 0, stamp, generator);
    for (const cpu::Kernels* const kernels : instruction_sets()) {
      CAPTURE(kernels->name);
      CHECK(c.holds(*kernels));
    }
  }
}

TEST_CASE("gradients of a linear layer that skip zeros have the bits of those that do not") {
  Mt19937 generator(18);
  for (int i = 0; i < 20; ++i) {
    const std::int64_t rows = generator.randint(1, i % 5 ? 40 : 700), in = generator.randint(1, 200),
                       out = generator.randint(1, i % 4 ? 60 : 600);
    CAPTURE(i, rows, in, out);
    const auto dy = random_numbers(rows * out, generator, true), w = random_numbers(out * in, generator),
               x = random_numbers(rows * in, generator);
    const Blocks blocks = blocks_of({.global = rows}, rows);
    const cpu::Leaves leaves = cpu::leaves_of(blocks);
    std::vector<float> dx(x.size()), dw(w.size()), skipped_dx(x.size()), skipped_dw(w.size());
    const cpu::Product data = {
        .a = {dy.data(), out, 1}, .b = {w.data(), in, 1}, .c = dx.data(), .pitch = in, .m = rows, .n = in, .k = out};
    const cpu::Product weights = {.a = {dy.data(), 1, out},
                                  .b = {x.data(), in, 1},
                                  .c = dw.data(),
                                  .pitch = in,
                                  .m = out,
                                  .n = in,
                                  .k = rows,
                                  .leaves = &leaves};
    for (const cpu::Kernels* const kernels : instruction_sets()) {
      CAPTURE(kernels->name);
      const std::int64_t bytes =
          std::max({kernels->nonzero_linear_scratch_bytes(rows, out), kernels->product_scratch_bytes(data),
                    kernels->product_scratch_bytes(weights)});
      std::vector<float> scratch(static_cast<std::size_t>(bytes / 4 + 1));
      kernels->multiply(data, scratch.data());
      kernels->multiply(weights, scratch.data());
      kernels->nonzero_linear_data(dy.data(), w.data(), skipped_dx.data(), rows, in, out, scratch.data());
      kernels->nonzero_linear_weights(x.data(), dy.data(), skipped_dw.data(), in, out, 0, in, leaves, scratch.data());
      CHECK(dx == skipped_dx);
      CHECK(dw == skipped_dw);
    }
  }
}
