#include "ddp/init.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/gloo/load.h"
#include "ddp/group/process_group.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/nccl/load.h"
#include "ddp/shm/shared_segment.h"
#include "ddp/shm/shm_group.h"
#include "ddp/store/file_store.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
#include "ddp/store/store.h"
#include "ddp/store/tcp_store.h"
#include "ddp/tcp/tcp_transport.h"
#include "lib/base/environment.h"
#include "lib/base/fault_point.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

constexpr Milliseconds kLinger{200};
constexpr int kMorePorts = 16;

int number(const std::string& text, const std::string& what) {
  const auto value = parse_number<int>(text);
  require<UsageError>(value.has_value(), what, " must be a number, got \"", text, "\"");
  return *value;
}

/// This rank's rendezvous: where, and under which rank.
struct Rendezvous {
  std::string scheme, place;  // of the URL
  int rank = -1, world_size = -1;
  std::string host;
  int port = -1;
  int more_ports = 0;     // where the first may be taken
  bool one_host = false;  // the launcher says that all ranks are here
  /// Separates runs at the same place.
  std::string run;
};

std::string needed_variable(const char* name) {
  const auto text = environment_variable(name);
  require<UsageError>(text.has_value(),
                      "Error initializing the process group using env:// rendezvous: ", "environment variable ", name,
                      " expected, but not set");
  return *text;
}

/// Takes "rank=0&world_size=2" apart.
void read_query(std::string_view query, const InitOptions& options, Rendezvous& meeting) {
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    require<UsageError>(equals != std::string_view::npos, "init_method ", options.init_method, ": \"", item,
                        "\" is not name=value");
    const std::string_view key = item.substr(0, equals);
    const std::string value(item.substr(equals + 1));
    require<UsageError>(key == "rank" || key == "world_size", "init_method ", options.init_method, ": unknown name ",
                        key);
    require<UsageError>(options.rank < 0 && options.world_size < 0, "The url: ", options.init_method,
                        " has node-specific arguments(rank, world_size) already.");
    (key == "rank" ? meeting.rank : meeting.world_size) = number(value, std::string(key));
  }
}

/// How many rendezvous without an address this process has had.
std::atomic<int> meetings{0};

void read_env(Rendezvous& meeting) {
  const LaunchedRank launched = resolve_rank();
  if (launched.launcher.empty()) {
    if (meeting.rank < 0) needed_variable("RANK");
    if (meeting.world_size < 0) needed_variable("WORLD_SIZE");
  }
  if (meeting.rank < 0) meeting.rank = launched.place.rank;
  if (meeting.world_size < 0) meeting.world_size = launched.place.world_size;
  if (meeting.world_size == 1) return;
  const bool given = environment_variable("MASTER_ADDR") || environment_variable("MASTER_PORT");
  if (!given && !launched.job.empty()) {
    const RankInfo& place = launched.place;
    require<UsageError>(place.local_world_size == place.world_size, "the job is on several hosts (", describe(launched),
                        "): environment variable MASTER_ADDR expected, but not set");
    meeting.scheme = "job";
    meeting.place = launched.job;
    return;
  }
  meeting.host = needed_variable("MASTER_ADDR");
  meeting.port = number(needed_variable("MASTER_PORT"), "environment variable MASTER_PORT");
  if (meeting.run.empty()) meeting.run = launched.job;
  meeting.run += concat("|", meeting.port);
  meeting.one_host = environment_variable("LOCAL_WORLD_SIZE") == std::to_string(meeting.world_size);
  // There torchrun's own store listens.
  if (environment_variable("TORCHELASTIC_USE_AGENT_STORE") == "True")
    meeting.more_ports = std::clamp(65535 - meeting.port, 0, kMorePorts);
}

Rendezvous read_method(const InitOptions& options) {
  const std::string& url = options.init_method;
  const std::size_t colon = url.find("://");
  require<UsageError>(colon != std::string::npos, "init_method \"", url,
                      "\" is not env://, tcp://host:port or file://path");
  Rendezvous meeting;
  meeting.scheme = url.substr(0, colon);
  const std::size_t query = url.find('?', colon);
  meeting.place = url.substr(colon + 3, query == std::string::npos ? query : query - colon - 3);
  meeting.run = !options.run_id.empty() ? options.run_id : environment_variable("TORCHELASTIC_RUN_ID").value_or("");
  if (const auto restarts = environment_variable("TORCHELASTIC_RESTART_COUNT"); restarts && *restarts != "0")
    meeting.run += concat("|", *restarts);
  meeting.rank = options.rank;
  meeting.world_size = options.world_size;
  if (query != std::string::npos) read_query(std::string_view(url).substr(query + 1), options, meeting);
  if (meeting.scheme == "env") {
    read_env(meeting);
    return meeting;
  }
  require<UsageError>(meeting.scheme == "tcp" || meeting.scheme == "file", "No rendezvous handler for ", meeting.scheme,
                      "://");
  const std::string prefix = concat("Error initializing the process group using ", meeting.scheme, ":// rendezvous: ");
  require<UsageError>(meeting.rank >= 0, prefix, "rank parameter missing");
  require<UsageError>(meeting.world_size >= 0, prefix, "world size parameter missing");
  require<UsageError>(!meeting.place.empty(), prefix, meeting.scheme == "tcp" ? "port number missing" : "path missing");
  if (meeting.scheme == "file") return meeting;
  const std::size_t port = meeting.place.rfind(':');
  require<UsageError>(port != std::string::npos && port + 1 < meeting.place.size(), prefix, "port number missing");
  meeting.host = meeting.place.substr(0, port);
  if (meeting.host.size() > 2 && meeting.host.front() == '[' && meeting.host.back() == ']')  // IPv6, as in [::1]:29500
    meeting.host = meeting.host.substr(1, meeting.host.size() - 2);
  meeting.port = number(meeting.place.substr(port + 1), "port");
  return meeting;
}

