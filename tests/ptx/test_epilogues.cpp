#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

/// Windows that tile images; from here on "plane" is the image of one channel.
kernels::TiledPool tiled(int rows, int channels, int h, int w, int kh, int kw) {
  return {rows, channels, h, w, h / kh, w / kw, kh, kw};
}
std::size_t pixels_of(const kernels::TiledPool& g) { return size_of(g.rows * g.channels * g.height * g.width); }
std::size_t outputs_of(const kernels::TiledPool& g) {
  return size_of(g.rows * g.channels * g.out_height * g.out_width);
}
std::size_t channel_of(const kernels::TiledPool& g, std::size_t o) {
  return o / size_of(g.out_width * g.out_height) % size_of(g.channels);
}
/// The pixel at a place of output o's window.
std::size_t pixel_of(const kernels::TiledPool& g, std::size_t o, int place) {
  const int out = static_cast<int>(o), q = out % g.out_width, p = out / g.out_width % g.out_height;
  const int plane = out / g.out_width / g.out_height;
  return size_of((plane * g.height + p * g.kernel_h + place / g.kernel_w) * g.width + q * g.kernel_w +
                 place % g.kernel_w);
}

enum class Dropping { no, yes, counted };

void pool_forward_case(const kernels::TiledPool& g, int offset, Dropping dropping) {
  Case c("bias_pool_relu_forward",
         {g.rows, g.channels, g.height, g.width, g.kernel_h, g.kernel_w, offset, static_cast<int>(dropping)});
  const bool drops = dropping != Dropping::no;
  const kernels::StepDraw draw = c.draw(dropping == Dropping::counted, 16384);
  const Floats image =
      dropping == Dropping::yes ? c.normal("image", pixels_of(g), offset) : c.odd("image", pixels_of(g), offset);
  const Floats bias = c.normal("bias", size_of(g.channels), 1), y = c.output("y", outputs_of(g));
  const auto index = c.output<std::uint8_t>("index", outputs_of(g), 1);
  c.run([&] {
    kernels::bias_pool_relu_forward(image.data(), bias.data(), y.data(), index.data(), g, drops ? &draw : nullptr,
                                    drops ? kScale : 1.0f, nullptr);
  });
  const std::size_t columns = size_of(g.channels * g.out_height * g.out_width);
  for (std::size_t o = 0; o < outputs_of(g); ++o) {
    float best = -kInfinity;
    int at = 0;
    for (int place = 0; place < g.kernel_h * g.kernel_w; ++place) {
      const float value = image.first(pixel_of(g, o, place)) + bias.first(channel_of(g, o));
      if (value > best || std::isnan(value)) best = value, at = place;
    }
    const bool kept =
        !drops || keeps(draw, static_cast<std::int64_t>(o / columns), static_cast<std::int64_t>(o % columns));
    const double value = best <= 0 ? 0 : double{best};
    c.expect("y", o, y[o], drops ? value * (kept ? double{kScale} : 0) : value, 1);
    c.expect_equal("index", o, index[o], best <= 0 || !kept ? kNoPlace : at);
  }
}

void pool_backward_case(const kernels::TiledPool& g, int offset) {
  Case c("bias_pool_relu_backward", {g.rows, g.channels, g.height, g.width, g.kernel_h, g.kernel_w, offset});
  const Floats dy = c.normal("dy", outputs_of(g)), dx = c.output("dx", pixels_of(g), offset);
  const auto places = c.places("places", outputs_of(g), g.kernel_h * g.kernel_w);
  c.run([&] { kernels::bias_pool_relu_backward(dy.data(), places.data(), kScale, dx.data(), g, nullptr); });
  std::vector<double> gradient(pixels_of(g));
  for (std::size_t o = 0; o < outputs_of(g); ++o)
    if (places.first(o) != kNoPlace) gradient[pixel_of(g, o, places.first(o))] = double{kScale} * dy.first(o);
  for (std::size_t i = 0; i < gradient.size(); ++i) c.expect("dx", i, dx[i], gradient[i], 1);
}

void bias_gradient_cases(std::int64_t images, int channels, std::int64_t pixels, int offset) {
  for (const bool indexed : {false, true}) {
    Case c("channel_bias_gradient", {images, channels, pixels, offset, indexed});
    const std::size_t n = size_of(images * channels * pixels);
    const Floats dy = c.normal("dy", n, offset), db = c.output("db", size_of(channels), offset);
    const auto places = c.places("places", n, 4, 1);
    c.run([&] {
      kernels::channel_bias_gradient(dy.data(), indexed ? places.data() : nullptr, kScale, db.data(), images, channels,
                                     pixels, nullptr);
    });
    std::vector<Expected> sums(size_of(channels));
    for (std::size_t i = 0; i < n; ++i)
      if (!indexed || places.first(i) != kNoPlace)
        sums[i / size_of(pixels) % size_of(channels)].add(double{kScale} * dy.first(i));
    for (std::size_t k = 0; k < sums.size(); ++k) c.expect("db", k, db[k], sums[k], 60);
  }
}

void channel_bias_case(std::int64_t images, int channels, std::int64_t pixels, int offset) {
  Case c("add_channel_bias", {images, channels, pixels, offset});
  const Floats y = c.normal("y", size_of(images * channels * pixels), offset),
               bias = c.normal("bias", size_of(channels), 1);
  c.run([&] { kernels::add_channel_bias(y.data(), bias.data(), images, channels, pixels, nullptr); });
  for (std::size_t i = 0; i < y.size(); ++i)
    c.expect("y", i, y[i], double{y.first(i)} + double{bias.first(i / size_of(pixels) % size_of(channels))}, 1);
}

}  // namespace

TEST_CASE("ptx: convolutions' biases and pools") {
  for (const kernels::TiledPool& g :
       {tiled(1, 1, 2, 2, 2, 2), tiled(3, 5, 7, 5, 2, 2), tiled(2, 7, 7, 6, 2, 2), tiled(2, 3, 14, 14, 2, 2),
        tiled(5, 4, 9, 9, 3, 3), tiled(0, 4, 8, 8, 2, 2), tiled(2, 3, 6, 10, 3, 2), tiled(9, 33, 8, 8, 2, 2),
        tiled(1, 70, 16, 16, 2, 2), tiled(2, 3, 12, 21, 4, 7), tiled(1, 2, 30, 34, 15, 17), tiled(3, 2, 10, 20, 1, 9),
        tiled(2, 10, 20, 24, 5, 6), tiled(16, 64, 14, 14, 2, 2)})
    for (const int offset : {0, 1}) {
      for (const Dropping dropping : {Dropping::no, Dropping::yes, Dropping::counted})
        pool_forward_case(g, offset, dropping);
      pool_backward_case(g, offset);
      bias_gradient_cases(g.rows, g.channels, g.out_height * g.out_width, offset);
      channel_bias_case(g.rows, g.channels, g.height * g.width, offset);
    }
  // Many pixels, and more elements than one block adds up.
  bias_gradient_cases(2, 3, 1500, 0);
  bias_gradient_cases(7, 3, 500, 0);
  bias_gradient_cases(3, 3, 4000, 0);
  bias_gradient_cases(40, 3, 196, 0);
  check_all_launched("conv_epilogue");
}
