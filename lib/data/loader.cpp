#include "lib/data/loader.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/environment.h"
#include "lib/base/sha256.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/pool.h"
#include "lib/position.h"

namespace duet::data {
namespace {

constexpr int kMaxWorkers = 256, kMaxPrefetch = 1024;
constexpr std::int64_t kUnwritten = INT64_MIN;  // no label

Shape with_rows(const Shape& sample) {
  Shape shape{0};
  for (const std::int64_t size : sample) shape.append(size);
  return shape;
}

}  // namespace

/// Calls make(step) for every step in [first, end), each in one of the workers, at most `depth` steps ahead of take().
class Prefetcher {
 public:
  Prefetcher(int workers, int depth, std::int64_t first, std::int64_t end, std::function<Batch(std::int64_t)> make)
      : make_(std::move(make)), slots_(static_cast<std::size_t>(depth)), claimed_(first), taken_(first), end_(end) {
    try {
      for (int i = 0; i < workers; ++i)
        threads_.push_back(start_thread("a worker thread of a data loader", [this] { work(); }));
    } catch (...) {
      stop();
      throw;
    }
  }
  /// Waits for the batches in work and drops them.
  ~Prefetcher() { stop(); }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The batch of the next step; rethrows what make threw for it. At most end - first times.
  Batch take() {
    std::unique_lock lock(mutex_);
    Slot& next = slot(taken_);
    filled_.wait(lock, [&] { return next.ready; });
    Slot result = std::exchange(next, {});
    ++taken_;
    lock.unlock();
    room_.notify_one();
    if (result.failure) std::rethrow_exception(result.failure);
    return std::move(result.batch);
  }

 private:
  struct Slot {
    bool ready = false;
    Batch batch;
    std::exception_ptr failure;
  };
  Slot& slot(std::int64_t step) { return slots_[static_cast<std::size_t>(step) % slots_.size()]; }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [&] { return stopping_ || claimed_ == end_ || claimed_ < taken_ + std::ssize(slots_); });
      if (stopping_ || claimed_ == end_) return;
      const std::int64_t step = claimed_++;
      lock.unlock();
      Slot result;
      try {
        result.batch = make_(step);
      } catch (...) {
        result.failure = std::current_exception();
      }
      result.ready = true;
      lock.lock();
      slot(step) = std::move(result);
      filled_.notify_one();
      if (claimed_ == end_) room_.notify_all();
    }
  }

  std::function<Batch(std::int64_t)> make_;
  std::mutex mutex_;
  std::condition_variable room_, filled_;
  std::vector<Slot> slots_;  // step s in slot s % depth
  std::int64_t claimed_, taken_, end_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

Loader::Loader(const Dataset& dataset, std::unique_ptr<BatchSampler> sampler, const LoaderOptions& options)
    : dataset_(dataset),
      sampler_(std::move(sampler)),
      options_(options),
      batch_shape_(with_rows(dataset.sample_shape())),
      steps_(sampler_->steps()),
      data_hash_(dataset.data_hash()),
      shared_(Recovery::instance().expected() && !Recovery::instance().in_unit() && steps_ > 0 &&
              sampler_->step(0).shards > 1) {
  require<UsageError>(0 <= options.workers && options.workers <= kMaxWorkers, "the loader takes 0 to ", kMaxWorkers,
                      " workers, got ", options.workers);
  require<UsageError>(1 <= options.prefetch && options.prefetch <= kMaxPrefetch, "the loader prefetches 1 to ",
                      kMaxPrefetch, " batches a worker, got ", options.prefetch);
  require<UsageError>(options.workers == 0 || dataset.device().kind == DeviceKind::cpu, "the data set lies on ",
                      dataset.device(), ", so the loader takes no workers, got ", options.workers);
  if (options.deferred) {
    resident_ = dynamic_cast<const ResidentImages*>(&dataset);
    require<UsageError>(resident_ != nullptr, "a deferred loader reads a data set that lies on a device, as a whole");
  }
  if (!shared_) return;
  Recovery::instance().take_loader();
  regroup();
  join("the loader");
}

Loader::~Loader() {
  if (shared_) leave();
}

Position Loader::position() const {
  if (shared_ && Recovery::instance().is_void()) return mark_;
  if (next_.has_value()) return *next_;
  if (step_ >= steps_) return {epoch_ + 1, 0};
  return {epoch_, step_ + staged_, sampler_->step(0).global};
}

