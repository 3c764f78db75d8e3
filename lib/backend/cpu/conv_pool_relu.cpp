// The fused operator dropout(relu(max_pool2d(conv2d(x)))), block by block: a block's convolution stays in the cache
// until it is pooled.
#include <cstring>

#include "lib/backend/cpu/conv_support.h"

namespace duet::cpu {
namespace {

/// Shapes of one call, the same forward and backward.
struct Fused {
  Fused(const Tensor& x, const Tensor& w, const Tensor& y, const ConvPoolRelu& op, Layout conv_layout)
      : layout(conv_layout),
        block(block_of(conv_layout)),
        transpose(y.layout() != conv_layout),
        channels(w.size(0)),
        height(op.conv.out_h(x.size(2))),
        width(op.conv.out_w(x.size(3))),
        pool{height,
             width,
             op.pool.out_h(height),
             op.pool.out_w(width),
             op.pool.kernel_h,
             op.pool.kernel_w,
             op.pool.stride_h,
             op.pool.stride_w,
             0,
             0},
        pixels(pool.out_height * pool.out_width),
        row_count(channels * pixels) {}

  Layout layout;  // of the convolution's output
  int block;
  bool transpose;  // y has another layout than the convolution's output
  std::int64_t channels, height, width;
  PoolGeometry pool;
  std::int64_t pixels;     // of a pooled image
  std::int64_t row_count;  // elements of a row of y
};

/// Whether the backward can walk live gradients only (kernels/live_conv.cpp).
bool walks_live_gradients(const Fused& f, const Tensor& x, const ConvPoolRelu& op, std::int64_t rows) {
  const Window2d conv = {3, 3, 1, 1, 1, 1}, pool = {2, 2, 2, 2, 0, 0};
  constexpr std::int64_t kLargestOffset = std::int64_t{1} << 31;
  const std::int64_t padded = x.size(1) * (f.height + 2) * (f.width + 2);
  return op.conv == conv && op.pool == pool && f.block > 1 && x.layout() == f.layout && f.height % 2 == 0 &&
         f.width % 2 == 0 && rows * padded < kLargestOffset;
}

/// Copies blocked images into ones with a border of one zero pixel, or back.
void pad(const float* x, float* padded, std::int64_t images, std::int64_t h, std::int64_t w, int block) {
  const std::int64_t pitch = (w + 2) * block;
  for (std::int64_t i = 0; i < images; ++i) {
    float* const to = padded + i * (h + 2) * pitch;
    std::fill_n(to, pitch, 0.0f);
    for (std::int64_t row = 0; row < h; ++row) {
      float* const line = to + (row + 1) * pitch;
      std::fill_n(line, block, 0.0f);
      std::copy_n(x + (i * h + row) * w * block, w * block, line + block);
      std::fill_n(line + pitch - block, block, 0.0f);
    }
    std::fill_n(to + (h + 1) * pitch, pitch, 0.0f);
  }
}

void crop(const float* padded, float* x, std::int64_t images, std::int64_t h, std::int64_t w, int block) {
  const std::int64_t pitch = (w + 2) * block;
  for (std::int64_t i = 0; i < images; ++i)
    for (std::int64_t row = 0; row < h; ++row)
      std::copy_n(padded + i * (h + 2) * pitch + (row + 1) * pitch + block, w * block, x + (i * h + row) * w * block);
}

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

}  // namespace

void CpuBackend::conv_pool_relu_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                        const Tensor& index, const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Fused f(x, w, y, op, conv2d_layout(x.shape(), w.shape()));
  const Rows stamp = x.stamp_or_self();
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan =
        worker.plans.plan(key_of(ConvPass::forward, x.shape(), x.layout(), f.channels, f.layout, op.conv, end - begin));
    float* const image = worker.image.floats((end - begin) * f.channels * f.height * f.width);
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    plan.convolve->run(worker.plans.stream(), {rows_of(x, begin), ready, b.data<float>(), image});
    float* const pooled = worker.row.floats(f.pixels * f.block);
    std::uint8_t* const places = worker.index.bytes(f.pixels * f.block);
    for (std::int64_t row = begin; row < end; ++row) {
      float* const out = rows_of(y, row);
      std::uint8_t* const out_index = index.data<std::uint8_t>() + row * f.row_count;
      for (std::int64_t c = 0; c < f.channels; c += f.block) {
        const float* const from = image + ((row - begin) * f.channels + c) * f.height * f.width;
        float* const to = out + c * f.pixels;
        if (!f.transpose) {
          kernels_.max_pool(from, to, out_index + c * f.pixels, f.pool, f.block);
        } else {
          kernels_.max_pool(from, pooled, places, f.pool, f.block);
          kernels_.unblock(pooled, to, f.pixels, f.block);
          kernels_.unblock_bytes(places, out_index + c * f.pixels, f.pixels, f.block);
        }
      }
      kernels_.relu_index(out, out_index, f.row_count);
      if (op.dropout.p > 0) drop_row(op.dropout, stamp.first + row, y, out, out_index, worker);
    }
  });
}

