// Convolutions, block by block: by oneDNN, or by own kernels; alone, and fused with what follows them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "lib/backend/cpu/leaf_gradients.h"

namespace duet::cpu {
namespace {

/// Whether own loops compute the weight gradient: oneDNN's read and write all of it for every few pixels. The answer is
/// the same on all devices of a batch, whatever rows they hold.
bool has_small_images(const Tensor& x, const Tensor& dy, const Tensor& dw, const Kernels& kernels, bool bf16) {
  const std::int64_t most_pixels = bf16 ? 128 : 512;  // in one block of the batch
  const Rows stamp = x.stamp_or_self();
  const std::int64_t rows = (stamp.global + stamp.blocks - 1) / stamp.blocks;
  return block_of(x.layout()) == kernels.channel_block && dy.layout() == x.layout() && dw.size(1) == x.size(1) &&
         rows * dy.size(2) * dy.size(3) <= most_pixels;
}

BlockedConv blocked_conv(const Shape& x, const Shape& y, const Window2d& window) {
  return {x[1],
          x[2],
          x[3],
          y[1],
          y[2],
          y[3],
          window.kernel_h,
          window.kernel_w,
          window.stride_h,
          window.stride_w,
          window.pad_h,
          window.pad_w};
}

/// Whether own kernels could take these images by the processor's tiles, under bf16.
bool takes_tiles(const Tensor& x, const Tensor& y, const Kernels& kernels) {
  constexpr std::int64_t kTwo = 32;  // channels
  return kernels.tiled_conv != nullptr && x.layout() == y.layout() && x.size(1) % kTwo == 0 && y.size(1) % kTwo == 0;
}
/// Whether tiles are faster than oneDNN. Rows do not count: devices that hold parts of a batch must choose alike.
bool tiles_are_faster(ConvPass pass, const Tensor& y, const Window2d& window) {
  const std::int64_t pixels = y.size(2) * y.size(3);
  const bool one_tap = window.kernel_h * window.kernel_w == 1;
  switch (pass) {
    case ConvPass::forward: return pixels <= (one_tap ? 8 * 8 : 28 * 28);
    case ConvPass::backward_data: return !one_tap || window.stride_h * window.stride_w > 1 || pixels <= 8 * 8;
    case ConvPass::backward_weights: break;
  }
  return one_tap || y.size(1) > 64 || pixels <= 16 * 16;
}

PlanImages images_of(const Kernels& kernels, const ConvPlan& plan, Scratch& scratch, const Tensor& x,
                     std::int64_t rows) {
  return {kernels, plan, scratch, rows, x.size(1), x.size(2) * x.size(3), x.layout()};
}

/// Weights in the plan's preferred format, reordered once per call, worker and plan.
class Weights {
 public:
  Weights(const Kernels& kernels, const Tensor& plain) : kernels_(&kernels), plain_(&plain) {}
  const float* get(const ConvPlan& plan, Worker& worker) {
    float* const ready = worker.weights.floats(plan.weight_floats() + 16);
    if (plan_ == &plan) return ready;
    const float* const w = plain_->data<float>();
    if (plan.block > 0) {  // oneDNN 2.6 takes ten times as long
      kernels_->block_weights(w, ready, plain_->size(0), plain_->size(1), plain_->shape().count_from(2), plan.block,
                              plan.outputs_last);
    } else {
      plan.reorder->run(worker.plans.stream(), {w, ready});
    }
    plan_ = &plan;
    return ready;
  }

 private:
  const Kernels* kernels_;
  const Tensor* plain_;
  const ConvPlan* plan_ = nullptr;
};

/// Shapes of one call of a fused convolution, the same forward and backward.
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

  Layout layout;  // layout of the convolution's output
  int block;
  bool transpose;  // y has another layout than the convolution's output
  std::int64_t channels, height, width;
  PoolGeometry pool;
  std::int64_t pixels;     // in one pooled image
  std::int64_t row_count;  // elements of a row of y
};

/// Whether the kernels for a 3x3 convolution with a 2x2 pool (PooledConv) take this one.
bool has_pooled_kernels(const Fused& f, const Tensor& x, const ConvPoolRelu& op) {
  const Window2d conv = {3, 3, 1, 1, 1, 1}, pool = {2, 2, 2, 2, 0, 0};
  constexpr std::int64_t kLargestOffset = std::int64_t{1} << 31;
  const std::int64_t padded = x.size(0) * x.size(1) * (f.height + 2) * (f.width + 2);
  return op.conv == conv && op.pool == pool && f.block > 1 && (x.layout() == f.layout || x.layout() == Layout::plain) &&
         f.height % 2 == 0 && f.width % 2 == 0 && padded < kLargestOffset;
}

}  // namespace

