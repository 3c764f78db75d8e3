#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

constexpr float kEps = 1e-5f, kMomentum = 0.1f;

/// What is fused with the layer.
struct Fused {
  bool training, relu, residual;
};

std::size_t size_of_all(const kernels::BatchNormShape& g) { return size_of(g.rows * g.channels * g.pixels); }

/// Calls each(i) for the elements of a channel.
template <class Each>
void for_channel(const kernels::BatchNormShape& g, std::size_t channel, Each each) {
  for (std::size_t row = 0; row < size_of(g.rows); ++row)
    for (std::size_t p = 0; p < size_of(g.pixels); ++p)
      each((row * size_of(g.channels) + channel) * size_of(g.pixels) + p);
}

struct Moments {
  double mean = 0, squares = 0;  // of what differs from the mean
};
Moments moments(const kernels::BatchNormShape& g, const Floats& x, std::size_t channel) {
  Moments m;
  for_channel(g, channel, [&](std::size_t i) { m.mean += x.first(i); });
  m.mean /= static_cast<double>(g.rows * g.pixels);
  for_channel(g, channel, [&](std::size_t i) { m.squares += (x.first(i) - m.mean) * (x.first(i) - m.mean); });
  return m;
}

void forward_case(const kernels::BatchNormShape& g, const Fused& fused) {
  Case c("batch_norm_forward", {g.rows, g.channels, g.pixels, fused.training, fused.relu, fused.residual});
  const std::size_t n = size_of_all(g), channels = size_of(g.channels);
  const Floats x = c.input<float>("x", n, 1, [&](std::size_t) { return 100 + c.normal(); });
  const Floats weight = c.normal("weight", channels, 1), bias = c.normal("bias", channels);
  const Floats running_mean = c.normal("running_mean", channels, 1),
               running_var = c.uniform("running_var", channels, 0.5, 2);
  const Floats mean = c.output("mean", channels), inverse_std = c.output("inverse_std", channels), y = c.output("y", n);
  const Floats residual = fused.residual ? c.normal("residual", n, 1) : Floats();
  c.run([&] {
    kernels::batch_norm_forward(x.data(), residual.data(), weight.data(), bias.data(), running_mean.data(),
                                running_var.data(), mean.data(), inverse_std.data(), y.data(), g, fused.training,
                                fused.relu, kMomentum, kEps, nullptr);
  });
  const double count = static_cast<double>(g.rows * g.pixels), momentum = double{kMomentum};
  for (std::size_t k = 0; k < channels; ++k) {
    const Moments batch = moments(g, x, k);
    if (fused.training) {
      const double unbiased = count > 1 ? batch.squares / (count - 1) : batch.squares;
      c.expect("running_mean", k, running_mean[k], (1 - momentum) * running_mean.first(k) + momentum * batch.mean, 3);
      c.expect("running_var", k, running_var[k], (1 - momentum) * running_var.first(k) + momentum * unbiased, 3);
    }
    const double used_mean = fused.training ? batch.mean : running_mean.first(k);
    const double inverse =
        1 / std::sqrt((fused.training ? batch.squares / count : running_var.first(k)) + double{kEps});
    c.expect("mean", k, mean[k], used_mean, 1);
    c.expect("inverse_std", k, inverse_std[k], inverse, 2);
    for_channel(g, k, [&](std::size_t i) {
      double value = (x.first(i) - used_mean) * inverse * weight.first(k) + bias.first(k);
      if (fused.residual) value += residual.first(i);
      const double size = (std::fabs(x.first(i)) + std::fabs(used_mean)) * inverse * std::fabs(weight.first(k)) +
                          std::fabs(bias.first(k)) + 1;
      c.expect("y", i, y[i], {fused.relu && value <= 0 ? 0 : value, size}, 6);
    });
  }
}

void backward_case(const kernels::BatchNormShape& g, const Fused& fused, bool with_dx) {
  Case c("batch_norm_backward", {g.rows, g.channels, g.pixels, fused.training, fused.relu, fused.residual, with_dx});
  const std::size_t n = size_of_all(g), channels = size_of(g.channels);
  const Floats x = c.input<float>("x", n, 1, [&](std::size_t) { return c.normal() * 2 + 1; });
  const Floats y = c.normal("y", n), dy = c.normal("dy", n, 1), weight = c.normal("weight", channels, 1);
  const Floats mean = c.uniform("mean", channels, 0, 2), inverse_std = c.uniform("inverse_std", channels, 0.3, 2);
  const Floats dx = with_dx ? c.output("dx", n, 1) : Floats(),
               dresidual = fused.residual ? c.output("dresidual", n, 1) : Floats();
  const Floats dweight = c.output("dweight", channels), dbias = c.output("dbias", channels, 1);
  c.run([&] {
    kernels::batch_norm_backward(x.data(), fused.relu ? y.data() : nullptr, dy.data(), weight.data(), mean.data(),
                                 inverse_std.data(), dx.data(), dresidual.data(), dweight.data(), dbias.data(), g,
                                 fused.training, nullptr);
  });
  const double count = static_cast<double>(g.rows * g.pixels);
  for (std::size_t k = 0; k < channels; ++k) {
    const auto gradient = [&](std::size_t i) { return fused.relu && y.first(i) <= 0 ? 0 : double{dy.first(i)}; };
    const auto normalised = [&](std::size_t i) { return (double{x.first(i)} - mean.first(k)) * inverse_std.first(k); };
    Expected sum, products;
    for_channel(g, k, [&](std::size_t i) {
      sum.add(gradient(i));
      products.add(gradient(i) * normalised(i));
    });
    c.expect("dbias", k, dbias[k], sum, 1);
    c.expect("dweight", k, dweight[k], products, 1);
    const double factor = double{weight.first(k)} * inverse_std.first(k);
    for_channel(g, k, [&](std::size_t i) {
      if (dresidual) c.expect("dresidual", i, dresidual[i], gradient(i), 0);
      const double centred = gradient(i) - sum.value / count - normalised(i) * products.value / count;
      if (dx) c.expect("dx", i, dx[i], {factor * (fused.training ? centred : gradient(i)), std::fabs(factor) * 2}, 2);
    });
  }
}

}  // namespace

TEST_CASE("ptx: batch norms") {
  for (const kernels::BatchNormShape& g : {kernels::BatchNormShape{1, 1, 2},
                                           {2, 3, 1},
                                           {4, 5, 49},
                                           {17, 2, 33},
                                           {33, 4, 64},
                                           {3, 1, 1000},
                                           {40, 3, 300},
                                           {2, 2, 700},
                                           {70, 3, 5},
                                           {100, 2, 131},
                                           {1, 3, 1},
                                           {5, 0, 4}})
    for (const bool training : {true, false})
      for (const bool relu : {false, true})
        for (const bool residual : {false, true}) {
          forward_case(g, {training, relu, residual});
          backward_case(g, {training, relu, residual}, !(training && residual && !relu));
        }
  check_all_launched("batch_norm");
}