/// Waits until all ranks have set their key.
void store_barrier(Store& store, const char* name, const char* what, const Rendezvous& meeting, Milliseconds timeout) {
  const std::vector<std::string> keys = rank_keys(name, meeting.world_size);
  try {
    store.wait(keys, timeout);
  } catch (const CommError&) {
    const std::string missing = rank_names(ranks_without_key(store, keys));
    if (missing.empty()) throw;
    // The rank that serves the store lingers, so that the others report it too.
    if (meeting.rank == 0) std::this_thread::sleep_for(kLinger);
    throw CommError(concat(missing, " of ", meeting.world_size, " did not ", what, " within ", timeout.count(),
                           " ms (waiting on rank ", meeting.rank, ")"));
  }
}

/// Registers this rank, finds another process that claims the same rank, and waits for all.
void join(Store& store, const Rendezvous& meeting, Milliseconds timeout) {
  const std::string size = std::to_string(meeting.world_size);
  const std::string other = store.compare_set("world_size", "", size);
  require<CommError>(other == size, "rank ", meeting.rank, " counts ", size, " ranks, but another rank counts ", other);
  store.set(concat("host/", meeting.rank), host_identity());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string self = concat("process ", ::getpid(), " on ", host.data());
  const std::string holder = store.compare_set(concat("joined/", meeting.rank), "", self);
  require<CommError>(
      holder == self, "two processes claim to be rank ", meeting.rank, ": ", holder, ", and ", self,
      meeting.scheme == "file" ? "; or the file is left over: give every run a new one, or a run_id" : "");
  store_barrier(store, "joined", "join", meeting, timeout);
}

/// The first rank that cannot share memory with this one; -1: there is none.
int rank_elsewhere(Store& store, const Rendezvous& meeting) {
  const std::vector<std::string> hosts = store.multi_get(rank_keys("host", meeting.world_size));
  const auto other = std::find_if(hosts.begin(), hosts.end(), [](const auto& host) { return host != host_identity(); });
  return other == hosts.end() ? -1 : static_cast<int>(other - hosts.begin());
}

/// What NCCL's sockets use: the interface that was asked for; where all ranks are on this host, none that others reach.
std::string nccl_interface(Store& store, const Rendezvous& meeting) {
  if (const auto asked = environment_variable(kInterfaceVariable)) return *asked;
  return rank_elsewhere(store, meeting) < 0 ? loopback_interface() : "";
}

/// Over the network, and within hosts over memory unless only the network was asked for.
std::unique_ptr<ProcessGroup> connect_hosts(const InitOptions& options, const Rendezvous& meeting,
                                            const std::shared_ptr<Store>& store, const GlooOptions& gloo) {
  const int rank = meeting.rank, size = meeting.world_size;
  auto transport =
      options.backend == "gloo"
          ? make_gloo_transport(*store, rank, size, gloo)
          : make_tcp_transport(*store, rank, size, {.address = gloo.address, .connect_timeout = gloo.connect_timeout});
  const std::vector<std::string> names = store->multi_get(rank_keys("host", meeting.world_size));
  std::vector<int> hosts;  // by the first rank on each
  for (const std::string& name : names)
    hosts.push_back(static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin()));
  const std::set<int> different(hosts.begin(), hosts.end());
  if (options.backend == "auto" && different.size() > 1 && different.size() < hosts.size())
    transport = make_multi_host_transport(std::move(transport), store, std::move(hosts), options.join_timeout);
  return make_transport_group(std::move(transport), gloo.group);
}