std::string CpuBackend::libraries() const {
  const dnnl_version_t& version = *dnnl_version();
  return concat("oneDNN ", version.major, ".", version.minor, ".", version.patch);
}

bool CpuBackend::rounds(const Tensor& x, const Tensor& w, const Tensor& y) {
  const bool rounds =
      precision_ == Precision::bf16 && block_of(y.layout()) == kernels_.channel_block && w.size(1) == x.size(1);
  if (rounds) has_rounded_ = true;
  return rounds;
}

Layout CpuBackend::conv2d_layout(const Shape& x, const Shape& w) const {
  const int block = kernels_.channel_block;
  const std::int64_t groups = x[1] / w[1];
  // oneDNN reads plain images of 1 or 3 channels into blocked ones; any other mixture takes a slow path. Blocks do not
  // reach into two groups, unless each group is one channel of input and output.
  const bool blocked = groups == 1 ? w[0] % block == 0 && (x[1] == 1 || x[1] == 3 || x[1] % block == 0)
                       : w[0] == groups && w[1] == 1 ? groups % block == 0
                                                     : w[0] / groups % block == 0 && w[1] % block == 0;
  return !blocked ? Layout::plain : block == 16 ? Layout::blocked16 : Layout::blocked8;
}

void CpuBackend::conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                const Window2d& window) {
  const float* const bias = rows_or_null(b);
  const bool bf16 = rounds(x, w, y);
  if (bf16 && bias == nullptr && takes_tiles(x, y, kernels_) && tiles_are_faster(ConvPass::forward, y, window))
    return tiled_conv(blocked_conv(x.shape(), y.shape(), window), false, x, w, y);
  CpuDevice& device = this->device(x);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(kernels_, w));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(key_of(ConvPass::forward, x.shape(), x.layout(), w.shape(), y.layout(), window,
                                              end - begin, b.defined(), bf16));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    const PlanImages from = images_of(kernels_, plan, worker.image, x, end - begin);
    const PlanImages to = images_of(kernels_, plan, worker.gradient, y, end - begin);
    float* const out = to.place(rows_of(y, begin));
    plan.convolve->run(worker.plans.stream(), {from.read(rows_of(x, begin)), ready, out, bias});
    to.store(out, rows_of(y, begin));
  });
}

void CpuBackend::conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) {
  CpuDevice& device = this->device(dy);
  const bool bf16 = rounds(dx, w, dy);
  if (bf16 && takes_tiles(dx, dy, kernels_) && tiles_are_faster(ConvPass::backward_data, dy, window))
    return tiled_conv(blocked_conv(dx.shape(), dy.shape(), window), true, dy, w, dx);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(kernels_, w));
  for_each_block(dy, [&](std::int64_t begin, std::int64_t end, int id) {
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(key_of(ConvPass::backward_data, dx.shape(), dx.layout(), w.shape(), dy.layout(),
                                              window, end - begin, false, bf16));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    const PlanImages from = images_of(kernels_, plan, worker.gradient, dy, end - begin);
    const PlanImages to = images_of(kernels_, plan, worker.image, dx, end - begin);
    float* const out = to.place(rows_of(dx, begin));
    plan.convolve->run(worker.plans.stream(), {from.read(rows_of(dy, begin)), ready, out});
    to.store(out, rows_of(dx, begin));
  });
}

void CpuBackend::conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                         const Window2d& window) {
  CpuDevice& device = this->device(x);
  const Blocks blocks = blocks_of(x);
  // On images in the plain layout oneDNN sums products of floats faster than products of bf16 numbers.
  const bool bf16 = rounds(x, dw, dy) && x.layout() == dy.layout();
  if (bf16 && !db.defined() && takes_tiles(x, dy, kernels_) && tiles_are_faster(ConvPass::backward_weights, dy, window))
    return tiled_weights(x, dy, dw, window);
  if (has_small_images(x, dy, dw, kernels_, bf16) && !db.defined()) {
    const BlockedConv g = blocked_conv(x.shape(), dy.shape(), window);
    const Leaves leaves = leaves_of(blocks);
    return device.pool().run(static_cast<int>(dy.size(1) / kernels_.channel_block), [&](int out_block, int id) {
      kernels_.small_backward_weights(
          g, x.data<float>(), dy.data<float>(), leaves, out_block, dw.data<float>(),
          device.worker(id).formatted.floats(kernels_.small_weights_scratch_floats(g, leaves)));
    });
  }
  ConvWeightGradient gradient(device, kernels_, blocks, x, dy.layout(), window, dw, db, bf16);
  gradient.run([&](Blocks::Range rows, int) { return rows_of(dy, rows.begin); });
}

