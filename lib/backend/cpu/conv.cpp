// Convolutions by oneDNN, block by block.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lib/backend/cpu/conv_support.h"

extern "C" void omp_set_num_threads(int threads);

namespace duet::cpu {

void use_one_openmp_thread() {
  thread_local const bool done = (omp_set_num_threads(1), true);
  static_cast<void>(done);
}

void LeafGradients::run_plain(const Kernels& kernels, int leaf, Worker& worker, const Tensor& x, std::int64_t begin,
                              std::int64_t end, const float* dy, const Window2d& window) {
  const std::int64_t h = x.size(2), w = x.size(3), images = (end - begin) * x.size(1);
  const PlainConv g = {.in_channels = x.size(1),
                       .height = h + 2 * window.pad_h,
                       .width = w + 2 * window.pad_w,
                       .out_channels = channels_,
                       .out_height = window.out_h(h),
                       .out_width = window.out_w(w),
                       .kernel_h = window.kernel_h,
                       .kernel_w = window.kernel_w,
                       .stride_h = window.stride_h,
                       .stride_w = window.stride_w};
  float* const padded = worker.formatted.floats(images * g.height * g.width);
  std::fill_n(padded, images * g.height * g.width, 0.0f);
  for (std::int64_t i = 0; i < images; ++i)
    for (std::int64_t row = 0; row < h; ++row)
      std::copy_n(rows_of(x, begin) + (i * h + row) * w, w,
                  padded + (i * g.height + row + window.pad_h) * g.width + window.pad_w);
  kernels.plain_backward_weights(g, padded, dy, end - begin, weights(leaf), bias(leaf));
}

std::string CpuBackend::libraries() const {
  const dnnl_version_t& version = *dnnl_version();
  return concat("oneDNN ", version.major, ".", version.minor, ".", version.patch);
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
  Tensor no_bias;
  if (!b.defined()) no_bias = zeros({w.size(0)});
  const float* const bias = (b.defined() ? b : no_bias).data<float>();
  CpuDevice& device = this->device(x);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(key_of(ConvPass::forward, x.shape(), x.layout(), w.size(0), y.layout(), window,
                                              end - begin, x.size(1) / w.size(1)));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    plan.convolve->run(worker.plans.stream(), {rows_of(x, begin), ready, bias, rows_of(y, begin)});
  });
}

void CpuBackend::conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) {
  CpuDevice& device = this->device(dy);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(dy, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(key_of(ConvPass::backward_data, dx.shape(), dx.layout(), w.size(0), dy.layout(),
                                              window, end - begin, dx.size(1) / w.size(1)));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    plan.convolve->run(worker.plans.stream(), {rows_of(dy, begin), ready, rows_of(dx, begin)});
  });
}

void CpuBackend::conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                         const Window2d& window) {
  CpuDevice& device = this->device(x);
  const Blocks blocks = blocks_of(x);
  LeafGradients gradients(device, blocks, dw, db);
  device.pool().run(blocks.leaf_count, [&](int leaf, int id) {
    const auto [begin, end] = blocks.leaf(leaf);
    if (begin == end) return;
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    if (reads_plain_image(x, dy.layout()))
      return gradients.run_plain(kernels_, leaf, worker, x, begin, end, rows_of(dy, begin), window);
    ConvPlan& plan = worker.plans.plan(key_of(ConvPass::backward_weights, x.shape(), x.layout(), dw.size(0),
                                              dy.layout(), window, end - begin, x.size(1) / dw.size(1)));
    gradients.run(leaf, plan, worker, rows_of(x, begin), rows_of(dy, begin));
  });
  gradients.sum_to_plain(kernels_);
}

}  // namespace duet::cpu
