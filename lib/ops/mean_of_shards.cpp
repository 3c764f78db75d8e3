#include "lib/ops/mean_of_shards.h"

#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"

namespace duet::ops {
namespace {

struct MeanOfShardsNode final : Node {
  const char* name() const override { return "mean_of_shards"; }
  void backward(const Gradients& g) override {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const Tensor& whole = g.outputs[0];
      const bool shared = whole.device().kind == devices[i].kind && backend(whole).shares_memory();
      if (g.wanted(i) && has_rows[i]) g.inputs[i] = shared ? whole.alias(devices[i]) : whole.to(devices[i]);
    }
  }
  PooledVector<Device> devices;
  PooledVector<char> has_rows;
};

}  // namespace

Variable mean_of_shards(std::span<const Variable> losses, std::span<const std::int64_t> rows, Device device) {
  require<ShapeError>(!losses.empty() && losses.size() == rows.size(), "mean_of_shards: ", losses.size(),
                      " losses and ", rows.size(), " numbers of rows");
  std::int64_t total = 0;
  for (const std::int64_t n : rows) total += n;
  // On the device, so that the host need not wait for the losses.
  Tensor value;
  bool record = false;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    record |= grad_enabled() && losses[i].requires_grad();
    if (rows[i] == 0) continue;
    const Tensor part = empty({}, DType::f32, device);
    copy(losses[i].value().reshape({}), part);
    backend(part).scale(part, static_cast<float>(rows[i]) / static_cast<float>(total));
    if (value.defined()) {
      backend(value).add(value, part, value);
    } else {
      value = part;
    }
  }
  if (!value.defined()) value = zeros({}, DType::f32, device);
  if (!record) return Variable(value);
  auto node = make_pooled<MeanOfShardsNode>();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    node->add_edge(losses[i].edge());
    node->devices.push_back(losses[i].device());
    node->has_rows.push_back(rows[i] > 0);
  }
  return Variable(value, std::move(node));
}

}  // namespace duet::ops