void CpuBackend::tiled_conv(const BlockedConv& g, bool backward, const Tensor& from, const Tensor& w,
                            const Tensor& to) {
  CpuDevice& device = this->device(from);
  const int workers = device.pool().workers();
  device.pool().run(workers, [&](int part, int id) {
    const std::int64_t begin = block_begin(part, from.size(0), workers);
    const std::int64_t rows = block_begin(part + 1, from.size(0), workers) - begin;
    if (rows == 0) return;
    kernels_.tiled_conv(g, backward, rows_of(from, begin), w.data<float>(), rows, rows_of(to, begin),
                        device.worker(id).image.bytes(kernels_.tiled_conv_scratch_bytes(g, backward, rows)));
  });
}

void CpuBackend::tiled_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Window2d& window) {
  CpuDevice& device = this->device(x);
  const Blocks blocks = blocks_of(x);
  const Leaves leaves = leaves_of(blocks);
  const BlockedConv g = blocked_conv(x.shape(), dy.shape(), window);
  struct Place {
    std::int64_t x = 0, dy = 0;
  };
  std::array<Place, kMostBlocks + 1> places;
  const auto words = [&](const Tensor& images, int leaf) {
    return kernels_.paired_words(images.size(1), images.shape().count_from(2), blocks.leaf(leaf).rows());
  };
  for (int leaf = 0; leaf < leaves.count; ++leaf) {
    const auto i = static_cast<std::size_t>(leaf);
    places[i + 1] = {places[i].x + words(x, leaf), places[i].dy + words(dy, leaf)};
  }
  const Place all = places[static_cast<std::size_t>(leaves.count)];
  auto* const images = reinterpret_cast<std::uint32_t*>(device.leaves().floats(all.x + all.dy));
  std::uint32_t* const gradients = images + all.x;
  device.pool().run(leaves.count, [&](int leaf, int) {
    const Blocks::Range rows = blocks.leaf(leaf);
    const Place place = places[static_cast<std::size_t>(leaf)];
    const auto bring = [&](const Tensor& from, std::uint32_t* to) {
      kernels_.pair_images(rows_of(from, rows.begin), from.size(1), from.shape().count_from(2), rows.rows(), to);
    };
    bring(x, images + place.x);
    bring(dy, gradients + place.dy);
  });
  constexpr std::int64_t kTwo = 32;
  device.pool().run(static_cast<int>(x.size(1) / kTwo), [&](int part, int id) {
    kernels_.tiled_backward_weights(g, images, gradients, leaves, part * kTwo, dw.data<float>(),
                                    device.worker(id).formatted.bytes(kernels_.tiled_weights_scratch_bytes(g, leaves)));
  });
}

// The fused operator dropout(relu(max_pool2d(conv2d(x)))), block by block: a block's convolution stays in the cache
// until it is pooled.

void CpuBackend::conv_pool_relu_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                        const Tensor& index, const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Fused f(x, w, y, op, conv2d_layout(x.shape(), w.shape()));
  if (has_pooled_kernels(f, x, op)) return pooled_forward(x, w, b, y, index, op);
  const Rows stamp = x.stamp_or_self();
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(kernels_, w));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(
        key_of(ConvPass::forward, x.shape(), x.layout(), w.shape(), f.layout, op.conv, end - begin, true));
    float* const image = worker.image.floats((end - begin) * f.channels * f.height * f.width);
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    plan.convolve->run(worker.plans.stream(), {rows_of(x, begin), ready, image, b.data<float>()});
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
  if (has_pooled_kernels(f, x, op)) {
    if (x.layout() == f.layout) return nonzero_backward(dy, index, x, w, dx, dw, db, op);
    if (!dx.defined() && dy.layout() == f.layout) return plain_pooled_backward(dy, index, x, dw, db, op);
  }
  CpuDevice& device = this->device(x);
  const bool scaled = op.dropout.p > 0;
  const Blocks blocks = blocks_of(x);
  ConvWeightGradient gradients(device, kernels_, blocks, x, f.layout, op.conv, dw, db);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(kernels_, w));
  gradients.run([&](Blocks::Range rows, int id) -> const float* {
    const auto [begin, end] = rows;
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
    if (!dx.defined()) return gradient;
    ConvPlan& data_plan = worker.plans.plan(
        key_of(ConvPass::backward_data, x.shape(), dx.layout(), w.shape(), f.layout, op.conv, end - begin, false));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(data_plan, worker);
    data_plan.convolve->run(worker.plans.stream(), {gradient, ready, rows_of(dx, begin)});
    return gradient;
  });
}

// A 3x3 convolution, bias, 2x2 max-pool, relu and dropout by own kernels: forward by Winograd's algorithm, or directly
// from plain images of few channels; backward over nonzero gradients only. Images are padded row by row, in the cache.

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
                              rows_or_null(dx, begin), weights, bias,
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
