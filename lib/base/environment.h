// The environment of this process: variables, and files of the system.
#pragma once

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

namespace duet {

/// Nothing where the variable is not set, or empty. Must not run while another thread changes the environment.
inline std::optional<std::string> environment_variable(const std::string& name) {
  const char* const text = std::getenv(name.c_str());
  if (text == nullptr || *text == '\0') return {};
  return text;
}

/// How one launcher names what it says, its rank by one name. Of several names, with blanks between them, the first
/// that is set counts.
struct LauncherVariables {
  const char *name, *rank, *size, *local_rank, *local_size;
  const char* node = "";   // this host's number
  const char* job = "";    // all that are set name the job; "": its parent process does
  const char* mark = "";   // set in processes that may be ranks of this launcher; "": all may be
  bool schedules = false;  // starts other launchers, so other numbers may be theirs, and single processes
  const char* nodes = "";  // how many hosts there are, each with as many ranks as the others
  const char* tasks = "";  // how many ranks each host has: "2(x3),1"
  const char* hosts = "";  // the hosts' names, rank 0's first: "n[01-03,7],m2"
};
inline constexpr LauncherVariables kLaunchers[] = {
    {"environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE LOCAL_SIZE", "GROUP_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", "PMIX_NAMESPACE"},
    {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE PMI_LOCAL_SIZE", "PALS_NODEID",
     "PALS_APID", "PALS_RANKID"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID PMI_LOCAL_RANK", "MPI_LOCALNRANKS PMI_LOCAL_SIZE"},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE", "",
     "PMIX_NAMESPACE"},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "LOCAL_WORLD_SIZE", "", "FLUX_JOB_ID",
     "FLUX_TASK_RANK", true, "FLUX_JOB_NNODES"},
    // A batch script has most of Slurm's variables, but no step.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NPROCS", "SLURM_LOCALID", "", "SLURM_NODEID",
     "SLURM_JOB_ID SLURM_STEP_ID SLURM_RESTART_COUNT", "SLURM_STEP_ID", true, "",
     "SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE", "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST"}};

/// Whether this process speaks for its job: it is rank 0 by the variables of launchers, or they name no rank.
inline bool is_first_rank() {
  for (const LauncherVariables& row : kLaunchers)
    if (const auto rank = environment_variable(row.rank)) return *rank == "0";
  return true;
}

/// The first line of a file; empty if it cannot be read.
inline std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace duet
