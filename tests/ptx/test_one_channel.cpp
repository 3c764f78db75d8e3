#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

constexpr int kTaps = 9;

kernels::OneChannelConv convolution(int rows, int channels, int h, int w, int ph, int pw, bool rounds) {
  return {rows, channels, h, w, ph, pw, (h + 2 * ph - 2) / 2, (w + 2 * pw - 2) / 2, rounds};
}
std::size_t outputs_of(const kernels::OneChannelConv& g) {
  return size_of(std::int64_t{g.rows} * g.channels * g.out_height * g.out_width);
}
std::size_t channel_of(const kernels::OneChannelConv& g, std::size_t o) {
  return o / size_of(g.out_width * g.out_height) % size_of(g.channels);
}
double operand(const kernels::OneChannelConv& g, float x) { return g.rounds ? bfloat16(x) : double{x}; }
/// The pixel under a filter's tap at a place of output o's window, rounded as the kernel's; 0 in the padding.
double pixel_of(const kernels::OneChannelConv& g, const Floats& x, std::size_t o, int place, int tap) {
  const int out = static_cast<int>(o), q = out % g.out_width, p = out / g.out_width % g.out_height;
  const int image = out / g.out_width / g.out_height / g.channels;
  const int h = 2 * p + place / 2 + tap / 3 - g.pad_h, w = 2 * q + place % 2 + tap % 3 - g.pad_w;
  if (h < 0 || w < 0 || h >= g.height || w >= g.width) return 0;
  return operand(g, x.first(size_of((image * g.height + h) * g.width + w)));
}

void forward_case(const kernels::OneChannelConv& g, bool odd) {
  Case c("conv_one_channel_forward", {g.rows, g.channels, g.height, g.width, g.pad_h, g.pad_w, g.rounds, odd});
  const Floats x = c.input<float>("x", size_of(g.rows * g.height * g.width), 1, [&](std::size_t i) {
    const float value = c.normal();
    return !odd ? value : i % 50 == 3 ? kNaN : i % 61 == 5 ? kInfinity : std::trunc(value * 2);
  });
  const Floats w = c.normal("w", size_of(g.channels * kTaps), 2), bias = c.normal("bias", size_of(g.channels), 3);
  const Floats y = c.output("y", outputs_of(g));
  const auto index = c.output<std::uint8_t>("index", outputs_of(g), 1);
  c.run(
      [&] { kernels::conv_one_channel_forward(x.data(), w.data(), bias.data(), y.data(), index.data(), g, nullptr); });
  for (std::size_t o = 0; o < outputs_of(g); ++o) {
    const std::size_t channel = channel_of(g, o);
    Expected sums[4];
    int at = 0;
    for (int place = 0; place < 4; ++place) {
      Expected& sum = sums[place];
      sum.add(bias.first(channel));
      for (int tap = 0; tap < kTaps; ++tap)
        sum.add(operand(g, w.first(channel * kTaps + size_of(tap))) * pixel_of(g, x, o, place, tap));
      if (place > 0 && (sum.value > sums[at].value || std::isnan(sum.value))) at = place;
    }
    // Where two values of a window, or the largest and 0, differ by rounding only, either place is right.
    const double near = 1e-5 * (sums[at].scale + 1);
    bool close = std::fabs(sums[at].value) <= near;
    for (int i = 0; i < 4; ++i) close = close || (i != at && std::fabs(sums[i].value - sums[at].value) <= near);
    const bool positive = !(sums[at].value <= 0);
    c.expect("y", o, y[o], {positive ? sums[at].value : 0, std::isfinite(sums[at].scale) ? sums[at].scale : 1}, 12);
    if (!close) c.expect_equal("index", o, index[o], positive ? at : kNoPlace);
  }
}

void backward_case(const kernels::OneChannelConv& g) {
  Case c("conv_one_channel_backward", {g.rows, g.channels, g.height, g.width, g.pad_h, g.pad_w, g.rounds});
  const std::size_t channels = size_of(g.channels);
  const Floats dy = c.normal("dy", outputs_of(g)), x = c.normal("x", size_of(g.rows * g.height * g.width), 1);
  const Floats partials = c.output("partials", size_of(kernels::conv_one_channel_partials(g)));
  const Floats dw = c.output("dw", channels * kTaps, 1), db = g.rows % 2 == 1 ? c.output("db", channels) : Floats();
  const auto places = c.places("places", outputs_of(g), 4);
  c.run([&] {
    kernels::conv_one_channel_backward(dy.data(), places.data(), x.data(), partials.data(), dw.data(), db.data(), g,
                                       nullptr);
  });
  std::vector<Expected> filters(channels * kTaps), biases(channels);
  for (std::size_t o = 0; o < outputs_of(g); ++o) {
    const int place = places.first(o);
    if (place == kNoPlace) continue;
    biases[channel_of(g, o)].add(dy.first(o));
    for (int tap = 0; tap < kTaps; ++tap)
      filters[channel_of(g, o) * kTaps + size_of(tap)].add(operand(g, dy.first(o)) * pixel_of(g, x, o, place, tap));
  }
  for (std::size_t i = 0; i < filters.size(); ++i) c.expect("dw", i, dw[i], filters[i], 60);
  for (std::size_t i = 0; i < db.size(); ++i) c.expect("db", i, db[i], biases[i], 60);
}

}  // namespace

TEST_CASE("ptx: convolutions of one channel") {
  for (const bool rounds : {false, true})
    for (const kernels::OneChannelConv& g :
         {convolution(1, 1, 2, 2, 1, 1, rounds), convolution(3, 7, 5, 9, 0, 0, rounds),
          convolution(2, 8, 28, 28, 1, 1, rounds), convolution(5, 9, 6, 7, 1, 0, rounds),
          convolution(4, 33, 4, 4, 2, 2, rounds), convolution(1, 3, 12, 40, 0, 2, rounds),
          convolution(17, 32, 28, 28, 1, 1, rounds), convolution(600, 2, 4, 4, 1, 1, rounds),
          convolution(0, 4, 8, 8, 1, 1, rounds), convolution(70, 10, 9, 9, 1, 1, rounds)}) {
      for (const bool odd : {false, true}) forward_case(g, odd);
      backward_case(g);
    }
  check_all_launched("conv_one_channel");
}
