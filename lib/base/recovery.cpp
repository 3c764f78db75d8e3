#include "lib/base/recovery.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <utility>

#include "lib/base/environment.h"
#include "lib/base/fault_point.h"
#include "lib/base/lasting.h"
#include "lib/device.h"
#include "lib/error.h"
#include "lib/tensor.h"

namespace duet {
namespace {

constexpr const char* kOtherObjects = ": its training has other objects, or made them in another order";

/// Has the place of an object that has left, and its state.
struct LeftObject final : Recoverable {
  explicit LeftObject(std::vector<std::byte> state) : bytes(std::move(state)) {}
  void stream(StateStream& state) override { state.bytes(bytes); }
  std::vector<std::byte> bytes;
};

}  // namespace

void StateStream::bytes(std::span<std::byte> own) {
  if (!reads_) {
    written_.insert(written_.end(), own.begin(), own.end());
    return;
  }
  require<CommError>(own.size() <= rest_.size(), "the state of another rank ends ", own.size() - rest_.size(),
                     " bytes too early", kOtherObjects);
  if (!own.empty()) std::memcpy(own.data(), rest_.data(), own.size());
  rest_ = rest_.subspan(own.size());
}

void StateStream::tensor(const Tensor& own) {
  const bool is_on_host = own.device().kind == DeviceKind::cpu;
  const Tensor values = is_on_host ? own : reads_ ? empty(own.shape(), own.dtype()) : own.to(Device{});
  bytes({static_cast<std::byte*>(values.raw()), values.bytes()});
  if (reads_ && !is_on_host) copy(values, own);
}

void StateStream::require_left(std::uint64_t count, std::size_t size) const {
  require<CommError>(count <= rest_.size() / size, "the state of another rank has ", count, " values of ", size,
                     " bytes, but ", rest_.size(), " bytes are left of it");
}

void Recoverable::join(const std::string& what) {
  Recovery& recovery = Recovery::instance();
  if (!recovery.expected_) return;
  require<UsageError>(!recovery.has_begun(), what,
                      " is made in or after a step or unit of an elastic job, expected before the first one, where a "
                      "process that replaces a lost rank takes the state");
  what_ = what;
  recovery.objects_.push_back(this);
}

std::vector<std::byte> written_state(Recoverable& object, std::vector<std::byte> memory) {
  StateStream state(std::move(memory));
  object.stream(state);
  return state.written();
}

void Recoverable::leave() {
  Recovery& recovery = Recovery::instance();
  if (!recovery.expected_) return;
  recovery.finish_step();
  recovery.leave_pass();
  if (!recovery.has_begun() || std::uncaught_exceptions() > 0) {  // an error ends this rank
    std::erase(recovery.objects_, this);
    return;
  }
  if (recovery.in_step()) recovery.ended_within_ = what_;
  StateStream state(std::vector<std::byte>{});
  recovery.write(*this, state);
  const auto& left = recovery.left_.emplace_back(std::make_unique<LeftObject>(state.written()));
  left->what_ = what_;
  std::replace(recovery.objects_.begin(), recovery.objects_.end(), this, left.get());
}

Recovery::Recovery()
    : expected_(environment_variable(kElasticVariable).has_value()),
      replaces_(environment_variable(kJoinsVariable).has_value()) {}

Recovery& Recovery::instance() {
  static Recovery recovery;
  return recovery;
}

void Recovery::set_group(Group group) {
  require<UsageError>(!std::exchange(had_group_, true),
                      "an elastic job has one process group of all ranks, but a second one is made");
  group_ = std::move(group);
  on_ = true;
}

void Recovery::reset_group() {
  on_ = void_ = recovered_ = is_updated_ = false;
  completed_ = true;
  group_ = {};
  for (const auto& object : left_) std::erase(objects_, object.get());
  left_.clear();
}

void Recovery::take_loader() {
  require<UsageError>(!std::exchange(has_loader_, true),
                      "an elastic job has one loader whose batches the ranks share, but a second one is made");
}

void Recovery::require_no_redo() const {
  require<UsageError>(
      !redo_due_,
      "a pass over the loader has ended within a step that an elastic job is to do again: leave it when "
      "a batch comes, not after its step");
}

void Recovery::recover_if_void() {
  if (!void_ || std::exchange(recovered_, true)) return;
  ++recoveries_;
  group_.recover();
  forward_ = false;
}

bool Recovery::is_adopted() {
  recover_if_void();
  return void_ && !redo_due_;
}

void Recovery::recover_if_left() {
  finish_step();
  if (!on_ || void_ || !completed_ || !group_.is_left()) return recover_if_void();
  ++recoveries_;
  group_.recover();
}

void Recovery::begin_forward() {
  if (!has_loader_) begin_own_batch();
  if (void_) return;
  require<UsageError>(
      !forward_ || forward_pass_ == passes_,
      "gradients of a pass over the loader are accumulated in the next one, but an elastic job does not "
      "go back to the pass before: take a step with the last batch");
  forward_ = true;
  forward_pass_ = passes_;
}

void Recovery::begin_batch(const std::weak_ptr<const void>& pass) {
  if (!on_) return;
  pass_ = pass;
  recover_if_void();
  finish_step();
  ++batches_;
  if (completed_ || void_) begin_attempt();
}

void Recovery::end_pass() {
  finish_step();
  completed_ = true;
  ++passes_;
  pass_.reset();
  leave_steps();
}

/// Several forwards before redo() are of one step.
void Recovery::begin_own_batch() {
  require<UsageError>(
      !in_own_batch_ || !completed_,
      "the step of a batch is complete, and another batch goes forward without a loader that ranks share: an elastic "
      "job redoes steps of such a loop where it is 'do { ... } while (net.redo());'");
  require<UsageError>(!group_.places_change,
                      "a batch goes forward without a loader that ranks share: an elastic job with spare processes, or "
                      "that continues with fewer ranks, cuts the batches of a loader");
  ++batches_;
  if (std::exchange(in_own_batch_, true)) return;
  recover_if_void();
  if (own_steps_ < steps())
    completed_ = false;  // another rank's state is behind this batch, whose step stays void
  else
    begin_attempt();
}

void Recovery::require_own_batches(const char* what) const {
  require<UsageError>(!has_loader_, what,
                      " of an elastic job is for loops without a loader that ranks share, which gives a batch again by "
                      "itself");
}

bool Recovery::is_done() {
  if (!on_) return false;
  require_own_batches("is_done()");
  if (!in_own_batch_) begin_own_batch();
  return own_steps_ < steps();
}

bool Recovery::redo() {
  if (!on_) return false;
  require_own_batches("redo()");
  if (!std::exchange(in_own_batch_, false)) return false;  // the batch was left out
  recover_if_void();
  finish_step();
  if (own_steps_ >= steps()) {
    require<UsageError>(void_,
                        "redo() before the step of an optimizer: an elastic job redoes batches that go forward for a "
                        "step, of several where they are within one 'do { ... } while (net.redo());'");
    return true;
  }
  ++own_steps_;
  completed_ = true;
  redo_due_ = false;
  leave_steps();
  return false;
}

void Recovery::leave_pass() {
  if (has_loader_ && pass_.expired() && in_step() && !in_unit_ && !void_ && !forward_) end_pass();
}

void Recovery::require_none_ended() const {
  require<UsageError>(ended_within_.empty(), ended_within_,
                      " has ended within a step or unit of an elastic job, expected behind one");
}

void Recovery::begin_attempt() {
  require_none_ended();
  if (void_) restore();
  void_ = recovered_ = completed_ = redo_due_ = is_updated_ = false;
  for (Recoverable* const object : objects_) object->begin_step();
  is_outside_ = false;
  copy_states(Copies::of_step);
}

/// Copies what a step or unit that begins may change, or what programs may write until it begins, or what must stay as
/// it is outside of steps.
void Recovery::copy_states(Copies copies) {
  for (Recoverable* const object : objects_) {
    const bool is_written = object->is_written() && (copies == Copies::of_rank || (in_unit_ && !goes_on_itself_));
    const bool is_copied = undoes_ || object->is_copied() || is_written;
    if (copies == Copies::outside ? object->is_watched() : is_copied)
      object->copied_ = written_state(*object, std::move(object->copied_));
    else if (copies == Copies::of_step)
      object->copied_ = std::vector<std::byte>();  // whose memory may be as large as the model
  }
}

/// What has ended may be void here, where another rank has completed it.
void Recovery::leave_steps() {
  if (void_) restore();
  if (is_outside_ || commits_ == 0) return;
  is_outside_ = true;
  copy_states(Copies::outside);
}

void Recovery::complete_step() {
  require<UsageError>(
      !completed_,
      "a second step of an optimizer for one batch, or one without a batch: an elastic job redoes steps, which begin "
      "with a batch and have one step of one optimizer, or several with DistributedDataParallelOptions::undo");
  require<UsageError>(!in_unit_, "a step of an optimizer within a unit of an elastic job, which is between two steps");
  is_updated_ = true;
  if (!undoes_) finish_step();
}

/// Completes a step that has its updates.
void Recovery::finish_step() {
  if (is_updated_ && !void_) commit((steps() + 1) * kCommitsPerStep);
}

void Recovery::commit(std::int64_t commits) {
  require_none_ended();
  completed_ = true;
  forward_ = is_updated_ = false;
  commits_ = commits;
  for (Recoverable* const object : objects_) object->complete_step();
  fault_point("commit");
  group_.complete(commits_);
}

bool Recovery::join_training() {
  goes_on_itself_ = true;
  if (!void_) return false;
  recover_if_void();
  own_units_ = units_;
  return true;
}

void Recovery::run_unit(FunctionRef<void()> body) {
  if (!on_) return body();
  require<UsageError>(goes_on_itself_ || pass_.expired(),
                      "a unit of an elastic job within a pass over the loader: a process that replaces a lost rank has "
                      "only the rest of the pass, and would not come to it; put it between two passes");
  finish_step();
  leave_pass();
  if (redo_due_ && in_own_batch_) return;  // it comes again, behind the step
  require_no_redo();
  require<UsageError>(!in_unit_, "a unit of an elastic job within another one");
  require<UsageError>(!forward_,
                      "a unit of an elastic job before the step of a batch that has gone forward: take a step "
                      "with the last batch of a pass, and put the unit behind it");
  if (++own_units_ <= units_) return;  // done before this process had the rank's number
  do {
    recover_if_left();
    if (own_units_ <= units_) {  // another rank has completed it: its state is that behind the unit
      completed_ = true;
      redo_due_ = false;
      return;
    }
  } while (!attempt(body));
  ++units_;
  commit(commits_ + 1);
  if (pass_.expired()) leave_steps();
}

/// Runs the body of a unit once; false where a rank was lost in it.
bool Recovery::attempt(FunctionRef<void()> body) {
  const ScopedValue<bool> in_unit(in_unit_, true);
  begin_attempt();
  try {
    body();
  } catch (const std::exception&) {
    if (!void_) throw;
  }
  return !void_;
}

void Recovery::stream(StateStream& state) {
  state.value(commits_);
  state.value(units_);
  for (Recoverable* const object : objects_) {
    std::string given = object->what_;
    state.sequence(given);
    require<CommError>(given == object->what_, "another rank gives ", given, ", expected ", object->what_,
                       kOtherObjects);
    state.reads() ? object->stream(state) : write(*object, state);
  }
}

/// What the object was when the last step or unit was complete: its copy, where what has begun since may have changed
/// it, or writes that a void rank runs through.
void Recovery::write(Recoverable& object, StateStream& state) const {
  const bool is_changed = in_step() || void_ ? !object.copied_.empty() : is_outside_ && object.is_watched();
  is_changed ? state.bytes(object.copied_) : object.stream(state);
}

std::vector<std::byte> Recovery::state() {
  StateStream state(std::vector<std::byte>{});
  stream(state);
  return state.written();
}

void Recovery::take_state(std::span<const std::byte> bytes) {
  StateStream state(bytes);
  stream(state);
  require<CommError>(state.at_end(), "the state of another rank is longer than this one's", kOtherObjects);
  copy_states(Copies::of_rank);
}

void Recovery::restore() {
  for (Recoverable* const object : objects_) {
    object->restore();
    if (object->copied_.empty()) continue;
    StateStream copied{std::span<const std::byte>(object->copied_)};
    object->stream(copied);
  }
}

void Recovery::regroup(Place place) {
  group_.place = place;
  for (Recoverable* const object : objects_) object->regroup();
}

std::string Recovery::hashes() const {
  std::string lines;
  for (const Recoverable* const object : objects_) object->add_hashes(lines);
  return lines;
}

bool Recovery::may_cut_tree(int blocks) const {
  for (int ranks = group_.least_ranks; ranks_change() && ranks <= group_.most_ranks; ++ranks)
    if (blocks % ranks != 0) return true;
  return false;
}

void report_dependence(std::atomic<bool>& said, FunctionRef<std::string()> what) {
  const bool refuses = Recovery::instance().ranks_change();
  if (!refuses && said.exchange(true)) return;
  const std::string text = what();
  require<UsageError>(
      !refuses, text,
      ": the elastic job may continue with fewer ranks, but results would depend on their number; change "
      "that, or use no minimum of ranks");
  std::cerr << "warning: " + text + ": results depend on the number of devices (docs/explanation/reproducibility.md)\n";
}

}  // namespace duet