/// Null if the ranks cannot share memory and may do without.
std::unique_ptr<ProcessGroup> connect_shared(const InitOptions& options, const Rendezvous& meeting,
                                             const std::shared_ptr<Store>& store) {
  const bool needed = options.backend == "shm";
  if (!needed && options.backend != "auto") return nullptr;
  const int elsewhere = rank_elsewhere(*store, meeting);
  require<CommError>(!needed || elsewhere < 0, "backend shm: rank ", elsewhere,
                     " is on another host, or in another container, than rank ", meeting.rank);
  if (elsewhere >= 0) return nullptr;
  try {
    return make_shm_group(store, meeting.rank, meeting.world_size, options.join_timeout, {.timeout = options.timeout});
  } catch (const CommError&) {  // on all ranks alike
    if (needed) throw;
    return nullptr;
  }
}

std::unique_ptr<ProcessGroup> connect(const InitOptions& options, const Rendezvous& meeting) {
  const std::shared_ptr<FlightRecorder>& record = flight_recorder();
  const std::uint32_t group_number = record->begin_group();
  record->enter(Phase::joining);
  std::shared_ptr<Store> store;
  GlooOptions gloo;
  std::optional<MeetingFolder> folder;
  if (meeting.scheme == "job") {
    folder.emplace(meeting.place, meetings++);
    store = std::make_shared<FileStore>(folder->store(), meeting.run, 0, options.join_timeout);
  } else if (meeting.scheme == "file") {
    store = std::make_shared<FileStore>(meeting.place, meeting.run, meeting.world_size, options.join_timeout);
  } else {
    const auto tcp = std::make_shared<TcpStore>(TcpStoreOptions{.host = meeting.host,
                                                                .port = meeting.port,
                                                                .more_ports = meeting.more_ports,
                                                                .run = meeting.run,
                                                                .secret = given_secret(),
                                                                .one_host = meeting.one_host,
                                                                .serve = meeting.rank == 0,
                                                                .timeout = options.join_timeout});
    gloo.address = tcp->local_address();
    store = tcp;
  }
  if (const auto interface = environment_variable(kInterfaceVariable))
    gloo.address = address_of(*interface, gloo.address);
  const auto init = std::make_shared<PrefixStore>(store, "duet/init/");
  join(*init, meeting, options.join_timeout);
  gloo.connect_timeout = options.join_timeout;
  gloo.group.timeout = options.timeout;
  fault_point("init");
  std::unique_ptr<ProcessGroup> group;
  if (options.backend == "nccl") {
    const LaunchedRank launched = resolve_rank();
    const Device device = options.device.value_or(
        Device{DeviceKind::cuda, launched.launcher.empty() ? meeting.rank : launched.place.local_rank});
    group = make_nccl_group(init, meeting.rank, meeting.world_size,
                            {.device = device,
                             .connect_timeout = options.join_timeout,
                             .group = {.timeout = options.timeout},
                             .interface = nccl_interface(*init, meeting)});
  } else {
    group = connect_shared(options, meeting, init);
  }
  if (group == nullptr) group = connect_hosts(options, meeting, init, gloo);
  init->set(concat("ready/", meeting.rank), "");
  store_barrier(*init, "ready", "connect", meeting, options.join_timeout);
  group->set_store(std::move(store));
  group->set_flight_recorder(record, group_number);
  record->enter(Phase::ready);
  return group;
}

}  // namespace

RankInfo rank_info() { return resolve_rank().place; }

std::unique_ptr<ProcessGroup> init_process_group(const InitOptions& asked) {
  InitOptions options = asked;
  const auto fill_in = [](Milliseconds& timeout, const char* variable, Milliseconds otherwise) {
    if (timeout.count() != 0) return;
    const auto given = environment_variable(variable);
    timeout = given ? Milliseconds(number(*given, variable)) : otherwise;
  };
  fill_in(options.join_timeout, kJoinTimeoutVariable, kStoreTimeout);
  fill_in(options.timeout, kTimeoutVariable, kGroupTimeout);
  constexpr std::array kBackends = {"auto", "shm", "tcp", "gloo", "nccl", "solo"};
  require<UsageError>(std::find(kBackends.begin(), kBackends.end(), options.backend) != kBackends.end(),
                      "Invalid backend: '", options.backend, "'");
  require<UsageError>(options.timeout.count() > 0 && options.join_timeout.count() > 0,
                      "timeouts must be positive, got ", options.timeout.count(), " ms and ",
                      options.join_timeout.count(), " ms");
  const Rendezvous meeting = read_method(options);
  require<UsageError>(meeting.world_size >= 1, "world size must be at least 1, got ", meeting.world_size);
  require<UsageError>(meeting.rank >= 0 && meeting.rank < meeting.world_size, "Invalid rank ", meeting.rank,
                      ", rank should be in the interval [0, ", meeting.world_size - 1, "]");
  require<UsageError>(options.backend != "solo" || meeting.world_size == 1, "backend solo has one rank, got ",
                      meeting.world_size);
  if (meeting.world_size == 1) return std::make_unique<SoloGroup>();
  return connect(options, meeting);
}

}  // namespace duet::ddp
