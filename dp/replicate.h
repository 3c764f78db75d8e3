// The second of data parallelism's four steps: every device gets the values of the model.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "dp/device_turns.h"
#include "lib/backend/backend.h"
#include "lib/base/function_ref.h"
#include "lib/base/threads.h"
#include "lib/blocks.h"
#include "lib/nn/module.h"
#include "lib/pool.h"

namespace duet::dp {

/// When the replicas get their values.
enum class Refresh {
  /// Copied from the first device in every forward, as PyTorch does.
  per_forward,
  /// Devices that share memory read the same values. Others keep copies, and the sum of the gradients is given to all
  /// of them, so that an optimizer updates every copy: see Note [Update sites] in lib/nn/residence.h. Where the
  /// module is only a part of a model, or devices of several kinds take part, they are copied in every forward.
  persistent,
};

/// Thrown in a replica that waits for one that failed; not a std::exception, so that no handler reports it as the
/// cause.
struct OtherReplicaFailed {
  std::exception_ptr cause;
};

/// How what the replicas have computed is added up: by these additions, one after the other. Then the replicas in
/// `results` hold the sums: one for the whole batch, or one for each subtree of the blocks that this process owns
/// (lib/blocks.h), which is negative where no replica has rows of it.
struct SumOrder {
  std::vector<Addition> additions;
  std::vector<int> results{0};
  bool several() const { return results.size() > 1; }
};

/// A barrier with a sum for the replicas' threads: numbers that the replicas of one forward or backward add up while
/// they run. Their caller calls begin() before, and each thread end() at its end, so that no replica waits for one that
/// has ended.
class ReplicaSums {
 public:
  /// `turns`: those of each replica's device, or null where it has the device for itself. They must outlive this.
  explicit ReplicaSums(std::vector<DeviceTurns*> turns);
  /// Replicas 0 to count - 1 start to run. `others` adds to their sums those of other processes, in the tree of which
  /// these replicas' are branches; null: there are none. `order` and `others` must outlive the run.
  void begin(int count, const SumOrder& order, BatchSums* others);
  /// What a replica's layers call.
  BatchSums& of(int replica) { return entrances_[static_cast<std::size_t>(replica)]; }
  /// `cause`: of a replica that failed.
  void end(std::exception_ptr cause = nullptr);

 private:
  struct Entrance final : BatchSums {
    Entrance(ReplicaSums& all, int number) : sums(all), replica(number) {}
    void sum(std::span<double> values, int parts) override { sums.sum(replica, values, parts, false); }
    double sum_gradients(std::span<double> values, int parts) override {
      return sums.sum(replica, values, parts, true);
    }
    ReplicaSums& sums;
    int replica;
  };
  /// Returns what sum_gradients() does.
  double sum(int replica, std::span<double> values, int parts, bool of_gradients);
  void add_up();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entrance> entrances_;
  std::vector<DeviceTurns*> turns_;  // by replica
  const SumOrder* order_ = nullptr;
  std::vector<std::span<double>> parts_;  // by replica; empty: takes no part
  std::vector<double> result_, scratch_;
  double samples_ = 0;  // what sum_gradients() returns
  BatchSums* others_ = nullptr;
  int count_ = 0, arrived_ = 0;
  std::uint64_t round_ = 0;
  bool left_ = false;
  std::exception_ptr cause_;
};

/// The replicas of a module, and the devices on which they run.
struct ReplicaPlaces {
  std::vector<Device> devices{};
  std::vector<int> device_of{};     // number of each replica's device, ascending
  std::vector<Subtree> subtrees{};  // blocks of each replica; empty: each device has one replica, for some rows
  int blocks = kBlocks;             // in all
  bool traced = true;               // false: they are one rank's, whose steps have no such parts
  bool operator==(const ReplicaPlaces&) const = default;
};

/// One context of a module per replica, and a long-lived thread for each device but the first, which runs on the
/// calling thread. Replica 0 works on the model's own values and buffers, so what it does to buffers stays; buffers
/// of the others are copied before every forward and dropped after it, values as Refresh says.
///
/// A device that owns several subtrees of the blocks has a replica for each: see lib/blocks.h. Batch norms whose
/// statistics are those of a device then add them up over its replicas.
///
/// Where the copies on devices that do not share memory persist, this is the update site of the model's store: an
/// optimizer updates every copy as it updates the values, which saves a copy to every device in the next forward.
class Replicas final : public std::enable_shared_from_this<Replicas>, private nn::UpdateSite {
 public:
  using Forward = std::function<nn::Value(nn::Context&, const nn::Value&)>;
  /// `forward` is what each replica runs: the module's own forward, perhaps with a loss. `threads`: those of other
  /// replicas on the same devices. Throws UsageError for no devices or one named twice.
  Replicas(const nn::Module& module, ReplicaPlaces places, Refresh refresh, Forward forward,
           std::shared_ptr<ThreadPool> threads = nullptr);

