#include "lib/data/loader.h"

#include <utility>

#include "lib/data/prefetcher.h"
#include "lib/data/resident_images.h"
#include "lib/error.h"

namespace duet::data {
namespace {

constexpr int kMaxWorkers = 256, kMaxPrefetch = 1024;

Shape with_rows(const Shape& sample) {
  Shape shape{0};
  for (const std::int64_t size : sample) shape.append(size);
  return shape;
}

}  // namespace

Loader::Loader(const Dataset& dataset, std::unique_ptr<BatchSampler> sampler, const LoaderOptions& options)
    : dataset_(dataset),
      sampler_(std::move(sampler)),
      options_(options),
      batch_shape_(with_rows(dataset.sample_shape())),
      steps_(sampler_->steps()) {
  require<UsageError>(0 <= options.workers && options.workers <= kMaxWorkers, "the loader takes 0 to ", kMaxWorkers,
                      " workers, got ", options.workers);
  require<UsageError>(1 <= options.prefetch && options.prefetch <= kMaxPrefetch, "the loader prefetches 1 to ",
                      kMaxPrefetch, " batches a worker, got ", options.prefetch);
  require<UsageError>(options.workers == 0 || dataset.device().kind == DeviceKind::cpu, "the data set lies on ",
                      dataset.device(), ", so the loader takes no workers, got ", options.workers);
  if (!options.deferred) return;
  resident_ = dynamic_cast<const ResidentImages*>(&dataset);
  require<UsageError>(resident_ != nullptr, "a deferred loader reads a data set that lies on a device, as a whole");
}

Loader::~Loader() = default;

void Loader::start_at(std::int64_t epoch, std::int64_t step) {
  require<UsageError>(epoch >= 0 && 0 <= step && step <= steps_, "cannot start at epoch ", epoch, ", step ", step,
                      ": an epoch has ", steps_, " steps");
  next_epoch_ = epoch;
  next_step_ = step;
}

Loader::Iterator Loader::begin() {
  prefetcher_.reset();  // its threads read the sampler
  epoch_ = next_epoch_++;
  step_ = std::exchange(next_step_, 0);
  if (options_.generator) options_.generator->random_int64();
  sampler_->set_epoch(epoch_);
  if (options_.workers > 0 && step_ < steps_) {
    prefetcher_ = std::make_unique<Prefetcher>(options_.workers, options_.workers * options_.prefetch, step_, steps_,
                                               [this](std::int64_t step) { return make(step); });
  }
  produce();
  return Iterator(*this);
}

void Loader::advance(std::int64_t steps) {
  step_ += steps;
  produce();
}

void Loader::produce() {
  batch_ = {};  // first, so that its memory can serve the next batch
  if (step_ >= steps_) {
    prefetcher_.reset();
    return;
  }
  if (resident_ != nullptr) {
    const StepIndices part = sampler_->step(step_);
    rows_ = static_cast<std::int64_t>(part.indices.size());
    stamp_ = stamp_of(part, step_);
    return stage(1);
  }
  batch_ = prefetcher_ ? prefetcher_->take() : make(step_);
  rows_ = batch_.images.size(0);
  stamp_ = batch_.images.stamp();
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

Batch Loader::blank(std::int64_t rows, const Rows& stamp) const {
  Batch batch;
  batch.images = empty(batch_shape_.with(0, rows), DType::f32, dataset_.device());
  if (dataset_.has_labels()) batch.labels = empty({rows}, DType::i64, dataset_.device());
  batch.images.set_stamp(stamp);
  batch.labels.set_stamp(stamp);
  return batch;
}

Rows Loader::stamp_of(const StepIndices& part, std::int64_t step) const {
  return {.step = epoch_ * steps_ + step, .first = part.first, .global = part.global, .shards = part.shards};
}

Batch Loader::make(std::int64_t step) const {
  const StepIndices part = sampler_->step(step);
  const Batch batch = blank(static_cast<std::int64_t>(part.indices.size()), stamp_of(part, step));
  dataset_.fetch(part.indices, batch.images, batch.labels);
  return batch;
}

}  // namespace duet::data
