#include "lib/base/recovery.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <typeinfo>
#include <utility>

#include "lib/base/environment.h"
#include "lib/base/fault_point.h"
#include "lib/base/lasting.h"
#include "lib/elastic.h"
#include "lib/error.h"

namespace duet {

void StateStream::bytes(std::span<std::byte> own) {
  if (!reads_) {
    written_.insert(written_.end(), own.begin(), own.end());
    return;
  }
  require<CommError>(own.size() <= rest_.size(), "the state of another rank ends ", own.size() - rest_.size(),
                     " bytes too early: its training has other objects, or made them in another order");
  if (!own.empty()) std::memcpy(own.data(), rest_.data(), own.size());
  rest_ = rest_.subspan(own.size());
}

void StateStream::require_left(std::uint64_t count, std::size_t size) const {
  require<CommError>(count <= rest_.size() / size, "the state of another rank has ", count, " values of ", size,
                     " bytes, but ", rest_.size(), " bytes are left of it");
}

void Recoverable::join() {
  if (Recovery::instance().expected_) Recovery::instance().objects_.push_back(this);
}

void Recoverable::leave() {
  Recovery& recovery = Recovery::instance();
  if (!recovery.expected_) return;
  if (recovery.on_ && recovery.commits_ > 0) {
    recovery.state();
    recovery.is_kept_ = true;
  }
  std::erase(recovery.objects_, this);
}

Recovery::Recovery()
    : expected_(environment_variable(kElasticVariable).has_value()),
      replaces_(environment_variable(kReplacementVariable).value_or("0") != "0") {}

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
  on_ = void_ = recovered_ = false;
  completed_ = true;
  group_ = {};
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
}

void Recovery::recover_if_left() {
  if (on_ && completed_ && group_.is_left()) void_ = true;
  recover_if_void();
}

void Recovery::begin_forward() {
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
  ++batches_;
  if (completed_ || void_) begin_attempt();
}

void Recovery::end_pass() {
  completed_ = true;
  ++passes_;
  pass_.reset();
}

void Recovery::begin_attempt() {
  if (void_) forward_ = false;
  void_ = recovered_ = completed_ = redo_due_ = false;
  for (Recoverable* const object : objects_) object->begin_step();
}

void Recovery::complete_step() {
  require<UsageError>(
      !completed_,
      "a second step of an optimizer for one batch, or one without a batch: an elastic job redoes "
      "steps, which begin with a batch of a loader that ranks share and have one step of one optimizer");
  require<UsageError>(!in_unit_, "a step of an optimizer within a unit of an elastic job, which is between two steps");
  commit((steps() + 1) * kCommitsPerStep);
}

void Recovery::commit(std::int64_t commits) {
  completed_ = true;
  is_kept_ = forward_ = false;
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
}

/// Runs the body of a unit once; false where a rank was lost in it.
bool Recovery::attempt(FunctionRef<void()> body) {
  begin_attempt();
  const ScopedValue<bool> in_unit(in_unit_, true);
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
    const std::uint64_t kind = typeid(*object).hash_code();
    std::uint64_t given = kind;
    state.value(given);
    require<CommError>(given == kind, "the training of another rank has other objects, or made them in another order");
    object->stream(state);
  }
}

const std::vector<std::byte>& Recovery::state() {
  if (is_kept_) return state_;
  StateStream state(std::exchange(state_, {}));
  stream(state);
  return state_ = state.written();
}

void Recovery::take_state(std::span<const std::byte> bytes) {
  StateStream state(bytes);
  stream(state);
  require<CommError>(state.at_end(),
                     "the state of another rank goes on behind this one's: its training has other "
                     "objects, or made them in another order");
}

void Recovery::restore() {
  for (Recoverable* const object : objects_) object->restore();
}

void Recovery::regroup(Place place) {
  group_.place = place;
  for (Recoverable* const object : objects_) object->regroup();
}

void elastic::unit(const std::function<void()>& body) { Recovery::instance().run_unit(body); }

}  // namespace duet
