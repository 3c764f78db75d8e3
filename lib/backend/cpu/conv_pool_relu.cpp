// The fused operator dropout(relu(max_pool2d(conv2d(x)))), block by block: a block's convolution stays in the cache
// until it is pooled.
#include <cstdint>
#include <cstring>

#include "lib/backend/cpu/conv_support.h"
#include "lib/backend/cpu/leaf_gradients.h"

namespace duet::cpu {

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

}  // namespace duet::cpu
