// Steps that are done again after a rank was lost: what the objects of a training keep of the last complete step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/base/function_ref.h"
#include "lib/base/lasting.h"

namespace duet {

class Tensor;

/// Writes the states of objects one after the other, or reads them.
class StateStream {
 public:
  /// Writes, into this memory.
  explicit StateStream(std::vector<std::byte> memory) : written_(std::move(memory)) { written_.clear(); }
  /// Reads; the bytes must outlive it.
  explicit StateStream(std::span<const std::byte> state) : rest_(state), reads_(true) {}

  /// Writes the bytes, or reads as many. Throws CommError where fewer are left.
  void bytes(std::span<std::byte> own);
  /// The elements of a contiguous tensor on any device.
  void tensor(const Tensor& own);
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void value(T& own) { bytes(std::as_writable_bytes(std::span(&own, 1))); }
  /// A vector or string of such values, of any length.
  template <class T>
  void sequence(T& own) {
    std::uint64_t count = own.size();
    value(count);
    if (reads_) require_left(count, sizeof(own[0]));
    own.resize(count);
    bytes(std::as_writable_bytes(std::span(own)));
  }
  std::vector<std::byte> written() { return std::move(written_); }
  bool reads() const { return reads_; }
  bool at_end() const { return rest_.empty(); }
  /// Throws CommError where fewer than so many values are left.
  void require_left(std::uint64_t count, std::size_t size) const;

 private:
  std::vector<std::byte> written_;
  std::span<const std::byte> rest_;
  bool reads_ = false;
};

/// An object of a training whose state a rank that joins gets from another one: parameters, optimizers, schedules,
/// loaders, and values of the program's own. All ranks make theirs in the same order. Registered in elastic jobs only.
class Recoverable {
 public:
  Recoverable() = default;
  virtual ~Recoverable() = default;
  Recoverable(const Recoverable&) = delete;
  Recoverable& operator=(const Recoverable&) = delete;

  /// The first batch of a step is delivered, or a unit begins: what restore() goes back to.
  virtual void begin_step() {}
  /// A step is complete: it will not be done again.
  virtual void complete_step() {}
  /// The step is done again: what it has changed beside parameters and optimizers is as it was. Called when that is
  /// known, and once more when the step begins again.
  virtual void restore() {}
  /// The ranks have a new process group: memory that they share is other memory, and their number may be another one.
  virtual void regroup() {}
  /// The state after the last complete step.
  virtual void stream(StateStream& state) = 0;
  /// Adds a line "HASH NAME" for each value that all ranks are to have alike.
  virtual void add_hashes(std::string& /*lines*/) const {}

 protected:
  /// For constructors and destructors of classes that implement stream(): in an elastic job the object, of which
  /// messages speak as `what`, is one of the training from here to there. The state of one that leaves is kept for
  /// ranks that join later; within a step or unit that is an error. Throws UsageError from the first step or unit on:
  /// such a rank has only what was made before.
  void join(const std::string& what);
  void leave();
  /// Whether steps change the state before they are complete: then what stream() writes is copied when a step begins,
  /// and read from there when it is void.
  virtual bool is_copied() const { return false; }
  /// Whether it must stay as it is between steps: then it is copied where they end, too.
  virtual bool is_watched() const { return false; }
  /// Whether programs may write it between steps, as parameters: then a rank that takes it from another one keeps a
  /// copy until its next step or unit begins, since it runs through writes that are in the state already.
  virtual bool is_written() const { return false; }
  /// The last such copy.
  const std::vector<std::byte>& copied() const { return copied_; }

