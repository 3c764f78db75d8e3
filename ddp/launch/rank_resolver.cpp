#include "ddp/launch/rank_resolver.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <locale>
#include <sstream>
#include <vector>

#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

/// How one launcher names the four numbers.
struct LauncherVariables {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr LauncherVariables kPlain = {"environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr LauncherVariables kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr LauncherVariables kPmi = {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr const char* kSlurm = "Slurm";

class Resolver {
 public:
  explicit Resolver(const Variables& variables) : variables_(variables) {}

  LaunchedRank resolve() {
    const auto plain = read(kPlain), mpi = read(kOpenMpi);
    auto pmi = read_pmi();
    if (mpi && pmi) require_agreement(*mpi, *pmi);
    const bool elastic = has("TORCHELASTIC_RUN_ID");  // may have been started by MPI itself, once a host
    if (plain && mpi && !elastic) require_agreement(*plain, *mpi);
    if (plain && pmi && !elastic) require_agreement(*plain, *pmi);
    if (plain) return name_plain(*plain);
    if (mpi) return name_job(*mpi, "PMIX_NAMESPACE");
    if (pmi) {
      pmi->job = parent_name();
      return *pmi;
    }
    return read_slurm().value_or(LaunchedRank{});
  }

 private:
  bool has(const std::string& name) const { return variables_(name).has_value(); }

  /// Reads a number and records the variable as evidence.
  int number(const std::string& name, LaunchedRank& rank) const {
    const std::string text = variables_(name).value_or("");
    rank.evidence += concat(rank.evidence.empty() ? "" : " ", name, "=", text);
    const auto value = parse_number<int>(text);
    require<UsageError>(value.value_or(-1) >= 0, "environment variable ", name, " must be a number, got \"", text,
                        "\"");
    return *value;
  }

  /// Both or neither; true for both.
  bool has_pair(const char* family, const char* one, const char* other) const {
    const char* const set = has(one) ? one : other;
    const char* const missing = has(one) ? other : one;
    require<UsageError>(has(one) == has(other), "the variables of ", family, " are half set: ", set, " is ",
                        variables_(set).value_or(""), ", but environment variable ", missing, " expected, but not set");
    return has(one);
  }

  std::optional<LaunchedRank> read(const LauncherVariables& family) const {
    if (!has_pair(family.name, family.rank, family.size)) return {};
    LaunchedRank rank;
    rank.launcher = family.name;
    rank.place.rank = number(family.rank, rank);
    rank.place.world_size = number(family.size, rank);
    if (has_pair(family.name, family.local_rank, family.local_size)) {
      rank.place.local_rank = number(family.local_rank, rank);
      rank.place.local_world_size = number(family.local_size, rank);
    } else {
      require<UsageError>(&family == &kPlain, "the variables of ", family.name, " are half set: ", rank.evidence,
                          ", but neither ", family.local_rank, " nor ", family.local_size);
      rank.place.local_rank = rank.place.rank;
      rank.place.local_world_size = rank.place.world_size;
    }
    require_range(rank);
    return rank;
  }

  static void require_range(const LaunchedRank& rank) {
    const RankInfo& place = rank.place;
    require<UsageError>(place.rank < place.world_size && place.local_rank < place.local_world_size &&
                            place.local_world_size <= place.world_size,
                        "the variables of ", rank.launcher, " are out of range: ", rank.evidence);
  }

  static void require_agreement(const LaunchedRank& one, const LaunchedRank& other) {
    require<UsageError>(one.place.rank == other.place.rank && one.place.world_size == other.place.world_size,
                        "the variables of ", one.launcher, " and ", other.launcher,
                        " contradict each other: ", one.evidence, ", but ", other.evidence,
                        "; unset those that are left over");
  }

  /// torchrun's names are those of several launchers.
  LaunchedRank name_plain(LaunchedRank rank) const {
    const bool pod = has("PET_NNODES") || has("KUBERNETES_SERVICE_HOST");
    if (has("TORCHELASTIC_RUN_ID")) {
      rank.launcher = has("DUET_JOB") ? "duet launch" : "torchrun";
    } else if (pod && !has(kPlain.local_rank)) {
      rank.launcher = "Kubernetes (PyTorchJob)";  // a pod is a host of its own
      rank.place.local_rank = 0;
      rank.place.local_world_size = 1;
      rank.place.node_rank = rank.place.rank;
    }
    if (has("GROUP_RANK")) rank.place.node_rank = number("GROUP_RANK", rank);
    return rank;
  }