void Loader::set_position(const Position& position) {
  require<UsageError>(position.epoch >= 0 && 0 <= position.step && position.step <= steps_, "cannot resume in epoch ",
                      position.epoch, " after ", position.step, " steps: an epoch has ", steps_, " steps");
  next_ = mark_ = position;
  pass_.reset();
}

Loader::Iterator Loader::begin() {
  require<UsageError>(pass_.expired() || step_ >= steps_, "a pass over the loader begins within another one, at step ",
                      step_, " of ", steps_, ", whose batches it would take: use a loader for each, or set_position()");
  prefetcher_.reset();  // its threads read the sampler
  if (shared_ && Recovery::instance().on()) {
    has_recovered(true);
    Recovery::instance().require_no_redo();
    Recovery::instance().end_pass();  // one that was left
    mark_ = mark();
  }
  const Position begin = std::exchange(next_, {}).value_or(Position{epoch_ + 1, 0});
  epoch_ = begin.epoch;
  step_ = begin_ = begin.step;
  if (shared_ && Recovery::instance().on() && epoch_ <= mark_.epoch) go_to_mark();
  if (options_.generator) options_.generator->random_int64();
  sampler_->set_epoch(epoch_);
  require<UsageError>(sampler_->steps() == steps_, "the batch sampler has ", sampler_->steps(), " steps in epoch ",
                      epoch_, ", expected ", steps_, " as at first");
  const std::int64_t batch = begin.step == 0 || begin.batch == 0 ? begin.batch : sampler_->step(0).global;
  require<UsageError>(batch == begin.batch, "the loader's global batch has ", batch, " rows, but the position after ",
                      begin.step, " steps of epoch ", begin.epoch, " counts batches of ", begin.batch,
                      ": use the same batch size until the epoch ends");
  std::shared_ptr<const void> pass = make_pooled<char>();
  pass_ = pass;
  start_workers();
  produce();
  return Iterator(*this, std::move(pass));
}

void Loader::start_workers() {
  if (options_.workers == 0 || step_ >= steps_) return;
  prefetcher_ = std::make_unique<Prefetcher>(options_.workers, options_.workers * options_.prefetch, step_, steps_,
                                             [this](std::int64_t step) { return make(step); });
}

/// Whether the rank has recovered since this loader last asked: each loader of a step goes back then. `is_followed`: by
/// another batch of the pass.
bool Loader::has_recovered(bool is_followed) {
  Recovery& recovery = Recovery::instance();
  is_followed ? recovery.recover_if_left() : recovery.recover_if_void();
  const std::int64_t before = std::exchange(recoveries_, recovery.recoveries());
  return before != recoveries_;
}

/// To the first step of this pass that is not complete; to its end where all are.
void Loader::go_to_mark() {
  prefetcher_.reset();
  step_ = epoch_ < mark_.epoch ? steps_ : epoch_ == mark_.epoch ? mark_.step : begin_;
}

/// Behind a pass that the program has left, or the last complete step.
Position Loader::mark() const {
  const bool is_left = pass_.expired() && !next_.has_value() && step_ < steps_ && mark_.epoch <= epoch_;
  return is_left ? Position{epoch_ + 1, 0} : mark_;
}

void Loader::complete_step() {
  if (std::exchange(delivered_, false)) mark_ = {epoch_, step_ + staged_};
}

void Loader::stream(StateStream& state) {
  mark_ = mark();
  state.value(mark_);
}

void Loader::regroup() {
  const Recovery& recovery = Recovery::instance();
  if (!recovery.places_change()) return;
  prefetcher_.reset();
  require<UsageError>(
      sampler_->set_part(recovery.place().rank, recovery.place().ranks),
      "the ranks of an elastic job with spare processes, or with fewer ranks after a failure, change their "
      "numbers, but the loader's sampler cannot change its part: use BlockedBatches with whole blocks");
}

void Loader::advance(std::int64_t steps) {
  if (shared_ && has_recovered(step_ + steps < steps_)) {
    go_to_mark();
    start_workers();
    return produce();
  }
  for (std::int64_t skipped = 1; prefetcher_ && skipped < steps && step_ + skipped < steps_; ++skipped)
    prefetcher_->take();
  step_ += steps;
  produce();
}

