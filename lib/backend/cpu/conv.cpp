// Convolutions by oneDNN, block by block.
#include <algorithm>
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
  const bool bf16 = rounds(x, dw, dy);
  if (has_small_images(x, dy, dw, kernels_, bf16) && !db.defined()) {
    const BlockedConv g = {x.size(1),       x.size(2),       x.size(3),       dy.size(1),
                           dy.size(2),      dy.size(3),      window.kernel_h, window.kernel_w,
                           window.stride_h, window.stride_w, window.pad_h,    window.pad_w};
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

}  // namespace duet::cpu