 private:
  friend class Recovery;
  std::string what_{};
  std::vector<std::byte> copied_;
};

/// What the object's stream() writes, into this memory.
std::vector<std::byte> written_state(Recoverable& object, std::vector<std::byte> memory = {});

/// Name to a rank the memory of its elastic job, and the file of its store, see ddp/launch/losses.h; on several hosts
/// what its keys begin with in the launchers' store.
inline constexpr const char* kElasticVariable = "DUET_ELASTIC_FILE";
inline constexpr const char* kElasticStoreVariable = "DUET_ELASTIC_STORE";
/// Names to a process of an elastic job which one it is: the rank, or a number behind those of the ranks for a spare
/// one.
inline constexpr const char* kElasticProcessVariable = "DUET_ELASTIC_PROCESS";
/// How many processes have had the number of this rank before.
inline constexpr const char* kReplacementVariable = "DUET_REPLACEMENT";
/// Set where a process is to take the state of the training from another rank.
inline constexpr const char* kJoinsVariable = "DUET_ELASTIC_JOINS";

/// The steps of this process in an elastic job; off elsewhere, where nothing of it costs anything. A step is void once
/// one of its collectives has failed: what runs of it has no effect. Used by the one thread that trains.
class Recovery {
 public:
  static Recovery& instance();

  /// Called by the one loader that ranks share. Throws UsageError for a second one.
  void take_loader();
  /// Throws UsageError if a step that this rank has left is to be done again, whose batch the loader has not delivered
  /// yet: the program has left the pass, or trains no more.
  void require_no_redo() const;
  void set_redo_due(bool due) { redo_due_ = due; }

  /// The number of this rank in the group of all.
  struct Place {
    int rank = 0, ranks = 1;
  };
  /// What the process group does: `complete` when a step or unit is complete; `recover` agrees on the last complete
  /// one, with the ranks there are, and takes the state after it. `is_left`: other ranks than those of the group are to
  /// go on.
  struct Group {
    std::function<void(std::int64_t commits)> complete;
    std::function<void()> recover;
    std::function<bool()> is_left;
    Place place{};
    bool places_change = false;           // the job continues with spare processes, or fewer ranks
    int least_ranks = 1, most_ranks = 1;  // with as few ranks; with all
  };
  /// On while a group is set.
  void set_group(Group group);
  void reset_group();
  bool on() const { return on_; }
  /// Whether this process is a rank of an elastic job.
  bool expected() const { return expected_; }
  /// Whether another process has trained as this rank before.
  bool replaces() const { return replaces_; }

  bool is_void() const { return void_; }
  /// Whether it is void, and this rank has the values of the step's begin again.
  bool has_recovered() const { return void_ && recovered_; }
  /// Between the delivery of a batch and the end of its step, or within a unit.
  bool in_step() const { return !completed_; }
  bool in_unit() const { return in_unit_; }
  /// For a program that does more behind a step: whether another rank has completed the one that is void here, so that
  /// this rank has the state behind it. Recovers first.
  bool is_adopted();
  void set_void() { void_ = true; }
  /// Brings this rank to the last step that is complete on any: at the end of a backward, and before the next batch.
  void recover_if_void();
  /// Also where another rank has joined: before a batch or a unit that follows. Not behind the last batch of a pass:
  /// what the program does there, such as a schedule's step, is in the state of ranks that have gone on only.
  void recover_if_left();
  bool places_change() const { return on_ && group_.places_change; }
  bool ranks_change() const { return on_ && group_.least_ranks < group_.most_ranks; }
  /// Whether the job may have a number of ranks of which some own several subtrees of so many blocks.
  bool may_cut_tree(int blocks) const;
  Place place() const { return group_.place; }
  /// The model goes forward: the step is to have an update. Without a loader that ranks share, the step begins here.
  /// Throws UsageError where gradients of the pass before are still to be used, and where a loop lacks redo().
  void begin_forward();
  /// See DistributedDataParallel.
  bool redo();
  bool is_done();
  /// See DistributedDataParallelOptions.
  void allow_undo() { undoes_ = true; }
  bool undoes() const { return undoes_; }
  /// The loader is about to deliver a batch, the first of a step or one more; the step is no longer void. `pass` lives
  /// as long as the program is within the pass.
  void begin_batch(const std::weak_ptr<const void>& pass);
  /// A pass of the loader has ended: what the program does now is not part of a step.
  void end_pass();
  /// The program may have left a pass where a batch came: then no step has begun with that.
  void leave_pass();
  /// How many batches were delivered.
  std::int64_t batches() const { return batches_; }
  /// The parameters are updated, which completes the step; where steps may have several updates, what follows the last
  /// one does. Throws UsageError for an update without a batch, or a second one.
  void complete_step();
  /// Whether all steps and units so far have ended, and the next one has not begun: the program's own values stay as
  /// they are.
  bool is_outside() const { return is_outside_; }
  /// See elastic::unit() in lib/elastic.h.
  void run_unit(FunctionRef<void()> body);
  /// For a program that goes on from the state itself, before its first pass and unit: a process that replaces a lost
  /// one takes the state here, and comes to the unit that the others are in. Whether this is such a process.
  bool join_training();

