// Convolutions, plain and fused with bias, max-pool, relu and dropout.
#include <algorithm>
#include <cstring>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"
#include "lib/backend/cpu/onednn.h"

extern "C" void omp_set_num_threads(int threads);

namespace duet::cpu {
namespace {

/// oneDNN's own threads stay at one: a device's threads share out its blocks. OpenMP keeps the number per thread.
void use_one_openmp_thread() {
  thread_local const bool done = (omp_set_num_threads(1), true);
  static_cast<void>(done);
}

ConvKey key_of(ConvPass pass, const Shape& x, Layout x_layout, std::int64_t out_channels, Layout y_layout,
               const Window2d& window, std::int64_t rows) {
  return {pass, rows, x[1], x[2], x[3], out_channels, window, x_layout, y_layout};
}

float* rows_of(const Tensor& tensor, std::int64_t begin) {
  return tensor.data<float>() + begin * tensor.shape().count_from(1);
}

/// Weights in the format that the plan wants, reordered once per call, worker and plan.
class Weights {
 public:
  explicit Weights(const Tensor& plain) : plain_(plain.data<float>()) {}
  const float* get(const ConvPlan& plan, Worker& worker) {
    float* const ready = worker.weights.floats(static_cast<std::int64_t>(plan.weight_bytes / sizeof(float)) + 16);
    if (plan_ != &plan) plan.reorder->run(worker.plans.stream(), {plain_, ready});
    plan_ = &plan;
    return ready;
  }

 private:
  const float* plain_;
  const ConvPlan* plan_ = nullptr;
};

/// The gradients of weights and bias of each leaf, then their sum by the tree.
class LeafGradients {
 public:
  LeafGradients(CpuDevice& device, const Blocks& blocks, const Tensor& dw, const Tensor& db)
      : blocks_(blocks), dw_(dw), db_(db), channels_(dw.size(0)) {
    // Preferred formats may pad the weights' channels; twice the plain size and a little is ample for 8- and 16-blocks.
    stride_ = dw.count() + 32 * 32 * dw.size(2) * dw.size(3) + channels_ + 64;
    base_ = device.leaves().floats(stride_ * std::max(1, blocks.leaf_count));
  }
  float* weights(int leaf, const ConvPlan& plan) {
    require(static_cast<std::int64_t>(plan.weight_bytes / sizeof(float)) + channels_ <= stride_,
            "conv2d: oneDNN's weight format takes ", plan.weight_bytes, " bytes, more than provided");
    return base_ + leaf * stride_ + channels_;
  }
  float* bias(int leaf) { return base_ + leaf * stride_; }

  /// Leaves whose plans differ (blocks of two sizes) may have different formats, so each is brought to plain, by the
  /// worker whose engine made the plan.
  void make_plain(int leaf, const ConvPlan& plan, Worker& worker) {
    float* const plain = worker.image.floats(stride_);
    plan.reorder->run(worker.plans.stream(), {bias(leaf) + channels_, plain});
    std::copy_n(plain, dw_.count(), bias(leaf) + channels_);
  }

  void finish(const Kernels& kernels) {
    const std::int64_t count = dw_.count();
    for (int leaf = 0; leaf < blocks_.leaf_count; ++leaf) {
      const auto [begin, end] = blocks_.leaves[static_cast<std::size_t>(leaf)];
      if (begin == end) std::fill_n(bias(leaf), channels_ + count, 0.0f);
    }
    for (int i = 0; i < blocks_.addition_count; ++i) {
      const auto [to, from] = blocks_.additions[static_cast<std::size_t>(i)];
      kernels.add(bias(to), bias(from), bias(to), channels_ + count);
    }
    if (blocks_.add_zero)
      for (std::int64_t i = 0; i < channels_ + count; ++i) base_[i] += 0.0f;
    std::copy_n(base_ + channels_, count, dw_.data<float>());
    if (db_.defined()) std::copy_n(base_, channels_, db_.data<float>());
  }

