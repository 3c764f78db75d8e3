#include "ddp/output_of_batch.h"

#include <memory>
#include <utility>

#include "lib/autograd/node.h"
#include "lib/pool.h"

namespace duet::ddp {
namespace {

struct OutputNode final : Node {
  const char* name() const override { return "DistributedDataParallel"; }
  void reached() override { weights->reached(batch); }
  void backward(const Gradients& gradients) override { gradients.inputs[0] = gradients.outputs[0]; }
  std::shared_ptr<RankWeights> weights;
  RankWeights::Batch batch;
};

}  // namespace

Variable output_of_batch(const Variable& output, const std::shared_ptr<RankWeights>& weights,
                         const RankWeights::Batch& batch) {
  if (!output.requires_grad()) return output;
  auto node = make_pooled<OutputNode>();
  node->add_edge(output.edge());
  node->weights = weights;
  node->batch = batch;
  return {output.value(), std::move(node)};
}

nn::Value output_of_batch(const nn::Value& output, const std::shared_ptr<RankWeights>& weights,
                          const RankWeights::Batch& batch) {
  return nn::map_tensors(output, [&](const Variable& y) { return output_of_batch(y, weights, batch); });
}

}  // namespace duet::ddp
