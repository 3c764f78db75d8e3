// Hooks on the gradients of a model: what runs when a backward begins, completes a gradient, or ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <utility>

#include "lib/autograd/node.h"
#include "lib/base/lasting.h"
#include "lib/nn/residence.h"

namespace duet::nn {

/// A hook is called while its handle or a copy of that lives, which may outlive the model.
using HookHandle = std::shared_ptr<const void>;

/// Describes the optimizer that updates parameters, and its settings.
struct UpdateSettings {
  enum Optimizer : std::uint8_t { none, custom, sgd, nesterov_sgd, adam, adamw };
  enum Name { lr, momentum, dampening, weight_decay, clip_norm, eps, kNames, beta1 = momentum, beta2 = dampening };
  Optimizer optimizer = none;  // as in clip_grad_norm()
  std::array<float, kNames> values{};
};

/// Notified of the backward runs that reach one of the model's slots, on the thread of each, and of updates. Used by
/// one thread at a time.
class GradientHooks final : public BackwardListener {
 public:
  /// `residence`: of the gradients, which hooks may write. It must outlive this.
  explicit GradientHooks(const Residence& residence) : residence_(residence) {}

  /// Called with the slot whose gradient is complete in FlatParameters::gradients().
  [[nodiscard]] HookHandle on_grad_ready(std::function<void(int slot)> hook) { return ready_.add(std::move(hook)); }
  /// Called at the begin of each backward run that will reach a slot.
  [[nodiscard]] HookHandle at_backward_begin(std::function<void()> hook) { return begin_.add(std::move(hook)); }
  /// Called at the end of each backward run that reached a slot.
  [[nodiscard]] HookHandle at_backward_end(std::function<void()> hook) { return end_.add(std::move(hook)); }
  /// Called before an update of these slots, which it may prevent by an exception.
  using UpdateHook = std::function<void(int first_slot, int slots, const UpdateSettings& settings)>;
  [[nodiscard]] HookHandle before_update(UpdateHook hook) { return update_.add(std::move(hook)); }
  void update_begins(int first_slot, int slots, const UpdateSettings& settings) const {
    update_.call(first_slot, slots, settings);
  }
  /// Whether one of them needs the gradients where they are.
  bool hold_gradients() const { return !ready_.empty() || !end_.empty(); }

  /// The divisors of the losses of all backward runs since zero_grad(), as bits of Normaliser; 0: there was none.
  unsigned normalisers() const { return normalisers_; }
  /// Says that the gradients are sums over all ranks, which later backward runs may divide by something else.
  void forget_normalisers() { normalisers_ = 0; }

  void grad_ready(int slot) {
    if (ready_.empty()) return;
    ready_.call(slot);
    residence_.gradients_written();  // perhaps
  }
  /// A replica's are added up with those of the model.
  bool adds_up_ranks() const override { return residence_.of_replica() || !begin_.empty(); }
  bool joins_rows() const override { return residence_.of_replica() || joins_rows_.lasts(); }
  /// While it lives, the gradients are joined with those of other ranks' rows.
  [[nodiscard]] Lasting::Hold join_rows() { return joins_rows_.hold(); }
  bool adds_free_last() const override { return !rank_sums_.empty(); }
  void sum_over_ranks(std::span<std::int64_t> numbers) override { rank_sums_.call(numbers, true); }
  /// Called to sum numbers over several ranks. While it is there, gradients that are free of the batch come after those
  /// of the batch, in a run of their own.
  [[nodiscard]] HookHandle at_rank_sum(std::function<void(std::span<std::int64_t>)> hook) {
    return rank_sums_.add(std::move(hook));
  }
  /// Whether this is such a run.
  bool adds_free() const { return adds_free_; }
  void backward_begins(unsigned normalisers) override {
    adds_free_ = normalisers == kFree;
    if (!adds_free_) normalisers_ |= normalisers;
    begin_.call();
  }
  void backward_ended() override {
    if (end_.empty()) return;
    end_.call();
    residence_.gradients_written();
  }

 private:
  template <class... Args>
  class List {
   public:
    using Hook = std::function<void(Args...)>;
    HookHandle add(Hook hook) {
      hooks_.remove_if([](const auto& known) { return known.expired(); });
      const auto added = std::make_shared<const Hook>(std::move(hook));
      hooks_.push_back(added);
      return added;
    }
    bool empty() const {
      return std::ranges::all_of(hooks_, [](const auto& known) { return known.expired(); });
    }
    /// A hook may remove itself or others while it runs, and add some. `once`: the first only.
    void call(Args... args, bool once = false) const {
      for (const auto& known : hooks_)
        if (const auto hook = known.lock()) {
          (*hook)(args...);
          if (once) return;
        }
    }

   private:
    std::list<std::weak_ptr<const Hook>> hooks_;  // add() drops those that are gone, never the one that runs
  };

  const Residence& residence_;
  List<int> ready_;
  List<> begin_, end_;
  List<std::span<std::int64_t>> rank_sums_;
  Lasting joins_rows_;
  bool adds_free_ = false;
  List<int, int, const UpdateSettings&> update_;
  unsigned normalisers_ = 0;
};

}  // namespace duet::nn
