#include "ddp/group/shared_memory_group.h"

#include "lib/error.h"

namespace duet::ddp {

void SharedMemoryGroup::reduce_update(const Buffer& gradients, const Buffer& values, std::uint32_t rule,
                                      ShardUpdate update) {
  require<UsageError>(gradients.dtype == DType::f32 && values.dtype == DType::f32 && gradients.count == values.count,
                      "reduce_update: ", gradients.count, " gradients of ", gradients.dtype, " for ", values.count,
                      " values of ", values.dtype, ", expected as many f32");
  checked({.op = Collective::reduce_update,
           .in = gradients,
           .out = values,
           .tag = static_cast<std::int32_t>(rule),
           .update = &update})
      .wait();
}

}  // namespace duet::ddp
