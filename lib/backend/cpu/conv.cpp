// Convolutions by oneDNN, block by block.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lib/backend/cpu/conv_support.h"
#include "lib/backend/cpu/leaf_gradients.h"

extern "C" void omp_set_num_threads(int threads);

namespace duet::cpu {

void use_one_openmp_thread() {
  thread_local const bool done = (omp_set_num_threads(1), true);
  static_cast<void>(done);
}

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
  const float* const bias = b.defined() ? b.data<float>() : nullptr;
  CpuDevice& device = this->device(x);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(
        key_of(ConvPass::forward, x.shape(), x.layout(), w.size(0), y.layout(), window, end - begin, b.defined()));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    plan.convolve->run(worker.plans.stream(), {rows_of(x, begin), ready, rows_of(y, begin), bias});
  });
}

void CpuBackend::conv2d_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window2d& window) {
  CpuDevice& device = this->device(dy);
  PooledVector<Weights> weights(static_cast<std::size_t>(device.pool().workers()), Weights(w));
  for_each_block(dy, [&](std::int64_t begin, std::int64_t end, int id) {
    use_one_openmp_thread();
    Worker& worker = device.worker(id);
    ConvPlan& plan = worker.plans.plan(
        key_of(ConvPass::backward_data, dx.shape(), dx.layout(), w.size(0), dy.layout(), window, end - begin, false));
    const float* const ready = weights[static_cast<std::size_t>(id)].get(plan, worker);
    plan.convolve->run(worker.plans.stream(), {rows_of(dy, begin), ready, rows_of(dx, begin)});
  });
}

void CpuBackend::conv2d_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                         const Window2d& window) {
  CpuDevice& device = this->device(x);
  const Blocks blocks = blocks_of(x);
  ConvWeightGradient gradient(device, kernels_, blocks, x, dy.layout(), window, dw, db);
  gradient.run([&](Blocks::Range rows, int) { return rows_of(dy, rows.begin); });
}

}  // namespace duet::cpu