  /// Counts steps, and units between two of them: what ranks agree on.
  std::int64_t commits() const { return commits_; }
  std::int64_t steps() const { return commits_ / kCommitsPerStep; }
  /// Counts passes over the loader that ranks share, or units where there is none: a program writes values between two.
  std::int64_t pass() const { return has_loader_ ? passes_ : own_units_; }
  /// How many commits a step counts; a unit counts 1.
  static constexpr std::int64_t kCommitsPerStep = 1 << 20;

  /// While a hold lives, a process that joins takes the results of collectives with the state. Empty where this is not
  /// on: ranks that are threads may then call this at once.
  [[nodiscard]] Lasting::Hold exchange_state() { return on_ ? in_state_.hold() : nullptr; }
  bool in_state() const { return in_state_.lasts(); }

  /// How often this rank has recovered.
  std::int64_t recoveries() const { return recoveries_; }

  std::vector<std::byte> state();
  void take_state(std::span<const std::byte> bytes);
  void restore();
  void regroup(Place place);
  /// Returns the lines of all objects' add_hashes().
  std::string hashes() const;

 private:
  friend class Recoverable;
  /// Whether a process that joins takes a state.
  bool has_begun() const { return on_ && (commits_ > 0 || in_step()); }
  void require_none_ended() const;
  void stream(StateStream& state);
  void write(Recoverable& object, StateStream& state) const;
  void commit(std::int64_t commits);
  void finish_step();
  void begin_attempt();
  void begin_own_batch();
  void require_own_batches(const char* what) const;
  enum class Copies { of_step, of_rank, outside };
  void copy_states(Copies copies);
  void leave_steps();
  bool attempt(FunctionRef<void()> body);

  Recovery();

  const bool expected_;  // this process is a rank of an elastic job
  const bool replaces_;
  bool on_ = false, void_ = false, recovered_ = false, completed_ = true, redo_due_ = false;
  bool has_loader_ = false, had_group_ = false, in_unit_ = false, forward_ = false;
  bool undoes_ = false, is_updated_ = false;  // the second: in the step in flight
  bool is_outside_ = false;
  bool in_own_batch_ = false;   // of a loop of the program's own, until it asks redo()
  std::int64_t own_steps_ = 0;  // of such a loop, that this process has left
  Lasting in_state_;
  std::int64_t commits_ = 0, batches_ = 0, passes_ = 0;
  std::int64_t forward_pass_ = 0;  // of the last forward
  std::int64_t units_ = 0;         // complete ones of the training
  std::int64_t own_units_ = 0;     // that this process has come to
  std::int64_t recoveries_ = 0;
  std::weak_ptr<const void> pass_;  // over the loader that ranks share
  bool goes_on_itself_ = false;     // the program
  Group group_;
  std::vector<Recoverable*> objects_;               // in the order of their construction
  std::vector<std::unique_ptr<Recoverable>> left_;  // in the places of objects that have left
  std::string ended_within_{};                      // the last object that left within a step or unit
};

/// Says that by `what`, a sentence, results depend on the number of devices: throws UsageError in an elastic job that
/// may continue with fewer ranks, else prints a warning unless `said`, which it sets. Thread-safe.
void report_dependence(std::atomic<bool>& said, FunctionRef<std::string()> what);

}  // namespace duet
