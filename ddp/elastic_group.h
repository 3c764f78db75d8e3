// A process group of an elastic job: when a rank is lost, the others and its replacement make a new group in place of
// the old one, and the step in flight is done again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ddp/call_results.h"
#include "ddp/group/process_group.h"
#include "ddp/launch/job_memory.h"
#include "lib/device.h"

namespace duet::ddp {

/// Connects the ranks of a generation, of which this one has the number `rank`, and waits at most `limit` until all are
/// there. `check` throws CommError once there is a newer generation; it is called while waiting.
using ConnectGeneration = std::function<std::unique_ptr<ProcessGroup>(
    std::uint32_t generation, int rank, int ranks, Milliseconds limit, const std::function<void()>& check)>;

/// The group of all ranks that there are; one in a process. Its rank() and size() are those of the newest generation.
/// Collectives of a step that fail because a rank was lost make it void, and those behind them do nothing; those of a
/// unit throw CommError: see lib/base/recovery.h. Collectives before the first step have the results of the rank's
/// first process in one that replaces it. Others that fail end the job.
class ElasticGroup final : public ProcessGroup {
 public:
  /// Connects the ranks, or in a process that replaces a lost one does so when its training begins. `process`: the
  /// number of this one in the memory. `device`: where the buffers of its collectives lie. `early`: connects before
  /// there is a plan, as both take round trips between hosts.
  ElasticGroup(std::unique_ptr<JobMemory> memory, int rank, int process, std::shared_ptr<Store> store,
               std::string backend, Device device, Milliseconds join_timeout, ConnectGeneration connect, bool early);
  /// Waits until all ranks have ended their training, and helps to replace those that are lost before.
  ~ElasticGroup() override;

  const char* backend() const override {
    return inner_ != nullptr && backend_ == "auto" ? inner_->backend() : backend_.c_str();
  }
  std::shared_ptr<Storage> shared_storage(std::size_t bytes) override;

 protected:
  bool takes(DeviceKind kind) const override { return kind == device_.kind; }
  Device staging_device() const override { return device_; }
  Work start(const Call& call) override;
  std::unique_ptr<ProcessGroup> connect_subset(const Subset& subset) const override;

 private:
  void connect_newest(Milliseconds limit);
  /// Agrees on the last complete step with the ranks of the newest generation, and takes the state after it.
  void recover();
  bool recover_once();
  Work start_in_step(const Call& call);
  void exchange_state(const RecoveryPlan& plan);
  void void_if_lost(const CommError& error);
  void name_unlike(const CommError& error);
  void leave_generation();
  /// Returns the group of this generation for a call of this rank, and counts calls of all ranks.
  ProcessGroup& called(Collective op = Collective::barrier);
  void require_common() const;
  void require_newest() const;

  const std::unique_ptr<JobMemory> memory_;
  JobMember member_;
  CallResults results_;  // of calls before the first step
  const std::string backend_;
  const Device device_;
  const ConnectGeneration connect_;
  const bool early_;
  bool joins_;  // this process has no state yet
  std::uint32_t generation_ = 0;
  std::unique_ptr<ProcessGroup> inner_;  // null: in a process that has not joined, and after a loss
  WorkPool works_;
};

struct ElasticOptions {
  int rank = 0, ranks = 0;
  std::string backend = "auto";       // shm where it can be had, else tcp; or one of these, or nccl
  std::shared_ptr<Store> store{};     // null: a file of the launcher's, for ranks on one host
  std::string address = "127.0.0.1";  // of this rank, where the others reach it
  int host = -1;                      // the number of this one, of several; -1: there is one
  Device device{};                    // nccl: this process's, a GPU of its own
  std::string interface {};           // nccl: of its sockets
  Milliseconds timeout = kGroupTimeout, join_timeout = kStoreTimeout;
};
/// The group of this process's elastic job, as its launcher says in the environment.
std::unique_ptr<ProcessGroup> make_elastic_group(const ElasticOptions& options);

}  // namespace duet::ddp
