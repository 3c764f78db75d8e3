// Convolutions with 3x3 filters on tensor cores, with and without a pool behind them, and their gradients.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

constexpr int kSide = 3, kTaps = 9;
constexpr float kSmallNaN = std::bit_cast<float>(0x7f800001u);  // it is infinity without its lower bits

/// The operand of a product: the nearest TF32 number, ties away from zero, or bfloat16.
double operand(const kernels::Conv3x3& g, float x) {
  if (g.rounds) return bfloat16(x);
  return std::isfinite(x) ? std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000u) & ~0x1fffu) : x;
}

std::size_t inputs_of(const kernels::Conv3x3& g) {
  return size_of(std::int64_t{g.rows} * g.channels * g.height * g.width);
}
std::size_t outputs_of(const kernels::Conv3x3& g) {
  return size_of(std::int64_t{g.rows} * g.outputs * g.out_height() * g.out_width());
}
std::size_t filters_of(const kernels::Conv3x3& g) { return size_of(g.outputs * g.channels * kTaps); }

/// Calls use(element of y, of x, of w) for each product of the convolution.
template <class Use>
void for_products(const kernels::Conv3x3& g, Use use) {
  for (std::size_t o = 0; o < outputs_of(g); ++o) {
    const int out = static_cast<int>(o), q = out % g.out_width(), rest = out / g.out_width(), p = rest % g.out_height(),
              plane = rest / g.out_height(), k = plane % g.outputs, n = plane / g.outputs;
    for (int c = 0; c < g.channels; ++c)
      for (int tap = 0; tap < kTaps; ++tap) {
        const int h = p + tap / kSide - g.pad_h, w = q + tap % kSide - g.pad_w;
        if (h < 0 || w < 0 || h >= g.height || w >= g.width) continue;
        use(o, size_of(((n * g.channels + c) * g.height + h) * g.width + w),
            size_of((k * g.channels + c) * kTaps + tap));
      }
  }
}

/// The gradient of the convolution's output, given as such or by that of its pool.
struct Gradient {
  kernels::ConvImage image;
  std::vector<float> values;
};
Gradient gradient_of(Case& c, const kernels::Conv3x3& g, bool pooled) {
  if (!pooled) {
    const Floats dy = c.normal("dy", outputs_of(g), 1);
    Gradient all{{dy.data(), nullptr, 1.0f}, {}};
    for (std::size_t i = 0; i < dy.size(); ++i) all.values.push_back(dy.first(i));
    return all;
  }
  const Floats dy = c.normal("dy", outputs_of(g) / 4, 1);
  const auto places = c.places("places", outputs_of(g) / 4, 4);
  Gradient all{{dy.data(), places.data(), kScale}, std::vector<float>(outputs_of(g))};
  const std::size_t width = size_of(g.out_width() / 2);
  for (std::size_t i = 0; i < dy.size(); ++i)
    if (const std::size_t place = places.first(i); place != kNoPlace)
      all.values[(i / width * 2 + place / 2) * width * 2 + i % width * 2 + place % 2] = dy.first(i) * kScale;
  return all;
}

void forward_case(const kernels::Conv3x3& g, bool odd) {
  Case c("conv3x3", {g.rows, g.channels, g.outputs, g.height, g.width, g.pad_h, g.pad_w, g.rounds, odd});
  const Floats x = c.input<float>("x", inputs_of(g), 1, [&](std::size_t i) {
    const float value = c.normal();
    return !odd ? value : i % 50 == 3 ? kNaN : i % 50 == 8 ? kSmallNaN : i % 61 == 5 ? kInfinity : value;
  });
  const Floats w = c.normal("w", filters_of(g), 2), y = c.output("y", outputs_of(g), 3);
  c.run([&] { kernels::conv3x3({x.data(), nullptr, 1.0f}, w.data(), false, y.data(), g, nullptr); });
  std::vector<Expected> sums(outputs_of(g));
  for_products(g, [&](std::size_t o, std::size_t i, std::size_t f) {
    sums[o].add(operand(g, x.first(i)) * operand(g, w.first(f)));
  });
  for (std::size_t o = 0; o < sums.size(); ++o) c.expect("y", o, y[o], sums[o], 12);
}