  int size() const { return static_cast<int>(places_.device_of.size()); }
  const ReplicaPlaces& places() const { return places_; }
  std::span<const Device> devices() const { return places_.devices; }
  int device_number(int replica) const { return places_.device_of[static_cast<std::size_t>(replica)]; }
  Device device(int replica) const { return places_.devices[static_cast<std::size_t>(device_number(replica))]; }
  const nn::Module& module() const { return module_; }
  const std::shared_ptr<ThreadPool>& threads() const { return threads_; }
  /// Whether the replica's device has others.
  /// Throws within run() if the thread of the replica couldn't be bound to its device.
  void require_bound(int replica) const {
    if (const auto& turns = turns_[static_cast<std::size_t>(device_number(replica))]) turns->require_bound();
  }
  bool takes_turns(int replica) const { return turns_[static_cast<std::size_t>(device_number(replica))] != nullptr; }
  nn::Context& context(int i) { return contexts_[static_cast<std::size_t>(i)]; }
  /// Runs task(i) for every replica, each on its device's thread; one after the other while a step is recorded. What a
  /// device's replicas that take turns do together is traced under `name`, unless that is null.
  void run(FunctionRef<void(int i)> task, const char* name = nullptr);
  /// Calls begin() of ReplicaSums before a run of tasks that compute on a batch, and end() at the end of each of these.
  void begin_sums(int count, const SumOrder& order, BatchSums* others);
  void end_sums(int replica, const std::exception_ptr& cause = nullptr);
  nn::Value forward(int i, const nn::Value& input) { return forward_(context(i), input); }

  /// Throws NumericError that names the replica whose persistent values are not the model's, bit for bit: they
  /// were written past the store. Waits for the devices.
  void require_same_values() const;

  /// Brings values, buffers and random key of `count` replicas up to those of the model's context, for pieces of these
  /// rows. Throws DeviceError when the model is not on the first device.
  void replicate(const nn::Context& model, int count, const nn::DrawCounts::Range& rows);

  /// Before a replay of steps that were recorded with the contexts of this number: persistent replicas get values that
  /// were written since. Throws UsageError when the contexts were made again since then.
  void prepare_replay(int contexts_number);
  /// Copies of the values that were only recorded, and never replayed, do not count.
  void forget_values() { has_values_ = false; }

  /// The order of sums since the last replicate(). It lives as long as these.
  const SumOrder& order() const { return *order_; }

  /// Adds up the gradients of all replicas on the model's device: into a destination for each result
  /// of `order`, in the flat order of the module's slots. Replicas for which took_part is false count as zero.
  /// `for_all`: the first destination is the model's gradient; persistent replicas get the sum, too.
  void sum_gradients(const SumOrder& order, std::span<const char> took_part, std::span<const Tensor> destinations,
                     bool for_all);

 private:
  void make_contexts(const nn::Context& model);
  bool can_persist(const nn::Context& model) const;
  int first_replica(int device) const {
    const std::vector<int>& all = places_.device_of;
    return static_cast<int>(std::ranges::lower_bound(all, device) - all.begin());
  }
  bool holds_values() const;
  void attach_to_recording();
  void set_order(const nn::Context& model);
  void sum_pieces(const SumOrder& order, std::span<const Tensor> parts, std::span<const Tensor> destinations,
                  int share) const;
  void update(nn::OptimizerState& state, Rule rule) override;
  void values_written() override { has_values_ = false; }
  void gradients_written() override { has_gradients_ = false; }

  const nn::Module& module_;
  const ReplicaPlaces places_;
  Refresh refresh_;
  Forward forward_;
  std::vector<std::unique_ptr<nn::FlatParameters>> stores_;
  std::vector<nn::Context> contexts_;
  nn::FlatParameters* replicated_ = nullptr;  // the store of which the contexts were made
  int contexts_number_ = 0;                   // counts how often they were
  int recording_ = 0;                         // the last recording that holds a forward
  std::shared_ptr<UpdateSite> site_;          // this, for replicated_; null where values are copied in each forward
  bool has_values_ = false;                   // whether persistent copies are the values as they are now
  bool has_gradients_ = false;                // whether they have the sum of the gradients
  std::shared_ptr<ThreadPool> threads_;
  std::vector<std::unique_ptr<DeviceTurns>> turns_;  // by device; null where it has one replica
  ReplicaSums sums_;
  std::vector<std::unique_ptr<ReplicaSums>> device_sums_;        // likewise: of the replicas of a device
  std::vector<SumOrder> device_orders_;                          // by device
  std::map<std::vector<std::pair<int, int>>, SumOrder> orders_;  // by the blocks of each sum
  const SumOrder* order_ = nullptr;
};

}  // namespace duet::dp