 private:
  const Blocks& blocks_;
  const Tensor& dw_;
  const Tensor& db_;
  std::int64_t channels_, stride_ = 0;
  float* base_ = nullptr;
};

int block_of(Layout layout) { return layout == Layout::blocked16 ? 16 : layout == Layout::blocked8 ? 8 : 1; }

PoolGeometry geometry(std::int64_t h, std::int64_t w, const Window2d& window) {
  return {h,
          w,
          window.out_h(h),
          window.out_w(w),
          window.kernel_h,
          window.kernel_w,
          window.stride_h,
          window.stride_w,
          window.pad_h,
          window.pad_w};
}

}  // namespace

std::string CpuBackend::libraries() const {
  const dnnl_version_t& version = *dnnl_version();
  return concat("oneDNN ", version.major, ".", version.minor, ".", version.patch);
}

Layout CpuBackend::conv2d_layout(const Shape& x, const Shape& w) const {
  const int block = kernels_.channel_block;
  // oneDNN reads plain images of 1 or 3 channels into blocked ones; any other mixture takes a slow path.
  const bool blocked = w[0] % block == 0 && (x[1] == 1 || x[1] == 3 || x[1] % block == 0);
  return !blocked ? Layout::plain : block == 16 ? Layout::blocked16 : Layout::blocked8;
}

void CpuBackend::conv2d_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                const Window2d& window) {
  Tensor no_bias;
  if (!b.defined()) no_bias = zeros({w.size(0)});
  const float* const bias = (b.defined() ? b : no_bias).data<float>();
  CpuDevice& device = this->device(x);
  PooledVector<Weights> weights;
  weights.resize(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan =
        worker.plans.plan(key_of(ConvPass::forward, x.shape(), x.layout(), w.size(0), y.layout(), window, end - begin));
    plan.convolve->run(
        worker.plans.stream(),
        {rows_of(x, begin), weights[static_cast<std::size_t>(id)].get(plan, worker), bias, rows_of(y, begin)});
  });
}

void CpuBackend::conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) {
  CpuDevice& device = this->device(dy);
  PooledVector<Weights> weights;
  weights.resize(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(dy, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(
        key_of(ConvPass::backward_data, dx.shape(), dx.layout(), w.size(0), dy.layout(), window, end - begin));
    plan.convolve->run(
        worker.plans.stream(),
        {rows_of(dy, begin), weights[static_cast<std::size_t>(id)].get(plan, worker), rows_of(dx, begin)});
  });
}

void CpuBackend::conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                         const Window2d& window) {
  CpuDevice& device = this->device(x);
  const Blocks blocks = blocks_of(x.stamp_or_self(), x.size(0));
  LeafGradients gradients(device, blocks, dw, db);
  device.pool().run(blocks.leaf_count, [&](int leaf, int id) {
    const auto [begin, end] = blocks.leaves[static_cast<std::size_t>(leaf)];
    if (begin == end) return;
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(
        key_of(ConvPass::backward_weights, x.shape(), x.layout(), dw.size(0), dy.layout(), window, end - begin));
    plan.convolve->run(worker.plans.stream(),
                       {rows_of(x, begin), rows_of(dy, begin), gradients.weights(leaf, plan), gradients.bias(leaf)});
    gradients.make_plain(leaf, plan, worker);
  });
  gradients.finish(kernels_);
}

void CpuBackend::conv_pool_relu_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                        const Tensor& index, const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Layout layout = conv2d_layout(x.shape(), w.shape());
  const int block = block_of(layout);
  const bool transpose = y.layout() != layout;
  const std::int64_t channels = w.size(0), h = op.conv.out_h(x.size(2)), width = op.conv.out_w(x.size(3));
  const PoolGeometry g = geometry(h, width, op.pool);
  const std::int64_t pixels = g.out_height * g.out_width, row_count = channels * pixels;
  const Rows stamp = x.stamp_or_self();
  const auto threshold = static_cast<std::uint32_t>(op.dropout.p * 65536.0f + 0.5f);
  PooledVector<Weights> weights;
  weights.resize(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan =
        worker.plans.plan(key_of(ConvPass::forward, x.shape(), x.layout(), channels, layout, op.conv, end - begin));
    float* const image = worker.image.floats((end - begin) * channels * h * width);
    plan.convolve->run(
        worker.plans.stream(),
        {rows_of(x, begin), weights[static_cast<std::size_t>(id)].get(plan, worker), b.data<float>(), image});
    float* const pooled = worker.row.floats(pixels * block);
    std::uint8_t* const places = worker.index.bytes(pixels * block);
    std::uint8_t* const mask = worker.mask.bytes(2 * row_count);
    for (std::int64_t row = begin; row < end; ++row) {
      float* const out = rows_of(y, row);
      std::uint8_t* const out_index = index.data<std::uint8_t>() + row * row_count;
      for (std::int64_t c = 0; c < channels; c += block) {
        const float* const from = image + ((row - begin) * channels + c) * h * width;
        float* const to = out + c * pixels;
        std::uint8_t* const to_index = out_index + c * pixels;
        if (!transpose) {
          kernels_.max_pool(from, to, to_index, g, block);
        } else {
          kernels_.max_pool(from, pooled, places, g, block);
          kernels_.unblock(pooled, to, pixels, block);
          kernels_.unblock_bytes(places, to_index, pixels, block);
        }
      }
      kernels_.relu_index(out, out_index, row_count);
      if (op.dropout.p <= 0) continue;
      kernels_.dropout_mask(mask, row_count, op.dropout.seed, op.dropout.step,
                            static_cast<std::uint64_t>(stamp.first + row), op.dropout.layer, threshold);
      const std::uint8_t* ordered = mask;
      if (y.layout() != Layout::plain) {
        for (std::int64_t c = 0; c < channels; c += block)
          kernels_.block_bytes(mask + c * pixels, mask + row_count + c * pixels, pixels, block);
        ordered = mask + row_count;
      }
      kernels_.drop_index(out, out_index, ordered, op.dropout.scale(), row_count);
    }
  });
}

