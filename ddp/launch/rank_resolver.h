// Which rank of which job this process is, by the variables of whatever has started it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lib/base/environment.h"

namespace duet::ddp {

/// This process's place in the job.
struct RankInfo {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;  // on this machine
  int node_rank = 0;                         // this machine's number, as far as the launcher says
};

struct LaunchedRank {
  RankInfo place{};
  std::string launcher{};  // "torchrun", "Open MPI", ...; empty: none, and the place is that of the only rank
  std::string evidence{};  // "RANK=1 WORLD_SIZE=2 ...": the variables that say so
  /// Names the job where ranks may meet without a given address; else empty.
  std::string job{};
  /// The host of rank 0, if the launcher names the hosts; else empty.
  std::string first_host{};
};

using Variables = std::function<std::optional<std::string>(const std::string& name)>;

/// `variables`: of this process unless given; empty ones count as not set. Looks for, in this order: duet launch,
/// torchrun, Kubernetes' PyTorchJob and plain RANK and WORLD_SIZE; Open MPI (OMPI_COMM_WORLD_*); PALS of PBS (PALS_*);
/// MVAPICH (MV2_*); MPICH and Intel MPI (PMI_*, MPI_LOCAL*); jsrun of LSF (JSM_*); Flux (FLUX_*) and Slurm (SLURM_*),
/// of which a batch script or a single task is no rank. The first counts, as launchers may start each other; but RANK
/// and WORLD_SIZE of no launcher must agree with those of MPI. A place on the host that the first does not give is that
/// of another with the same rank and size. Throws UsageError that names the variables: half of them set, not a number,
/// out of range, contradictory.
LaunchedRank resolve_rank(const Variables& variables = environment_variable);

/// "rank 1 of 4, local rank 1 of 2 on node 0, by Open MPI (OMPI_COMM_WORLD_RANK=1 ...)".
std::string describe(const LaunchedRank& rank);

/// True in a process that a launcher (this one, torchrun, MPI, Slurm, ...) started as a rank. Throws UsageError for
/// variables that make no sense.
bool is_launched_rank();
/// Its rank; nothing in other processes, or where the variables make no sense.
std::optional<int> launched_rank() noexcept;

/// Removes all these variables, for a child that is to be no rank.
void forget_rank();

}  // namespace duet::ddp
