// Batches of a data set, in the order that a batch sampler gives, built ahead by worker threads if wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/recovery.h"
#include "lib/data/dataset.h"
#include "lib/position.h"
#include "lib/random.h"
#include "lib/tensor.h"

namespace duet::data {

/// A part of an order that ranks share out.
struct OrderPart {
  int rank = 0, ranks = 1;
  std::uint64_t whole = 0;  // hash of the whole order of the epoch, the same on all ranks; 0: unknown
};

/// An order of sample indices, new for every epoch. Not thread-safe while set_epoch runs; const functions may be called
/// from many threads between two calls of it.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Number of indices in an epoch, the same for all epochs.
  virtual std::int64_t size() const = 0;
  /// Fixes the order of that epoch. Called by the loader before each epoch.
  virtual void set_epoch(std::int64_t epoch) = 0;
  /// The indices of the epoch that was set last (0 before that), size() of them; valid until the next set_epoch.
  virtual std::span<const std::int64_t> indices() const = 0;
  /// The shared order of which indices() is a part.
  virtual OrderPart part() const { return {}; }
};

/// The samples that one process reads in one step: a part of the global batch, perhaps none of it.
struct StepIndices {
  std::span<const std::int64_t> indices;
  std::int64_t first = 0;   // place of the first of them in the global batch
  std::int64_t global = 0;  // rows of the global batch
  int shards = 1;           // ranks among which it is divided
  std::uint64_t order = 0;  // see Rows; 0: not compared
  int blocks = kBlocks;     // see Rows
  bool owned = false;       // see Rows
};

/// Cuts an order into steps; what the loader drives. Thread safety as Sampler.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Steps in an epoch, the same for all epochs and all ranks.
  virtual std::int64_t steps() const = 0;
  virtual void set_epoch(std::int64_t epoch) = 0;
  /// 0 <= step < steps(); valid until the next set_epoch.
  virtual StepIndices step(std::int64_t step) const = 0;
  /// Cuts steps for so many ranks from now on, of which this one has the number `rank`; not while another thread calls
  /// step(). False: this sampler cannot. An elastic job that continues with fewer ranks calls it.
  virtual bool set_part(int /*rank*/, int /*ranks*/) { return false; }
};

/// Both tensors carry the stamp {step counted over all epochs, first row, global rows} (lib/tensor.h).
struct Batch {
  Tensor images;  // f32 (n, sample shape...)
  Tensor labels;  // i64 (n); undefined if the data set has none
};

struct LoaderOptions {
  int workers = 0;               // threads that build batches; 0: the calling thread builds each when it is asked for
  int prefetch = 2;              // batches ready or in work ahead of the caller, for each worker
  bool deferred = false;         // for ResidentImages: batch() makes the batch, within a step that may be recorded
  Mt19937* generator = nullptr;  // PyTorch's draw order: each epoch starts with an int64 from it, the "base seed"
};

class Prefetcher;

/// One pass of a range-for is one epoch; the next pass is the next one, also after a `break`:
///
///     for (auto& [images, labels] : loader) ...
///
/// Order and content do not depend on the number of workers. Batches lie where the data set's fetch writes. The tensors
/// of a batch are the caller's: they stay valid as long as a handle to them lives, and their memory is used again after
/// that. With no workers, an epoch allocates nothing once each batch size has been seen. One thread iterates at a time;
/// an exception of the data set reaches it in the step in which the batch was due.
///
/// A `deferred` loader only copies the samples' numbers to the device, always to the same place for the same number of
/// rows: before each step stage(1) copies them, the batch of an iterator is empty, and batch() makes it from there. For
/// several steps that are recorded together, stage() copies the numbers of all of them at once.
class Loader : private Recoverable {
 public:
  /// The data set must outlive the loader. Throws UsageError for options that are out of range, for workers with a data
  /// set on a GPU, and for `deferred` with any other than ResidentImages.
  Loader(const Dataset& dataset, std::unique_ptr<BatchSampler> sampler, const LoaderOptions& options = {});
  Loader(const Dataset&& dataset, std::unique_ptr<BatchSampler> sampler, const LoaderOptions& options = {}) = delete;
  ~Loader() override;

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Batch& operator*() const { return loader_->batch_; }
    Batch* operator->() const { return &loader_->batch_; }
    Iterator& operator++() {
      loader_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    /// So many batches on.
    Iterator& operator+=(std::int64_t steps) {
      loader_->advance(steps);
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return loader_->step_ >= loader_->steps(); }

   private:
    friend class Loader;
    Iterator(Loader& loader, std::shared_ptr<const void> pass) : loader_(&loader), pass_(std::move(pass)) {}
    Loader* loader_;
    std::shared_ptr<const void> pass_;
  };

