#include "ddp/sharded_update.h"

#include <utility>

#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

ShardedUpdate::ShardedUpdate(nn::ParameterStore& store, ProcessGroup& group) : store_(store), group_(group) {
  require<UsageError>(store.device().kind == DeviceKind::cpu && group.shares_memory(),
                      "a sharded update needs ranks on CPU devices that share memory (backend shm), got ranks on ",
                      store.device().kind == DeviceKind::cpu ? "CPU devices" : "GPUs", " over ", group.backend());
  gradients_ = store.flat_in(group.shared_storage(store.flat_bytes()));
  store.move_gradients(gradients_);
  values_ = store.move_values(group.shared_storage(store.flat_bytes()));
}

ShardedUpdate::~ShardedUpdate() {
  if (summed_at_ == store_.zero_grad_count()) store_.zero_grad();
}

Tensor ShardedUpdate::common_zeros() { return store_.flat_in(group_.common_storage(store_.flat_bytes())); }

void ShardedUpdate::gradients_ready() {
  ready_at_ = store_.zero_grad_count();
  store_.withhold_gradients();
}

void ShardedUpdate::run(std::uint32_t rule, Update update) {
  require<UsageError>(has_gradients(),
                      "step() with a sharded update sums the ranks' gradients, so before each there is a backward() "
                      "that synchronises them: not one under no_sync() alone, and not the one of an earlier step()");
  summed_at_ = std::exchange(ready_at_, ~std::uint64_t{0});
  const Clock::time_point begin = Clock::now();
  double update_us = 0;
  try {
    group_.reduce_update(gradients_, values_, rule, [&](std::int64_t first, const Tensor& sums) {
      const Clock::time_point updating = Clock::now();
      update(first, sums);
      update_us += microseconds_since(updating);
    });
  } catch (...) {
    store_.mark_torn();
    throw;
  }
  times_.update_us += update_us;
  times_.communication_us += microseconds_since(begin) - update_us;
}

Work NoCommunication::start(ProcessGroup& group, const GradBucket&) {
  if (group.flight_recorder()) group.flight_recorder()->next_bucket(-1);  // the next call is not this bucket's
  return {};
}

}  // namespace duet::ddp
