#include "ddp/sharded_update.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/group/gather_text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

SharedMemoryGroup& shared_memory(const nn::ParameterStore& store, ProcessGroup& group) {
  const bool on_cpu = store.device().kind == DeviceKind::cpu;
  auto* const shared = dynamic_cast<SharedMemoryGroup*>(&group);
  require<UsageError>(on_cpu && shared != nullptr,
                      "a sharded update needs ranks on CPU devices that share memory (backend shm), got ranks on ",
                      on_cpu ? "CPU devices" : "GPUs", " over ", group.backend());
  return *shared;
}

/// Before ranks ask for shared buffers, of which other optimizers would ask for other numbers.
void require_same_optimizer(ProcessGroup& group, std::uint32_t settings) {
  const std::vector<std::string> all = all_gather_texts(group, std::to_string(settings));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    require<UsageError>(all[rank] == all[0], "the optimizers of rank 0 and rank ", rank,
                        " differ in kind, settings or steps done, but share one update");
}

}  // namespace

ShardedUpdate::ShardedUpdate(nn::ParameterStore& store, ProcessGroup& group)
    : store_(store), group_(shared_memory(store, group)) {
  gradients_ = store.flat_in(group_.shared_storage(store.flat_bytes()));
  store.move_gradients(gradients_);
  values_ = store.move_values(group_.shared_storage(store.flat_bytes()));
}

ShardedUpdate::~ShardedUpdate() {
  if (summed_at_ == store_.zero_grad_count()) store_.zero_grad();
}

void ShardedUpdate::gradients_ready() {
  ready_at_ = store_.zero_grad_count();
  store_.withhold_gradients();
}

void ShardedUpdate::update(nn::OptimizerState& state, Settings settings, Rule rule) {
  require<UsageError>(has_gradients(),
                      "step() with a sharded update sums the ranks' gradients, so before each there is a backward() "
                      "that synchronises them: not one under no_sync() alone, and not the one of an earlier step()");
  // At first the ranks share no buffers: each brings its shard of its own.
  const bool moves = state.at_site == nullptr;
  const std::uint32_t hash = settings();
  if (moves) require_same_optimizer(group_, hash);
  std::vector<Tensor> shared = state.buffers;
  if (moves)
    for (Tensor& buffer : shared) buffer = store_.flat_in(group_.common_storage(store_.flat_bytes()));
  reduce_update(hash, [&](std::int64_t begin, const Tensor& sums) {
    const auto part = [&](const Tensor& flat) { return flat.slice(begin, sums.shape()); };
    nn::UpdateRun run{.begin = begin, .values = part(values_), .gradients = sums};
    for (std::size_t i = 0; i < shared.size(); ++i) {
      run.state.push_back(part(shared[i]));
      if (moves) copy(part(state.buffers[i]), run.state.back());
    }
    rule(run);
  });
  if (!moves) return;
  state.buffers = shared;
  state.at_site = std::make_shared<bool>(true);
}

void ShardedUpdate::reduce_update(std::uint32_t settings, ShardUpdate update) {
  summed_at_ = std::exchange(ready_at_, ~std::uint64_t{0});
  const Clock::time_point begin = Clock::now();
  double update_us = 0;
  try {
    group_.reduce_update(gradients_, values_, settings, [&](std::int64_t first, const Tensor& sums) {
      const Clock::time_point updating = Clock::now();
      update(first, sums);
      update_us += microseconds_since(updating);
    });
  } catch (...) {
    store_.mark_torn();
    throw;
  }
  times_.update_us += update_us;
  times_.update_communication_us += microseconds_since(begin) - update_us;
}

Work NoCommunication::start(ProcessGroup& group, const GradBucket&) {
  if (group.flight_recorder()) group.flight_recorder()->next_bucket(-1);  // the next call is not this bucket's
  return {};
}

}  // namespace duet::ddp
