#include "ddp/gradient_synchroniser.h"

#include <utility>

#include "lib/base/recovery.h"
#include "lib/error.h"

namespace duet::ddp {

void GradientSynchroniser::enter(Phase phase) const {
  const Recovery& recovery = Recovery::instance();  // void steps, and those before a rank has joined, count for nothing
  const std::int64_t own = reducer_.steps() + (phase == Phase::after ? 0 : 1);
  const std::int64_t step = recovery.on() ? recovery.steps() + 1 : own;
  if (group_.flight_recorder()) group_.flight_recorder()->enter(phase, step);
}

int GradientSynchroniser::forward_begins() {
  if (recorded_) {  // the recording was given up within backward
    in_backward_ = false;
    reducer_.end_step();
  }
  recorded_ = reducer_.recorded();
  enter(Phase::forward);
  return joins_.lasts() ? highest_active_rank(true) : 0;
}

void GradientSynchroniser::backward_begins() {
  if (std::exchange(in_backward_, true)) reducer_.end_step();
}

void GradientSynchroniser::backward_ended(FunctionRef<bool(int slot)> has_gradient) {
  for (int slot = 0; slot < reducer_.slot_count(); ++slot)
    if (!reducer_.ready(slot) && has_gradient(slot)) reducer_.mark_ready(slot);
  reducer_.finish();
  reduced();
}

void GradientSynchroniser::abandon_backward() {
  reducer_.end_step();
  reduced();
}

void GradientSynchroniser::reduced() {
  in_backward_ = recorded_ = false;
  enter(Phase::after);
  weights_->reduced();
}

int GradientSynchroniser::highest_active_rank(bool trains) {
  int rank = trains ? group_.rank() : -1;
  group_.all_reduce({&rank, 1, DType::i32}, ReduceOp::max).wait();
  return rank;
}

void GradientSynchroniser::join(const std::function<void()>& body, const Join& calls) {
  require<UsageError>(!joins_.lasts(), "join() is called within join()");
  const Lasting::Hold joins = joins_.hold();
  const std::int64_t before = reducer_.steps();
  body();
  const std::int64_t trained = reducer_.steps() - before;
  for (int root = 0; (root = highest_active_rank(false)) >= 0;) {
    calls.step_begins(root);
    const int blocks = calls.by_rows ? weights_->exchange(group_, {.trains = false}).blocks : 0;
    if (blocks > 0) calls.owns(blocks);
    reducer_.contribute_zeros();
  }
  std::int64_t longest = trained * group_.size() + group_.rank();
  group_.all_reduce({&longest, 1, DType::i64}, ReduceOp::max).wait();
  calls.parameters_and_buffers(static_cast<int>(longest % group_.size()));
  weights_->restart();
}

}  // namespace duet::ddp
