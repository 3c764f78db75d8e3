#include "ddp/launch/rank_resolver.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <locale>
#include <sstream>
#include <vector>

#include "lib/base/environment.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

constexpr const LauncherVariables& kPlain = kLaunchers[0];

std::vector<std::string> words(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// "n01" of "n[01-03,7],m2".
std::string first_host(const std::string& list) {
  std::string host;
  bool inside = false, taken = false;
  for (const char byte : list) {
    if (byte == ',' && !inside) break;
    if (byte == '[' || byte == ']')
      inside = byte == '[', taken = false;
    else if (inside && (byte == ',' || byte == '-'))
      taken = true;
    else if (!taken)
      host += byte;
  }
  return host;
}

class Resolver {
 public:
  explicit Resolver(const Variables& variables) : variables_(variables) {}

  LaunchedRank resolve() const {
    std::vector<Found> all;
    for (const LauncherVariables& row : kLaunchers) {
      if (row.schedules && !all.empty() && all[0].is_placed) continue;  // a scheduler's only help to place a rank
      if (const auto found = read(row, all.empty())) all.push_back(*found);
    }
    if (all.empty()) return {};
    // MPI may have started torchrun itself, once on each host.
    const bool elastic = has("TORCHELASTIC_RUN_ID") && all[0].row == &kPlain;
    for (std::size_t first = elastic ? 1 : 0, other = first + 1; other < all.size(); ++other)
      if (!all[other].row->schedules) require_agreement(all[first].rank, all[other].rank);
    if (all[0].row == &kPlain) name_plain(all[0]);
    return placed(all).rank;
  }

 private:
  struct Found {
    const LauncherVariables* row;
    LaunchedRank rank{};
    bool is_placed = false;  // on its host
  };

  bool has(const std::string& name) const { return variables_(name).has_value(); }

  /// The first name that is set; empty: none is.
  std::string first_set(const char* names) const {
    for (const std::string& name : words(names))
      if (has(name)) return name;
    return {};
  }

  /// Reads a number and records the variable as evidence.
  int number(const std::string& name, LaunchedRank& rank) const {
    const std::string text = variables_(name).value_or("");
    rank.evidence += concat(rank.evidence.empty() ? "" : " ", name, "=", text);
    const auto value = parse_number<int>(text);
    require<UsageError>(value.value_or(-1) >= 0, "environment variable ", name, " must be a number, got \"", text,
                        "\"");
    return *value;
  }

  static std::string half_set(const LauncherVariables& row, const std::string& evidence, const char* missing) {
    return concat("the variables of ", row.name, " are half set: ", evidence, ", but environment variable ",
                  words(missing)[0], " expected, but not set");
  }

  /// Throws if half of the variables are set, unless another launcher has set all of its own.
  std::optional<Found> read(const LauncherVariables& row, bool is_first) const {
    if (*row.mark != '\0' && !has(row.mark)) return {};
    Found found{&row, {.launcher = row.name}};
    LaunchedRank& rank = found.rank;
    const std::string own = first_set(row.rank), size = first_set(row.size);
    if (!own.empty()) rank.place.rank = number(own, rank);
    if (!size.empty()) rank.place.world_size = number(size, rank);
    if (own.empty() || size.empty()) {
      require<UsageError>(!is_first || rank.evidence.empty(),
                          half_set(row, rank.evidence, own.empty() ? row.rank : row.size));
      return {};
    }
    found.is_placed = read_place(row, rank);
    // What a scheduler says of a single task: Slurm's PMI, too, which sets only two of MPICH's variables.
    if (rank.place.world_size == 1 && (row.schedules || (!found.is_placed && &row != &kPlain))) return {};
    const RankInfo& place = rank.place;
    require<UsageError>(place.rank < place.world_size && place.local_rank < place.local_world_size &&
                            place.local_world_size <= place.world_size,
                        "the variables of ", row.name, " are out of range: ", rank.evidence);
    for (const std::string& name : words(row.job))
      if (const auto part = variables_(name)) rank.job += (rank.job.empty() ? "" : ".") + *part;
    if (*row.job == '\0' && &row != &kPlain) rank.job = parent_name();
    rank.first_host = first_host(variables_(first_set(row.hosts)).value_or(""));
    return found;
  }

  /// False if the variables don't say which rank of its host this is.
  bool read_place(const LauncherVariables& row, LaunchedRank& rank) const {
    RankInfo& place = rank.place;
    const std::string local = first_set(row.local_rank), size = first_set(row.local_size), node = first_set(row.node),
                      tasks = first_set(row.tasks), nodes = first_set(row.nodes);
    if (!node.empty()) place.node_rank = number(node, rank);
    if (local.empty()) return false;
    const int local_rank = number(local, rank);
    int ranks = 0;
    if (!size.empty())
      ranks = number(size, rank);
    else if (!tasks.empty() && !node.empty())
      ranks = tasks_on(place.node_rank, tasks, rank);
    else if (const int hosts = nodes.empty() ? 0 : number(nodes, rank); hosts > 0 && place.world_size % hosts == 0)
      ranks = place.world_size / hosts;
    else
      return false;
    place.local_rank = local_rank;
    place.local_world_size = ranks;
    return true;
  }

  static bool agree(const LaunchedRank& one, const LaunchedRank& other) {
    return one.place.rank == other.place.rank && one.place.world_size == other.place.world_size;
  }

  static void require_agreement(const LaunchedRank& one, const LaunchedRank& other) {
    require<UsageError>(agree(one, other), "the variables of ", one.launcher, " and ", other.launcher,
                        " contradict each other: ", one.evidence, ", but ", other.evidence,
                        "; unset those that are left over");
  }

  /// torchrun's names are those of several launchers.
  void name_plain(Found& found) const {
    LaunchedRank& rank = found.rank;
    const bool pod = has("PET_NNODES") || has("KUBERNETES_SERVICE_HOST");
    if (has("TORCHELASTIC_RUN_ID")) {
      rank.launcher = has("DUET_JOB") ? "duet launch" : "torchrun";
    } else if (pod && !has(kPlain.local_rank)) {
      rank.launcher = "Kubernetes (PyTorchJob)";  // a pod is a host of its own
      found.is_placed = true;
      if (!has(kPlain.node)) rank.place.node_rank = rank.place.rank;
    }
  }

  /// The first, with its place on its host, which another launcher may know if it has started the same ranks.
  Found placed(const std::vector<Found>& all) const {
    Found first = all[0];
    if (first.is_placed) return first;
    const bool plain = first.row == &kPlain;
    for (const Found& other : all) {
      if (!other.is_placed || !agree(first.rank, other.rank)) continue;
      if (!plain) return other;
      first.rank.place = other.rank.place;
      first.rank.evidence += " " + other.rank.evidence;
      return first;
    }
    const LauncherVariables& row = *first.row;
    const bool has_local = !first_set(row.local_rank).empty();
    const char* const missing = !has_local                     ? row.local_rank
                                : *row.local_size != '\0'      ? row.local_size
                                : first_set(row.tasks).empty() ? row.tasks
                                                               : row.node;
    require<UsageError>(plain && !has_local && first_set(row.local_size).empty(),
                        half_set(row, first.rank.evidence, missing));
    first.rank.place.local_rank = first.rank.place.rank;
    first.rank.place.local_world_size = first.rank.place.world_size;
    return first;
  }

  /// The process manager that has started all ranks of this host.
  static std::string parent_name() {
    const pid_t parent = ::getppid();
    const std::string text = first_line(concat("/proc/", parent, "/stat"));
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
  for (const LauncherVariables& row : kLaunchers)
    for (const char* names : {row.rank, row.size, row.local_rank, row.local_size, row.mark})
      for (const std::string& name : words(names)) ::unsetenv(name.c_str());
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", kPlain.node})
    ::unsetenv(name);
}

}  // namespace duet::ddp