  /// Starts the next epoch: sets it at the sampler, and builds the first batch. Throws UsageError within a pass, that
  /// is, while an iterator of one that has not reached its end lives; not after set_position().
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// The batch of the current step; a deferred one is made again by each call, and may be `ahead` < staged steps on.
  /// Throws UsageError where that step is not staged.
  Batch batch(std::int64_t ahead = 0) const;
  /// Its rows, and its stamp.
  std::int64_t rows() const { return rows_; }
  const Rows& stamp() const { return stamp_; }
  /// How many steps from the current one on, at most `most`, differ in their samples only.
  std::int64_t alike(std::int64_t most) const;
  /// Deferred only: copies the numbers of so many steps to the device, always to the same place for as many of as many
  /// rows. Throws UsageError where fewer are alike.
  void stage(std::int64_t steps);

  /// Batches in an epoch.
  std::int64_t steps() const { return steps_; }
  /// The epoch that runs or ran last; -1 before the first.
  std::int64_t epoch() const { return epoch_; }
  /// Behind the batch that the caller got last, or the steps that were staged last: what another loader, with the same
  /// global batches, takes to continue. Behind a pass it is the begin of the next epoch; after a `break`, which leaves
  /// the rest of an epoch out, still the place of the break.
  Position position() const;
  /// Makes the next pass run from there to the end of that epoch, with the order, stamps and content that an
  /// uninterrupted run has there; an epoch of which all steps are done gives an empty pass. A sampler that draws from a
  /// shared generator needs that generator in the state it had when the epoch began. Throws UsageError unless 0 <=
  /// epoch and 0 <= step <= steps(); the pass does so where the position's steps are of another global batch.
  void set_position(const Position& position);

 private:
  void complete_step() override;
  void stream(StateStream& state) override;
  void regroup() override;
  bool has_recovered(bool is_followed);
  Position mark() const;
  void go_to_mark();
  void start_workers();
  Batch blank(std::int64_t rows, Rows stamp) const;
  Rows stamp_of(const StepIndices& part, std::int64_t step) const;
  Batch make(std::int64_t step) const;
  void advance(std::int64_t steps = 1);
  void produce();

  const Dataset& dataset_;
  std::unique_ptr<BatchSampler> sampler_;
  LoaderOptions options_;
  Shape batch_shape_;  // with 0 rows
  std::int64_t steps_;
  std::uint64_t data_hash_;                         // the data set's data_hash()
  const bool shared_;                               // several ranks read the batches
  std::int64_t epoch_ = -1, step_ = 0, begin_ = 0;  // `begin_`: the first step of the pass
  std::optional<Position> next_ = Position{};       // where the next pass begins; else with the epoch behind this one
  Batch batch_;
  std::int64_t rows_ = 0;
  Rows stamp_;
  const ResidentImages* resident_ = nullptr;  // deferred only, with the samples' numbers on its device by batch size
  std::map<std::pair<std::int64_t, std::int64_t>, Tensor> numbers_;  // and by steps
  Position mark_ = {};                      // behind the batch of the last complete step of an elastic job
  std::int64_t recoveries_ = 0;             // of the rank, which this loader has followed
  bool delivered_ = false;                  // a batch since then
  std::int64_t staged_ = 0;                 // steps of which the caller has the batches, from the current one on
  std::weak_ptr<const void> pass_;          // held by the iterators of the running pass
  std::vector<std::int64_t> indices_;       // on their way
  std::unique_ptr<Prefetcher> prefetcher_;  // serves the running epoch; stopped before anything above changes
};

}  // namespace duet::data