void CpuBackend::drop_row(const DropoutKey& key, std::int64_t row, const Tensor& y, float* out, std::uint8_t* out_index,
                          Worker& worker) {
  const std::int64_t count = y.shape().count_from(1), pixels = y.shape().count_from(2);
  const int block = block_of(y.layout());
  std::uint8_t* mask = worker.mask.bytes(2 * count);
  kernels_.dropout_mask(mask, count, key.seed, key.step, static_cast<std::uint64_t>(row), key.layer, key.threshold());
  if (block > 1) {
    for (std::int64_t i = 0; i < count; i += block * pixels)
      kernels_.block_bytes(mask + i, mask + count + i, pixels, block);
    mask += count;
  }
  kernels_.drop_index(out, out_index, mask, key.scale(), count);
}

void CpuBackend::conv_pool_relu_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w,
                                         const Tensor& dx, const Tensor& dw, const Tensor& db, const ConvPoolRelu& op) {
  const Fused f(x, w, dy, op, conv2d_layout(x.shape(), w.shape()));
  if (walks_live_gradients(f, x, op, x.size(0))) return live_backward(dy, index, x, w, dx, dw, db, op);
  CpuDevice& device = this->device(x);
  const bool scaled = op.dropout.p > 0;
  const Blocks blocks = blocks_of(x.stamp_or_self(), x.size(0));
  LeafGradients gradients(device, blocks, dw, db);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  device.pool().run(blocks.leaf_count, [&](int leaf, int id) {
    const auto [begin, end] = blocks.leaves[static_cast<std::size_t>(leaf)];
    if (begin == end) return;
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    float* const gradient = worker.gradient.floats((end - begin) * f.channels * f.height * f.width);
    float* const pooled = worker.row.floats(f.pixels * f.block);
    std::uint8_t* const places = worker.index.bytes(f.pixels * f.block);
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t c = 0; c < f.channels; c += f.block) {
        const float* from = rows_of(dy, row) + c * f.pixels;
        const std::uint8_t* from_index = index.data<std::uint8_t>() + row * f.row_count + c * f.pixels;
        if (f.transpose) {
          kernels_.block(from, pooled, f.pixels, f.block);
          kernels_.block_bytes(from_index, places, f.pixels, f.block);
          from = pooled;
          from_index = places;
        } else if (scaled) {
          std::memcpy(pooled, from, static_cast<std::size_t>(f.pixels * f.block) * sizeof(float));
          from = pooled;
        }
        if (scaled) kernels_.scale(pooled, op.dropout.scale(), f.pixels * f.block);
        kernels_.max_pool_backward(from, from_index, gradient + ((row - begin) * f.channels + c) * f.height * f.width,
                                   f.pool, f.block);
      }
    }
    if (reads_plain_image(x, f.layout)) {
      gradients.run_plain(kernels_, leaf, worker, x, begin, end, gradient, op.conv);
    } else {
      ConvPlan& plan = worker.plans.plan(
          key_of(ConvPass::backward_weights, x.shape(), x.layout(), f.channels, f.layout, op.conv, end - begin));
      gradients.run(leaf, plan, worker, rows_of(x, begin), gradient);
    }
    if (!dx.defined()) return;
    ConvPlan& data_plan = worker.plans.plan(
        key_of(ConvPass::backward_data, x.shape(), dx.layout(), f.channels, f.layout, op.conv, end - begin));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(data_plan, worker);
    data_plan.convolve->run(worker.plans.stream(), {gradient, ready, rows_of(dx, begin)});
  });
  gradients.sum_to_plain(kernels_);
}

void CpuBackend::live_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w,
                               const Tensor& dx, const Tensor& dw, const Tensor& db, const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Fused f(x, w, dy, op, x.layout());
  const LiveConv g = {.height = f.height,
                      .width = f.width,
                      .in_channels = x.size(1),
                      .out_channels = f.channels,
                      .blocked_output = dy.layout() != Layout::plain,
                      .scale = op.dropout.p > 0 ? op.dropout.scale() : 1.0f};
  const std::int64_t planes = g.in_channels / f.block, padded = g.in_channels * (f.height + 2) * (f.width + 2);
  const Blocks blocks = blocks_of(x.stamp_or_self(), x.size(0));
  LeafGradients gradients(device, blocks, dw, db);
  const Tensor taps = empty({f.channels, 9, g.in_channels});
  if (dx.defined()) block_inputs(w.data<float>(), taps.data<float>(), f.channels, g.in_channels, f.block);
  device.pool().run(blocks.leaf_count, [&](int leaf, int id) {
    const auto [begin, end] = blocks.leaves[static_cast<std::size_t>(leaf)];
    const std::int64_t rows = end - begin;
    if (rows == 0) return;
    Worker& worker = device.worker(id);
    float* const images = worker.image.floats((rows + 1) * padded);
    pad(rows_of(x, begin), images, rows * planes, f.height, f.width, f.block);
    void* const scratch = worker.gradient.bytes(kernels_.live_scratch_bytes(g));
    kernels_.live_backward_weights(g, images, rows_of(dy, begin), index.data<std::uint8_t>() + begin * f.row_count,
                                   rows, gradients.weights(leaf), gradients.bias(leaf), scratch);
    for (std::int64_t row = begin; dx.defined() && row < end; ++row) {
      float* const image = images + rows * padded;
      kernels_.live_backward_data(g, taps.data<float>(), rows_of(dy, row),
                                  index.data<std::uint8_t>() + row * f.row_count, image, scratch);
      crop(image, rows_of(dx, row), planes, f.height, f.width, f.block);
    }
  });
  taps_last(gradients.sum(kernels_), dw.data<float>(), f.channels, g.in_channels);
}

}  // namespace duet::cpu
