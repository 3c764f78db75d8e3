#include "ddp/tutorial/average_gradients.h"

#include "lib/error.h"

namespace duet::ddp {

void average_gradients(nn::Module& model, ProcessGroup& group) {
  nn::ParameterStore& store = model.parameters();
  require<UsageError>((store.normalisers() & (kGlobalRows | kPartOfBatch)) == 0,
                      "average_gradients divides by the number of ranks, but the loss was divided by the rows of the "
                      "global batch already: use batches without the loader's stamp, or DistributedDataParallel");
  const auto size = static_cast<float>(group.size());
  const int first = model.range().first_slot, end = first + model.range().slots;
  for (int slot = first; slot < end; ++slot) {
    if (!store.has_gradient(slot)) continue;
    const Tensor gradient = store.gradient(slot);
    group.all_reduce(gradient).wait();
    const Tensor host = gradient.to(Device{});
    for (float& value : host.span<float>()) value /= size;
    if (!host.same_memory(gradient)) copy(host, gradient);
  }
}

}  // namespace duet::ddp