  LaunchedRank name_job(LaunchedRank rank, const char* name) const {
    if (const auto job = variables_(name)) rank.job = *job;
    return rank;
  }

  /// Slurm's PMI sets only two of MPICH's four variables, and its own besides.
  std::optional<LaunchedRank> read_pmi() const {
    if (has("SLURM_STEP_ID") && !has(kPmi.local_rank) && !has(kPmi.local_size)) return {};
    return read(kPmi);
  }

  /// The process manager that has started all ranks of this host: MPICH gives jobs no name.
  static std::string parent_name() {
    const pid_t parent = ::getppid();
    std::ifstream file(concat("/proc/", parent, "/stat"));
    std::string text;
    std::getline(file, text);
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string field;
    for (int i = 3; i <= 22 && fields >> field; ++i) {  // the 22nd: when it was started
    }
    return concat("pmi-", parent, "-", field);
  }

  /// Tasks on one node of "2(x3),1".
  int tasks_on(int node, const std::string& name, LaunchedRank& rank) const {
    const std::string text = variables_(name).value_or("");
    rank.evidence += concat(" ", name, "=", text);
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) {
      int tasks = 0, times = 1;
      char open = 0, x = 0, close = 0;
      std::istringstream parts(item);
      parts.imbue(std::locale::classic());
      parts >> tasks;
      const bool good = parts && (!(parts >> open) || (open == '(' && parts >> x >> times >> close && x == 'x'));
      require<UsageError>(good && tasks > 0 && times > 0, "environment variable ", name, " is \"", text,
                          "\", expected a list like 2(x3),1");
      if (node < times) return tasks;
      node -= times;
    }
    throw UsageError(
        concat("environment variable ", name, " is \"", text, "\", which has no node ", rank.place.node_rank));
  }

  /// A batch script has most of these variables too, but it is no step; nor is one task a job of ranks.
  std::optional<LaunchedRank> read_slurm() const {
    if (!has("SLURM_STEP_ID") || !has("SLURM_PROCID")) return {};
    const char* const size = has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    has_pair(kSlurm, "SLURM_PROCID", size);
    LaunchedRank rank;
    rank.launcher = kSlurm;
    rank.place.rank = number("SLURM_PROCID", rank);
    rank.place.world_size = number(size, rank);
    if (rank.place.world_size == 1) return {};
    has_pair(kSlurm, "SLURM_PROCID", "SLURM_LOCALID");
    rank.place.local_rank = number("SLURM_LOCALID", rank);
    if (has("SLURM_NODEID")) rank.place.node_rank = number("SLURM_NODEID", rank);
    const char* const tasks = has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
    has_pair(kSlurm, "SLURM_LOCALID", tasks);
    rank.place.local_world_size = tasks_on(rank.place.node_rank, tasks, rank);
    require_range(rank);
    if (const auto job = variables_("SLURM_JOB_ID"))
      rank.job = concat("slurm-", *job, ".", variables_("SLURM_STEP_ID").value_or(""), ".",
                        variables_("SLURM_RESTART_COUNT").value_or("0"));
    return rank;
  }

  const Variables& variables_;
};

}  // namespace

LaunchedRank resolve_rank(const Variables& variables) { return Resolver(variables).resolve(); }

std::string describe(const LaunchedRank& rank) {
  const RankInfo& place = rank.place;
  if (rank.launcher.empty()) return "the only rank: no launcher's variables are set";
  return concat("rank ", place.rank, " of ", place.world_size, ", local rank ", place.local_rank, " of ",
                place.local_world_size, " on node ", place.node_rank, ", by ", rank.launcher, " (", rank.evidence, ")");
}

bool is_launched_rank() { return !resolve_rank().launcher.empty(); }

std::optional<int> launched_rank() noexcept {
  try {
    const LaunchedRank launched = resolve_rank();
    if (!launched.launcher.empty()) return launched.place.rank;
  } catch (const std::exception&) {  // the variables are the failure
  }
  return {};
}

void forget_rank() {
  for (const LauncherVariables& family : {kPlain, kOpenMpi, kPmi})
    for (const char* name : {family.rank, family.size, family.local_rank, family.local_size}) ::unsetenv(name);
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "GROUP_RANK", "SLURM_STEP_ID"})
    ::unsetenv(name);
}

}  // namespace duet::ddp
