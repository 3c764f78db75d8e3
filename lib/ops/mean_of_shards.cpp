#include "lib/ops/mean_of_shards.h"

#include <cstdint>
#include <utility>

#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::ops {
namespace {

struct MeanOfShardsNode final : Node {
  const char* name() const override { return "mean_of_shards"; }
  /// Shards without rows get a gradient too: their layers may take part in sums over the batch.
  void backward(const Gradients& g) override {
    const Tensor& whole = g.outputs[0];
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (!g.wanted(i)) continue;
      const Tensor own = weights[i] == 1 ? whole : whole.clone();
      if (weights[i] != 1) backend(own).scale(own, weights[i]);
      const bool shared = own.device().kind == devices[i].kind && backend(own).shares_memory();
      g.inputs[i] = shared ? own.alias(devices[i]) : own.to(devices[i]);
    }
  }
  PooledVector<Device> devices;
  PooledVector<float> weights;  // of the gradient
};

/// Whether all losses divide by the rows of their stamped batch.
bool divide_by_batch(std::span<const Variable> losses) {
  unsigned normalisers = 0;
  for (const Variable& loss : losses)
    if (loss.requires_grad()) normalisers |= loss.edge().node->normalisers();
  const bool own = (normalisers & kOwnRows) != 0, batch = (normalisers & ~unsigned{kOwnRows}) != 0;
  require<UsageError>(!own || !batch,
                      "a loss in the replicas adds terms that are divided by the rows of the batch to terms that are "
                      "not: their gradients cannot be weighted alike; compute it from the gathered output");
  return batch;
}

}  // namespace

Variable mean_of_shards(std::span<const Variable> losses, std::span<const std::int64_t> rows, const Rows& batch,
                        Device device) {
  require<ShapeError>(!losses.empty() && losses.size() == rows.size(), "mean_of_shards: ", losses.size(),
                      " losses and ", rows.size(), " numbers of rows");
  std::int64_t total = 0;
  for (const std::int64_t n : rows) total += n;
  const auto weight = [&](std::size_t i) { return static_cast<float>(rows[i]) / static_cast<float>(total); };
  // On the device, so that the host need not wait for the losses.
  Tensor value;
  bool record = false;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    record |= grad_enabled() && losses[i].requires_grad();
    if (rows[i] == 0) continue;
    const Tensor part = empty({}, DType::f32, device);
    copy(losses[i].value().reshape({}), part);
    backend(part).scale(part, weight(i));
    if (value.defined()) {
      backend(value).add(value, part, value);
    } else {
      value = part;
    }
  }
  if (!value.defined()) value = zeros({}, DType::f32, device);
  if (!record) return Variable(value);
  auto node = make_pooled<MeanOfShardsNode>();
  const bool shares = divide_by_batch(losses);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    node->add_edge(losses[i].edge());
    node->devices.push_back(losses[i].device());
    node->weights.push_back(shares || total == 0 ? 1.0f : weight(i));
  }
  node->set_normalisers(shares ? normaliser_of(batch, total) : kOwnRows);
  return Variable(value, std::move(node));
}

}  // namespace duet::ops
