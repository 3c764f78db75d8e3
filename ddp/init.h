// Rendezvous: ranks connect and become a process group.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddp/group/process_group.h"
#include "ddp/launch/rank_resolver.h"
#include "ddp/store/store.h"

namespace duet::ddp {

/// This process's place in the job, as resolve_rank() finds it. Without a launcher, the only rank.
RankInfo rank_info();

struct InitOptions {
  /// "shm": ranks on one host that can share memory; "tcp": any hosts; "gloo": the same by Gloo, whose ports take any
  /// connection; "mpi": ranks that an MPI launcher has started, by MPI's messages; "nccl": ranks with a CUDA device
  /// each; "solo": one rank. "auto": shm where it can be had, else tcp; where several of the ranks share a host, these
  /// exchange over memory what stays there.
  std::string backend = "auto";
  /// "env://" (the launcher's variables, MASTER_ADDR, MASTER_PORT; without these two the ranks of one host meet in a
  /// file that the job's name leads to, where the launcher names jobs: MPI, Slurm), "tcp://host:port", "file://path";
  /// rank and world_size may stand in the URL ("tcp://host:port?rank=0&world_size=2").
  std::string init_method = "env://";
  int rank = -1;        // -1: from the URL or the environment
  int world_size = -1;  // likewise
  /// How long each operation may take, never less than ten times the median of the rank's last 15 steps, but over NCCL
  /// exactly this; 0: as the launcher says in DUET_TIMEOUT_MS, else kGroupTimeout.
  Milliseconds timeout{0};
  /// Until all ranks have come; 0: as the launcher says in DUET_JOIN_TIMEOUT_MS, else kStoreTimeout.
  Milliseconds join_timeout{0};
  /// Keeps runs apart that share a file; the launcher's id unless set.
  std::string run_id{};
  /// Set where not all ranks of the job are in the group: a name that no other group of the job has.
  std::string subgroup{};
  /// Rank 0 also remarks on who has joined from where: "rank 1 joined: process 123 on node7 at 10.0.0.7". Also where
  /// the launcher sets DUET_VERBOSE.
  bool verbose = false;
  /// Gets these remarks of rank 0, instead of stderr.
  std::function<void(const std::string& remark)> on_remark{};
  /// This rank's device, for nccl; the GPU with the number LOCAL_RANK unless set.
  std::optional<Device> device{};
};

/// Waits for all ranks, connects them, and returns when all are connected. A world of one needs neither backend nor
/// store. Unlike PyTorch's there is no default group: the caller holds it, and may have several. Empties DUET_SECRET in
/// this process's environment: see hide_secret() of ddp/store/secret.h.
/// Throws UsageError for a bad option or variable (PyTorch's texts), CommError that names the ranks that did not come
/// or that disagree, DeviceError when the backend is not built.
std::unique_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

/// Connects ranks that share a store already, which the group keeps, and uses under a prefix. Over one store groups may
/// be made one after the other, also after a failure or by fewer ranks: each rank must have made as many before. Of the
/// options, init_method, rank, world_size and run_id are not read. Ranks on several hosts are reached at the address of
/// DUET_INTERFACE, else at the one on the way to MASTER_ADDR.
std::unique_ptr<ProcessGroup> init_process_group(std::shared_ptr<Store> store, int rank, int world_size,
                                                 const InitOptions& options = {});

}  // namespace duet::ddp