void Loader::produce() {
  batch_ = {};  // first, so that its memory can serve the next batch
  staged_ = 0;
  if (step_ >= steps_) {
    prefetcher_.reset();
    if (shared_) Recovery::instance().end_pass();
    return;
  }
  if (shared_) {
    Recovery::instance().begin_batch(pass_);
    delivered_ = true;
  }
  if (resident_ != nullptr) {
    const StepIndices part = sampler_->step(step_);
    rows_ = static_cast<std::int64_t>(part.indices.size());
    stamp_ = stamp_of(part, step_);
    return;
  }
  batch_ = prefetcher_ ? prefetcher_->take() : make(step_);
  rows_ = batch_.images.size(0);
  stamp_ = batch_.images.stamp();
  staged_ = 1;
}

std::int64_t Loader::alike(std::int64_t most) const {
  std::int64_t steps = 1;
  for (; steps < most && step_ + steps < steps_; ++steps) {
    const StepIndices part = sampler_->step(step_ + steps);
    const bool same = static_cast<std::int64_t>(part.indices.size()) == rows_ && part.first == stamp_.first &&
                      part.global == stamp_.global;
    if (!same) break;
  }
  return steps;
}

void Loader::stage(std::int64_t steps) {
  require<UsageError>(resident_ != nullptr, "only a deferred loader stages steps");
  require<UsageError>(steps >= 1 && alike(steps) == steps, "cannot stage ", steps, " steps: ", alike(steps),
                      " are alike");
  indices_.clear();
  for (std::int64_t i = 0; i < steps; ++i) {
    const StepIndices part = sampler_->step(step_ + i);
    indices_.insert(indices_.end(), part.indices.begin(), part.indices.end());
  }
  Tensor& numbers = numbers_[{rows_, steps}];
  if (!numbers.defined()) numbers = empty({steps * rows_}, DType::i64, resident_->device());
  resident_->bring(indices_, numbers);
  staged_ = steps;
}

Batch Loader::batch(std::int64_t ahead) const {
  require<UsageError>(0 <= ahead && ahead < staged_, "batch ", ahead, " ahead, but ", staged_, " steps are staged");
  if (resident_ == nullptr) return batch_;
  Rows stamp = stamp_;
  stamp.step += ahead;
  const Batch batch = blank(rows_, stamp);
  resident_->gather(numbers_.at({rows_, staged_}).slice(ahead * rows_, {rows_}), batch.images, batch.labels);
  return batch;
}

Batch Loader::blank(std::int64_t rows, Rows stamp) const {
  static std::atomic<std::uint64_t> last_delivery{0};
  stamp.delivery = ++last_delivery;
  Batch batch;
  batch.images = empty(batch_shape_.with(0, rows), DType::f32, dataset_.device());
  if (dataset_.has_labels()) batch.labels = empty({rows}, DType::i64, dataset_.device());
  batch.images.set_stamp(stamp);
  batch.labels.set_stamp(stamp);
  return batch;
}

Rows Loader::stamp_of(const StepIndices& part, std::int64_t step) const {
  return {.step = epoch_ * steps_ + step,
          .first = part.first,
          .global = part.global,
          .shards = part.shards,
          .order = part.order == 0 ? 0 : mixed(part.order, data_hash_),
          .blocks = part.blocks,
          .owned = part.owned};
}

Batch Loader::make(std::int64_t step) const {
  const StepIndices part = sampler_->step(step);
  const Batch batch = blank(static_cast<std::int64_t>(part.indices.size()), stamp_of(part, step));
  const EpochScope scope(epoch_);  // also for a set whose fetch_in_epoch calls fetch() of another one
  // A set around one without labels may have forgotten to say so. The first batch tells, if anything is written to it.
  const bool probes = epoch_ == 0 && step == 0 && batch.labels.defined() && !part.indices.empty() &&
                      batch.labels.device().kind == DeviceKind::cpu && is_first_rank();
  if (probes) batch.labels.data<std::int64_t>()[0] = kUnwritten;
  dataset_.fetch_in_epoch(epoch_, part.indices, batch.images, batch.labels);
  if (probes && batch.labels.data<std::int64_t>()[0] == kUnwritten)
    std::cerr << "warning: the data set writes no labels, which then mean nothing: override has_labels() to return "
                 "false, or derive a wrapper from data::DatasetWrapper\n";
  return batch;
}

}  // namespace duet::data
