// A 3x3 convolution, bias, 2x2 max-pool, relu and dropout by own kernels: forward by Winograd's algorithm, or directly
// from plain images of few channels; backward over nonzero gradients only. Images are padded row by row, in the cache.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/backend/cpu/conv_support.h"
#include "lib/backend/cpu/leaf_gradients.h"

namespace duet::cpu {
namespace {

/// Plain (K, C, 9) to (C / block, K, 9, block).
void block_inputs(const float* plain, float* w, std::int64_t outs, std::int64_t ins, int block) {
  for (std::int64_t c = 0; c < ins; ++c)
    for (std::int64_t k = 0; k < outs; ++k)
      for (std::int64_t t = 0; t < 9; ++t)
        w[((c / block * outs + k) * 9 + t) * block + c % block] = plain[(k * ins + c) * 9 + t];
}

/// (K, 9, C) to plain (K, C, 9).
void taps_last(const float* w, float* plain, std::int64_t outs, std::int64_t ins) {
  for (std::int64_t k = 0; k < outs; ++k)
    for (std::int64_t c = 0; c < ins; ++c)
      for (std::int64_t t = 0; t < 9; ++t) plain[(k * ins + c) * 9 + t] = w[(k * 9 + t) * ins + c];
}

/// Plain (K, C, 9) to (C, 9, K), and back.
void outputs_last(const float* plain, float* w, std::int64_t outs, std::int64_t ins) {
  for (std::int64_t k = 0; k < outs; ++k)
    for (std::int64_t i = 0; i < ins * 9; ++i) w[i * outs + k] = plain[k * ins * 9 + i];
}

void outputs_first(const float* w, float* plain, std::int64_t outs, std::int64_t ins) {
  for (std::int64_t k = 0; k < outs; ++k)
    for (std::int64_t i = 0; i < ins * 9; ++i) plain[k * ins * 9 + i] = w[i * outs + k];
}

PooledConv geometry(const Fused& f, const Tensor& x, const Tensor& y, const ConvPoolRelu& op) {
  return {.height = f.height,
          .width = f.width,
          .in_channels = x.size(1),
          .out_channels = f.channels,
          .blocked_output = y.layout() != Layout::plain,
          .scale = op.dropout.scale()};
}

}  // namespace

void CpuBackend::pooled_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y, const Tensor& index,
                                const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Fused f(x, w, y, op, conv2d_layout(x.shape(), w.shape()));
  const PooledConv g = geometry(f, x, y, op);
  const bool plain = x.layout() == Layout::plain;
  const int block = block_of(x.layout());
  const std::int64_t planes = g.in_channels / block, padded = g.in_channels * (f.height + 2) * (f.width + 2);
  const std::int64_t first = x.stamp_or_self().first;
  const Tensor filters = empty({plain ? 9 * f.channels * g.in_channels : kernels_.winograd_weight_floats(g)});
  if (plain) {
    outputs_last(w.data<float>(), filters.data<float>(), f.channels, g.in_channels);
  } else {
    kernels_.winograd_weights(g, w.data<float>(), filters.data<float>());
  }
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    Worker& worker = device.worker(id);
    float* const image = worker.image.floats(padded);
    float* const scratch = worker.gradient.floats(kernels_.winograd_scratch_floats(g));
    float* const pooled = worker.row.floats(f.row_count);
    std::uint8_t* const places = worker.index.bytes(f.row_count);
    for (std::int64_t row = begin; row < end; ++row) {
      float* const out = rows_of(y, row);
      std::uint8_t* const out_index = index.data<std::uint8_t>() + row * f.row_count;
      float* const to = f.transpose ? pooled : out;
      std::uint8_t* const to_index = f.transpose ? places : out_index;
      kernels_.pad(rows_of(x, row), image, planes, f.height, f.width, block);
      if (plain) {
        kernels_.plain_pooled_forward(g, filters.data<float>(), b.data<float>(), image, to, to_index);
      } else {
        const float* const next = rows_of(x, row + 1 < end ? row + 1 : row);
        kernels_.winograd_forward(g, filters.data<float>(), b.data<float>(), image, to, to_index, next, scratch);
      }
      for (std::int64_t i = 0; f.transpose && i < f.row_count; i += f.pixels * f.block) {
        kernels_.unblock(pooled + i, out + i, f.pixels, f.block);
        kernels_.unblock_bytes(places + i, out_index + i, f.pixels, f.block);
      }
      if (op.dropout.p > 0) drop_row(op.dropout, first + row, y, out, out_index, worker);
    }
  });
}

void CpuBackend::nonzero_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w,
                                  const Tensor& dx, const Tensor& dw, const Tensor& db, const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Fused f(x, w, dy, op, x.layout());
  const PooledConv g = geometry(f, x, dy, op);
  const Blocks blocks = blocks_of(x);
  LeafGradients gradients(device, kernels_, blocks, dw.count(), f.channels);
  const Tensor taps = empty({f.channels, 9, g.in_channels});
  if (dx.defined()) block_inputs(w.data<float>(), taps.data<float>(), f.channels, g.in_channels, f.block);
  gradients.run([&](Blocks::Range rows, int id, float* weights, float* bias) {
    const std::int64_t begin = rows.begin;
    kernels_.nonzero_backward(g, rows_of(x, begin), rows_of(dy, begin),
                              index.data<std::uint8_t>() + begin * f.row_count, rows.rows(), taps.data<float>(),
                              dx.defined() ? rows_of(dx, begin) : nullptr, weights, bias,
                              device.worker(id).gradient.bytes(kernels_.nonzero_scratch_bytes(g)));
  });
  if (db.defined()) std::copy_n(gradients.bias(), f.channels, db.data<float>());
  taps_last(gradients.weights(), dw.data<float>(), f.channels, g.in_channels);
}

void CpuBackend::plain_pooled_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& dw,
                                       const Tensor& db, const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Fused f(x, dw, dy, op, dy.layout());
  const PooledConv g = geometry(f, x, dy, op);
  const Blocks blocks = blocks_of(x);
  LeafGradients gradients(device, kernels_, blocks, dw.count(), f.channels);
  gradients.run([&](Blocks::Range rows, int id, float* weights, float* bias) {
    const std::int64_t begin = rows.begin, planes = rows.rows() * g.in_channels;
    Worker& worker = device.worker(id);
    float* const images = worker.image.floats(planes * (f.height + 2) * (f.width + 2));
    kernels_.pad(rows_of(x, begin), images, planes, f.height, f.width, 1);
    kernels_.plain_pooled_backward_weights(g, images, rows_of(dy, begin),
                                           index.data<std::uint8_t>() + begin * f.row_count, rows.rows(), weights, bias,
                                           worker.gradient.floats(kernels_.plain_pooled_scratch_floats(g)));
  });
  if (db.defined()) std::copy_n(gradients.bias(), f.channels, db.data<float>());
  outputs_first(gradients.weights(), dw.data<float>(), f.channels, g.in_channels);
}

}  // namespace duet::cpu
