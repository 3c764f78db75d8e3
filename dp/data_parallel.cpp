#include "dp/data_parallel.h"

#include <algorithm>
#include <cstdint>

#include "dp/parallel_apply.h"
#include "dp/scatter_gather.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/backend/backend.h"
#include "lib/base/fault_point.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/ops/losses.h"

namespace duet::dp {
namespace {

/// The value with all its tensors stamped as one global batch, so that losses and dropout in the replicas use the
/// rows' numbers in it.
nn::Value stamped(const nn::Value& value, const Rows& stamp) {
  return nn::map_tensors(value, [&](const Variable& x) {
    Tensor same = x.value();
    same.set_stamp(stamp);
    return x.requires_grad() ? Variable(same, x.edge().node, x.edge().output)
                             : Variable::constant(same, x.of_batch_mean());
  });
}

Replicas::Forward make_forward(const nn::Module& module, const DataParallelOptions& options) {
  if (!options.loss)
    return [&module](nn::Context& context, const nn::Value& input) { return module.forward(context, input); };
  return [&module, loss = options.loss](nn::Context& context, const nn::Value& input) -> nn::Value {
    require<ShapeError>(input.is_list() && input.list().size() == 2,
                        "DataParallel with a loss takes a list {input, target}, got a ", input.kind());
    return loss(module.forward(context, input.list()[0]).variable(), input.list()[1].variable().value());
  };
}

}  // namespace

DataParallel::DataParallel(nn::Module& module, const DataParallelOptions& options)
    : module_(module), options_(options) {
  if (options_.devices.empty()) options_.devices = {Device{}};
  for (const Device device : options_.devices)
    require<DeviceError>(device.index < backend(device.kind).device_count(), "there is no device ", device, ", only ",
                         backend(device.kind).device_count());
  if (!options_.output_device) options_.output_device = options_.devices[0];
  wrap_module("module", module);
  forward_ = make_forward(module_, options_);
  owns_blocks_ = module_.sums_by_blocks() &&
                 std::ranges::all_of(options_.devices, [](Device d) { return d.kind == DeviceKind::cpu; });
  ReplicaPlaces places{.devices = options_.devices};
  for (int i = 0; i < static_cast<int>(options_.devices.size()); ++i) places.device_of.push_back(i);
  replicas_ = std::make_shared<Replicas>(module_, places, options_.replicas, forward_);
}

Variable DataParallel::forward(nn::Context& context, const Variable& x) const {
  return forward(context, nn::Value(x)).variable();
}

nn::Value DataParallel::forward(nn::Context& context, const nn::Value& input) const {
  const Variable* const x = nn::first_tensor(input);
  // The loader's stamp says that the batch is (part of) a global batch of blocks; others are cut as PyTorch would.
  const bool blocked = x != nullptr && options_.dim == 0 && x->value().stamp().stamped();
  const bool stampable = x != nullptr && options_.dim == 0 && !blocked && x->shape().rank() > 0;
  // Cut along another dimension, every piece has all rows, and a part of what its stamp says.
  const bool cut_across = x != nullptr && options_.dim != 0 && options_.devices.size() > 1;
  if (blocked && options_.devices.size() > 1 && !options_.loss) fits_batch(input, "DataParallel cuts it", said_);
  const nn::Value whole = stampable    ? stamped(input, {.step = context.step, .first = 0, .global = x->shape()[0]})
                          : cut_across ? stamped(input, {})
                                       : input;
  Cut cut;
  PooledVector<nn::Value> pieces;
  {
    const TraceSpan span(traced("scatter"), options_.devices[0]);
    const int devices = static_cast<int>(options_.devices.size());
    const bool even = blocked && !(owns_blocks_ && grad_enabled());  // no sums that have an order
    cut = even ? even_cut(x->shape()[0], devices)
               : cut_of(whole, devices, options_.dim, blocked ? Split::blocked : Split::chunk);
    pieces = scatter(whole, options_.devices, cut, options_.dim);
    TimedParts::end_part(options_.devices);
  }
  const Variable* const batch = nn::first_tensor(whole);
  const Rows stamp = batch != nullptr ? batch->value().stamp() : Rows{};
  const std::shared_ptr<Replicas> replicas = replicas_for(cut, stamp);
  if (replicas->size() == 1 && cut.subtrees.empty()) return forward_(context, pieces[0]);
  return run_replicas(replicas, context, pieces, {cut, stamp, &said_rows_},
                      batch != nullptr && batch->shape().rank() > 0 ? batch->shape()[0] : 1);
}

std::shared_ptr<Replicas> DataParallel::replicas_for(const Cut& cut, const Rows& batch) const {
  if (cut.subtrees.empty()) return replicas_;
  ReplicaPlaces places{.devices = options_.devices, .blocks = batch.blocks, .traced = options_.traced};
  places.device_of.assign(cut.devices.begin(), cut.devices.end());
  places.subtrees.assign(cut.subtrees.begin(), cut.subtrees.end());
  const auto known = std::ranges::find_if(pieces_, [&](const auto& one) { return one->places() == places; });
  if (known != pieces_.end()) return *known;
  constexpr std::size_t kMost = 8;  // cuts of the parts of a batch and of a last one
  if (pieces_.size() == kMost) pieces_.clear();
  return pieces_.emplace_back(
      std::make_shared<Replicas>(module_, places, options_.replicas, forward_, replicas_->threads()));
}

nn::Value DataParallel::run_replicas(const std::shared_ptr<Replicas>& replicas, nn::Context& context,
                                     const PooledVector<nn::Value>& pieces, const CutBatch& from,
                                     std::int64_t count) const {
  const Rows& batch = from.stamp;
  require<UsageError>(context.stream == nullptr,
                      "PyTorch's stream of random numbers has one order, so it needs one replica, got ",
                      replicas->size());
  {
    const TraceSpan span(traced("replicate"), options_.devices[0]);
    replicas->replicate(context, static_cast<int>(pieces.size()), {batch.first, batch.first + count});
    TimedParts::end_part(options_.devices);
  }
  const PooledVector<nn::Value> outputs = parallel_apply(replicas, context, pieces, normaliser_of(batch, count));
  context.draws.take(replicas->context(0).draws);  // all replicas count alike
  TimedParts::end_part(options_.devices);
  const TraceSpan span(traced("gather"), options_.devices[0]);
  fault_point("gather");
  nn::Value joined = join(outputs, from);
  TimedParts::end_part(options_.devices);
  return joined;
}

nn::Value DataParallel::join(const PooledVector<nn::Value>& outputs, const CutBatch& from) const {
  if (options_.loss == nullptr) return gather(outputs, *options_.output_device, options_.dim, from);
  PooledVector<Variable> losses;
  for (const nn::Value& output : outputs) losses.push_back(output.variable());
  return ops::mean_of_shards(losses, from.cut.sizes, from.stamp, *options_.output_device);
}

}  // namespace duet::dp