void CpuBackend::conv_pool_relu_backward(const Tensor& dy, const Tensor& index, const Tensor& x, const Tensor& w,
                                         const Tensor& dx, const Tensor& dw, const Tensor& db, const ConvPoolRelu& op) {
  CpuDevice& device = this->device(x);
  const Layout layout = conv2d_layout(x.shape(), w.shape());
  const int block = block_of(layout);
  const bool transpose = dy.layout() != layout;
  const std::int64_t channels = w.size(0), h = op.conv.out_h(x.size(2)), width = op.conv.out_w(x.size(3));
  const PoolGeometry g = geometry(h, width, op.pool);
  const std::int64_t pixels = g.out_height * g.out_width, row_count = channels * pixels;
  const bool scaled = op.dropout.p > 0;
  const Blocks blocks = blocks_of(x.stamp_or_self(), x.size(0));
  LeafGradients gradients(device, blocks, dw, db);
  PooledVector<Weights> weights;
  weights.resize(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  device.pool().run(blocks.leaf_count, [&](int leaf, int id) {
    const auto [begin, end] = blocks.leaves[static_cast<std::size_t>(leaf)];
    if (begin == end) return;
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    float* const gradient = worker.gradient.floats((end - begin) * channels * h * width);
    float* const pooled = worker.row.floats(pixels * block);
    std::uint8_t* const places = worker.index.bytes(pixels * block);
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t c = 0; c < channels; c += block) {
        const float* from = rows_of(dy, row) + c * pixels;
        const std::uint8_t* from_index = index.data<std::uint8_t>() + row * row_count + c * pixels;
        if (transpose) {
          kernels_.block(from, pooled, pixels, block);
          kernels_.block_bytes(from_index, places, pixels, block);
          from = pooled;
          from_index = places;
        } else if (scaled) {
          std::memcpy(pooled, from, static_cast<std::size_t>(pixels * block) * sizeof(float));
          from = pooled;
        }
        if (scaled) kernels_.scale(pooled, op.dropout.scale(), pixels * block);
        kernels_.max_pool_backward(from, from_index, gradient + ((row - begin) * channels + c) * h * width, g, block);
      }
    }
    ConvPlan& plan = worker.plans.plan(
        key_of(ConvPass::backward_weights, x.shape(), x.layout(), channels, layout, op.conv, end - begin));
    plan.convolve->run(worker.plans.stream(),
                       {rows_of(x, begin), gradient, gradients.weights(leaf, plan), gradients.bias(leaf)});
    gradients.make_plain(leaf, plan, worker);
    if (!dx.defined()) return;
    ConvPlan& data_plan = worker.plans.plan(
        key_of(ConvPass::backward_data, x.shape(), dx.layout(), channels, layout, op.conv, end - begin));
    data_plan.convolve->run(
        worker.plans.stream(),
        {gradient, weights[static_cast<std::size_t>(id)].get(data_plan, worker), rows_of(dx, begin)});
  });
  gradients.finish(kernels_);
}

}  // namespace duet::cpu
