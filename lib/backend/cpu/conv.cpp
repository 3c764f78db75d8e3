// Convolutions by oneDNN, block by block.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lib/backend/cpu/conv_support.h"
#include "lib/backend/cpu/leaf_gradients.h"

namespace duet::cpu {
namespace {

/// Whether own loops compute the weight gradient: oneDNN's read and write all of it for every few pixels. The answer is
/// the same on all devices of a batch, whatever rows they hold.
bool has_small_images(const Tensor& x, const Tensor& dy, const Tensor& dw, const Kernels& kernels, bool bf16) {
  const std::int64_t most_pixels = bf16 ? 128 : 512;  // of a block of the batch
  const std::int64_t rows = (x.stamp_or_self().global + kBlocks - 1) / kBlocks;
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
/// Where they are faster than oneDNN's. Rows do not count: devices that hold parts of a batch must choose alike.
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
  const float* const bias = b.defined() ? b.data<float>() : nullptr;
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
  // Of plain images oneDNN sums products of floats faster than those of bf16 numbers.
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
  std::array<Place, kBlocks + 1> places;
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

}  // namespace duet::cpu
