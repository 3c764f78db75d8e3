// Linear layers, alone, with relu and dropout, and with log_softmax; products of matrices.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"

namespace duet::cpu {
namespace {

/// Calls task(first row, rows, worker) for each worker's rows. Not by blocks: a row depends on itself only, and the
/// weights are read once for all rows of a worker.
template <class Task>
void for_each_share(CpuDevice& device, std::int64_t n, Task task) {
  const int workers = device.pool().workers();
  device.pool().run(workers, [&](int part, int id) {
    const std::int64_t begin = block_begin(part, n, workers);
    task(begin, block_begin(part + 1, n, workers) - begin, id);
  });
}

/// Matrices in the last two dimensions of x.
std::int64_t heads_of(const Tensor& x) { return x.count() / (x.size(-2) * x.size(-1)); }

}  // namespace

void CpuBackend::linear_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  const std::int64_t in = w.size(1), out = w.size(0);
  CpuDevice& device = this->device(x);
  for_each_share(device, vectors_of(x.shape()), [&](std::int64_t begin, std::int64_t rows, int id) {
    kernels_.linear(x.data<float>() + begin * in, w.data<float>(), rows_or_null(b), y.data<float>() + begin * out, rows,
                    in, out, device.worker(id).row.bytes(kernels_.linear_forward_scratch_bytes(rows, in, out)));
  });
}

void CpuBackend::multiply(Worker& worker, const Product& product) {
  kernels_.multiply(product, worker.row.bytes(kernels_.product_scratch_bytes(product)));
}

void CpuBackend::linear_gradients(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dx,
                                  const Tensor& dw, const Tensor& db, bool skips_zeros) {
  const std::int64_t in = w.size(1), out = w.size(0), vectors = vectors_of(x.shape());
  CpuDevice& device = this->device(x);
  const auto lists = [&](Worker& worker, std::int64_t rows) {
    return worker.row.bytes(kernels_.nonzero_linear_scratch_bytes(rows, out));
  };
  if (dw.defined()) {
    Blocks blocks = blocks_of(x);
    if (x.shape().rank() > 2)
      for (std::int64_t& bound : blocks.ranges) bound *= vectors_of(x.shape().with(0, 1));
    const Leaves leaves = leaves_of(blocks);
    constexpr std::int64_t kColumns = 64;
    const std::int64_t groups = (in + kColumns - 1) / kColumns;
    ThreadPool& pool = device.pool();
    pool.run(pool.workers(), [&](int part, int id) {
      const std::int64_t begin = groups * part / pool.workers() * kColumns;
      const std::int64_t end = std::min(in, groups * (part + 1) / pool.workers() * kColumns);
      if (skips_zeros) {
        kernels_.nonzero_linear_weights(x.data<float>(), dy.data<float>(), dw.data<float>(), in, out, begin, end,
                                        leaves, lists(device.worker(id), vectors));
      } else {
        multiply(device.worker(id), {.a = {dy.data<float>(), 1, out},
                                     .b = {x.data<float>() + begin, in, 1},
                                     .c = dw.data<float>() + begin,
                                     .pitch = in,
                                     .m = out,
                                     .n = end - begin,
                                     .k = vectors,
                                     .leaves = &leaves});
      }
    });
    if (db.defined()) kernels_.sum_rows(dy.data<float>(), db.data<float>(), out, leaves);
  }
  if (!dx.defined()) return;
  for_each_share(device, vectors, [&](std::int64_t begin, std::int64_t rows, int id) {
    const float* const from = dy.data<float>() + begin * out;
    float* const to = dx.data<float>() + begin * in;
    if (skips_zeros) {
      kernels_.nonzero_linear_data(from, w.data<float>(), to, rows, in, out, lists(device.worker(id), rows));
    } else {
      multiply(
          device.worker(id),
          {.a = {from, out, 1}, .b = {w.data<float>(), in, 1}, .c = to, .pitch = in, .m = rows, .n = in, .k = out});
    }
  });
}

void CpuBackend::linear_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& dx, const Tensor& dw,
                                 const Tensor& db) {
  linear_gradients(dy, x, w, dx, dw, db, false);
}