void pool_case(const kernels::Conv3x3& g, bool drops) {
  Case c("conv3x3_pool_forward", {g.rows, g.channels, g.outputs, g.height, g.width, g.pad_h, g.pad_w, g.rounds, drops});
  const Floats x = c.normal("x", inputs_of(g), 1), w = c.normal("w", filters_of(g), 2),
               bias = c.normal("bias", size_of(g.outputs));
  const std::size_t windows = outputs_of(g) / 4, row = windows / size_of(g.rows), width = size_of(g.out_width() / 2);
  const Floats y = c.output("y", windows, 1);
  const auto index = c.output<std::uint8_t>("index", windows, 1);
  const kernels::StepDraw counted = c.draw(true, 0x5000);
  c.run([&] {
    kernels::conv3x3_pool_forward(x.data(), w.data(), bias.data(), y.data(), index.data(), drops ? &counted : nullptr,
                                  kScale, g, nullptr);
  });
  std::vector<Expected> sums(outputs_of(g));
  for_products(g, [&](std::size_t o, std::size_t i, std::size_t f) {
    sums[o].add(operand(g, x.first(i)) * operand(g, w.first(f)));
  });
  for (std::size_t o = 0; o < windows; ++o) {
    const std::size_t first = o / width * 2 * width * 2 + o % width * 2;
    const std::size_t channel = o / (row / size_of(g.outputs)) % size_of(g.outputs);
    std::size_t at = first;
    double near = 1;
    bool close = false;
    for (std::size_t place = 1; place < 4; ++place) {
      const std::size_t next = first + place / 2 * width * 2 + place % 2;
      near = 1e-5 * (sums[at].scale + 1);
      close = close || std::fabs(sums[next].value - sums[at].value) <= near;
      if (sums[next].value > sums[at].value) at = next;
    }
    Expected best = sums[at];
    best.add(bias.first(channel));
    const bool kept = !drops || keeps(counted, static_cast<std::int64_t>(o / row), static_cast<std::int64_t>(o % row));
    const double factor = !drops ? 1 : kept ? kScale : 0;
    c.expect("y", o, y[o], {best.value > 0 ? best.value * factor : 0, best.scale}, 12);
    const std::size_t place = (at - first) / (width * 2) * 2 + (at - first) % (width * 2);
    if (!close && std::fabs(best.value) > near)
      c.expect_equal("index", o, index[o], best.value > 0 && kept ? static_cast<int>(place) : kNoPlace);
  }
}

void backward_case(const kernels::Conv3x3& g, bool pooled) {
  Case c("conv3x3_backward", {g.rows, g.channels, g.outputs, g.height, g.width, g.pad_h, g.pad_w, g.rounds, pooled});
  const Floats x = c.normal("x", inputs_of(g), 1), w = c.normal("w", filters_of(g), 2);
  const Gradient dy = gradient_of(c, g, pooled);
  const Floats partials = c.output("partials", size_of(kernels::conv3x3_partials(g, pooled))),
               dw = c.output("dw", filters_of(g), 1), dx = c.output("dx", inputs_of(g), 1);
  const kernels::Conv3x3 back = {g.rows,        g.outputs,   g.channels,  g.out_height(),
                                 g.out_width(), 2 - g.pad_h, 2 - g.pad_w, g.rounds};
  c.run([&] {
    kernels::conv3x3_weights(x.data(), dy.image, partials.data(), dw.data(), g, nullptr);
    kernels::conv3x3(dy.image, w.data(), true, dx.data(), back, nullptr);
  });
  std::vector<Expected> filters(filters_of(g)), images(inputs_of(g));
  for_products(g, [&](std::size_t o, std::size_t i, std::size_t f) {
    const double gradient = operand(g, dy.values[o]);
    filters[f].add(gradient * operand(g, x.first(i)));
    images[i].add(gradient * operand(g, w.first(f)));
  });
  for (std::size_t i = 0; i < dw.size(); ++i) c.expect("dw", i, dw[i], filters[i], 12);
  for (std::size_t i = 0; i < dx.size(); ++i) c.expect("dx", i, dx[i], images[i], 12);
}

}  // namespace

TEST_CASE("ptx: convolutions with 3x3 filters") {
  for (const bool rounds : {false, true}) {
    for (const kernels::Conv3x3& g :
         {kernels::Conv3x3{1, 1, 1, 3, 3, 0, 0, rounds}, kernels::Conv3x3{2, 9, 33, 5, 7, 1, 1, rounds},
          kernels::Conv3x3{5, 3, 4, 4, 4, 2, 0, rounds}, kernels::Conv3x3{1, 17, 40, 20, 31, 1, 2, rounds},
          kernels::Conv3x3{9, 8, 32, 2, 2, 1, 1, rounds}, kernels::Conv3x3{2, 41, 5, 6, 9, 1, 0, rounds}}) {
      for (const bool odd : {false, true}) forward_case(g, odd);
      backward_case(g, false);
    }
    for (const kernels::Conv3x3& g :
         {kernels::Conv3x3{1, 1, 1, 2, 2, 1, 1, rounds}, kernels::Conv3x3{3, 20, 35, 14, 14, 1, 1, rounds},
          kernels::Conv3x3{7, 5, 9, 6, 4, 1, 1, rounds}, kernels::Conv3x3{1, 10, 3, 24, 34, 1, 1, rounds},
          kernels::Conv3x3{2, 8, 32, 28, 28, 2, 0, rounds}, kernels::Conv3x3{2, 37, 70, 8, 6, 1, 1, rounds}}) {
      for (const bool drops : {false, true}) pool_case(g, drops);
      backward_case(g, true);
    }
  }
  check_all_launched("conv3x3");
}
