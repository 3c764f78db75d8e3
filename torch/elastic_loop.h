// A program's loop over batches in an elastic job, for all wrappers of LibTorch modules in a process.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "ddp/group/process_group.h"
#include "lib/base/lasting.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "lib/random.h"
#include "lib/tensor.h"

namespace duet::torch {

/// Knows where in the loop's body the program is. Within it LibTorch's default generator of the CPU is seeded by the
/// seed that it had on rank 0, the step and the rank, so that a step that is done again draws the same numbers; behind
/// it the generator goes on as before, as it does in a process that leaves out the steps which the others have. Used by
/// the thread that trains.
class ElasticLoop final : private Recoverable {
 public:
  /// Returns that of this process; null outside of elastic jobs.
  static std::shared_ptr<ElasticLoop> instance(ddp::ProcessGroup& group) {
    if (!Recovery::instance().on()) return nullptr;
    static std::weak_ptr<ElasticLoop> weak;
    std::shared_ptr<ElasticLoop> loop = weak.lock();
    if (loop == nullptr) weak = loop = std::shared_ptr<ElasticLoop>(new ElasticLoop(group));
    return loop;
  }
  ~ElasticLoop() override { leave(); }

  bool is_done() {
    Recovery& recovery = Recovery::instance();
    if (recovery.is_done()) return true;
    const std::lock_guard lock(generator_.mutex());
    if (!before_) before_ = generator_.get_state();
    if (std::exchange(in_body_, true)) return false;
    Philox of_step(seed_, static_cast<std::uint64_t>(recovery.steps()));
    generator_.set_current_seed(Philox(of_step.word64(), static_cast<std::uint64_t>(group_.rank())).word());
    return false;
  }
  bool redo() {
    in_body_ = false;
    const bool again = Recovery::instance().redo();
    if (again || !before_) return again;
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(*std::exchange(before_, {}));
    return false;
  }
  /// Throws UsageError for a loop that computes steps which the others have done: it would draw other numbers then.
  void require_in_body() const {
    require<UsageError>(in_body_,
                        "a batch goes forward before is_done(): in an elastic job a loop over batches of a LibTorch "
                        "module is 'do { if (net.is_done()) continue; ... } while (net.redo());'");
  }

 private:
  explicit ElasticLoop(ddp::ProcessGroup& group)
      : group_(group), generator_(at::globalContext().defaultGenerator(at::kCPU)), seed_(generator_.current_seed()) {
    if (!Recovery::instance().is_void()) {  // else it comes with the first step
      const Lasting::Hold in_state = Recovery::instance().exchange_state();
      group.broadcast(ddp::Buffer(&seed_, sizeof seed_, DType::u8)).wait();
    }
    Recoverable::join("the loop");
  }
  void stream(StateStream& state) override { state.value(seed_); }

  ddp::ProcessGroup& group_;
  at::Generator generator_;
  std::uint64_t seed_;
  std::optional<at::Tensor> before_{};  // the generator's state where the body began
  bool in_body_ = false;
};

}  // namespace duet::torch