void CpuBackend::matmul(const Tensor& a, bool a_transposed, const Tensor& b, bool b_transposed, const Tensor& y) {
  const std::int64_t m = y.size(-2), p = y.size(-1), k = a.size(a_transposed ? -2 : -1);
  if (y.count() == 0) return;
  CpuDevice& device = this->device(y);
  const auto matrix = [](const Tensor& x, std::int64_t i, std::int64_t floats, bool transposed) -> Matrix {
    const std::int64_t pitch = x.size(-1);
    return {x.data<float>() + i * floats, transposed ? 1 : pitch, transposed ? pitch : 1};
  };
  for_each_share(device, heads_of(y), [&](std::int64_t begin, std::int64_t count, int id) {
    for (std::int64_t i = begin; i < begin + count; ++i)
      multiply(device.worker(id), {.a = matrix(a, i, m * k, a_transposed),
                                   .b = matrix(b, i, k * p, b_transposed),
                                   .c = y.data<float>() + i * m * p,
                                   .pitch = p,
                                   .m = m,
                                   .n = p,
                                   .k = k});
  });
}

namespace {

/// Head i of attention over q (..., queries, depth), k (..., keys, depth) and v (..., keys, values).
Attention head_of(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, std::int64_t i) {
  Attention head = {.queries = q.size(-2),
                    .keys = k.size(-2),
                    .depth = q.size(-1),
                    .values = v.size(-1),
                    .causal = causal,
                    .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(q.size(-1))))};
  head.q = q.data<float>() + i * head.queries * head.depth;
  head.k = k.data<float>() + i * head.keys * head.depth;
  head.v = v.data<float>() + i * head.keys * head.values;
  return head;
}

}  // namespace

void CpuBackend::attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                   const Tensor& weights, const Tensor& y) {
  CpuDevice& device = this->device(y);
  for_each_share(device, heads_of(weights), [&](std::int64_t begin, std::int64_t count, int id) {
    for (std::int64_t i = begin; i < begin + count; ++i) {
      const Attention head = head_of(q, k, v, causal, i);
      kernels_.attention(head, weights.data<float>() + i * head.queries * head.keys,
                         y.data<float>() + i * head.queries * head.values,
                         device.worker(id).row.bytes(kernels_.attention_scratch_bytes(head)));
    }
  });
}

void CpuBackend::attention_backward(const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                    const Tensor& weights, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  CpuDevice& device = this->device(dy);
  for_each_share(device, heads_of(weights), [&](std::int64_t begin, std::int64_t count, int id) {
    Worker& worker = device.worker(id);
    for (std::int64_t i = begin; i < begin + count; ++i) {
      const Attention head = head_of(q, k, v, causal, i);
      const std::int64_t scores = head.queries * head.keys;
      kernels_.attention_backward(
          head, weights.data<float>() + i * scores, dy.data<float>() + i * head.queries * head.values,
          worker.gradient.floats(scores), dq.data<float>() + i * head.queries * head.depth,
          dk.data<float>() + i * head.keys * head.depth, dv.data<float>() + i * head.keys * head.values,
          worker.row.bytes(kernels_.attention_scratch_bytes(head)));
    }
  });
}

void CpuBackend::linear_relu_dropout_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y,
                                             const DropoutKey& dropout) {
  linear_forward(x, w, b, y);
  const std::int64_t out = w.size(0), first = x.stamp_or_self().first;
  CpuDevice& device = this->device(x);
  for_each_share(device, x.size(0), [&](std::int64_t begin, std::int64_t rows, int id) {
    std::uint8_t* const mask = dropout.p > 0 ? device.worker(id).mask.bytes(rows * out) : nullptr;
    for (std::int64_t row = 0; mask != nullptr && row < rows; ++row)
      kernels_.dropout_mask(mask + row * out, out, dropout.seed, dropout.step,
                            static_cast<std::uint64_t>(first + begin + row), dropout.layer, dropout.threshold());
    float* const to = y.data<float>() + begin * out;
    kernels_.relu(to, to, rows * out);
    if (mask != nullptr) kernels_.mask_scale(to, mask, dropout.scale(), to, rows * out);
  });
}

void CpuBackend::linear_relu_dropout_backward(const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& w,
                                              const Tensor& dx, const Tensor& dw, const Tensor& db,
                                              const DropoutKey& dropout) {
  const std::int64_t out = w.size(0);
  const Tensor gradient = empty(y.shape(), DType::f32, y.device());
  for_each_share(device(x), x.size(0), [&](std::int64_t begin, std::int64_t rows, int) {
    kernels_.relu_dropout_backward(y.data<float>() + begin * out, dy.data<float>() + begin * out, dropout.scale(),
                                   gradient.data<float>() + begin * out, rows * out);
  });
  linear_gradients(gradient, x, w, dx, dw, db, dropout.p > 0);
}

void CpuBackend::linear_log_softmax_forward(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  linear_forward(x, w, b, y);
  log_softmax_forward(y, y);
}

}  // namespace duet::cpu
