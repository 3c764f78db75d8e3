#include "ddp/init.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ddp/connect.h"
#include "ddp/elastic_group.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/shm/shared_segment.h"
#include "ddp/store/file_store.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "lib/base/environment.h"
#include "lib/base/fault_point.h"
#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

constexpr Milliseconds kLinger{200};
constexpr const char* kLoopback = "127.0.0.1";

constexpr int kMorePorts = 16;
constexpr std::size_t kNameDigits = 32;  // hex digits of a run's digest, as its name may be longer than a folder's

/// This rank's rendezvous: where, and under which rank.
struct Rendezvous {
  /// Parts of the URL. Under env:// `place`, where it is set, names the private folder in which rank 0 publishes its
  /// port.
  std::string scheme, place;
  int rank = -1, world_size = -1;
  std::string host;
  int port = -1;
  int more_ports = 0;     // where the first may be taken
  bool one_host = false;  // the launcher says that all ranks are here
  /// Separates runs at the same place.
  std::string run;
};

/// The number that a variable or option holds; UsageError names it as `what`.
int number_of(const std::string& text, const std::string& what) {
  const auto value = parse_number<int>(text);
  require<UsageError>(value.has_value(), what, " must be a number, got \"", text, "\"");
  return *value;
}

std::string needed_variable(const char* name) {
  const auto text = environment_variable(name);
  require<UsageError>(
      text.has_value(), "Error initializing the process group using env:// rendezvous: ", "environment variable ", name,
      " expected, but not set: a launcher sets it, such as duet launch -n 2 PROGRAM, torchrun or mpirun");
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
    (key == "rank" ? meeting.rank : meeting.world_size) = number_of(value, std::string(key));
  }
}

void read_env(Rendezvous& meeting) {
  const LaunchedRank launched = resolve_rank();
  if (launched.launcher.empty()) {
    if (meeting.rank < 0) needed_variable("RANK");
    if (meeting.world_size < 0) needed_variable("WORLD_SIZE");
  }
  if (meeting.rank < 0) meeting.rank = launched.place.rank;
  if (meeting.world_size < 0) meeting.world_size = launched.place.world_size;
  if (meeting.world_size == 1) return;
  const bool has_host = environment_variable("MASTER_ADDR").has_value();
  const bool has_port = environment_variable("MASTER_PORT").has_value();
  const bool several = launched.place.local_world_size != launched.place.world_size;
  const bool at_first_host = !has_host && several && !launched.first_host.empty();
  if (!has_host && !has_port && !launched.job.empty() && !at_first_host) {
    require<UsageError>(!several, "the job is on several hosts (", describe(launched),
                        "): environment variable MASTER_ADDR expected, but not set");
    meeting.scheme = "job";
    meeting.place = launched.job;
    return;
  }
  meeting.host = at_first_host ? launched.first_host
                               : parse_host(needed_variable("MASTER_ADDR"), "environment variable MASTER_ADDR");
  const PortRange range = port_range();
  meeting.port = at_first_host && !has_port
                     ? (range.limits() ? range.first : TcpStoreOptions().port)
                     : number_of(needed_variable("MASTER_PORT"), "environment variable MASTER_PORT");
  if (meeting.run.empty()) meeting.run = launched.job;
  meeting.run += concat("|", meeting.port);
  meeting.one_host = environment_variable("LOCAL_WORLD_SIZE") == std::to_string(meeting.world_size);
  if (environment_variable("TORCHELASTIC_USE_AGENT_STORE") != "True") return;
  // There torchrun's own store listens.
  if (meeting.one_host)
    meeting.place = concat("torchrun-", sha256_hex(std::as_bytes(std::span(meeting.run))).substr(0, kNameDigits));
  else if (const PortRange ports = port_range(); ports.limits())
    std::tie(meeting.port, meeting.more_ports) = std::pair(ports.first, ports.last - ports.first);
  else
    meeting.more_ports = std::clamp(65535 - meeting.port, 0, kMorePorts);
}

/// Reads options.init_method. Throws UsageError (PyTorch's texts).
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
  require<UsageError>(meeting.place.find(':') != std::string::npos, prefix, "port number missing");
  const HostAndPort place = parse_endpoint(meeting.place, "init_method tcp://", true);
  meeting.host = place.host;
  meeting.port = number_of(place.port, "port");
  return meeting;
}

/// How many rendezvous without an address this process has had.
std::atomic<int> meetings{0};

void store_barrier(Store& store, const char* name, const char* act, const Rendezvous& meeting, Milliseconds timeout) {
  const std::vector<std::string> keys = rank_keys(name, meeting.world_size);
  try {
    await_ranks(store, keys, meeting.rank, act, timeout);
  } catch (const CommError&) {
    // The rank that serves the store lingers, so that the others report it too.
    if (meeting.rank == 0 && !ranks_without_key(store, keys).empty()) std::this_thread::sleep_for(kLinger);
    throw;
  }
}

void remark(const InitOptions& options, const std::string& text) {
  if (options.on_remark)
    options.on_remark(text);
  else
    std::fprintf(stderr, "%s\n", text.c_str());
}

/// Registers this rank, finds another process that claims the same rank, and waits for all.
void join(Store& store, const Rendezvous& meeting, const InitOptions& options, const std::string& address) {
  const std::string size = std::to_string(meeting.world_size);
  const std::string other = store.compare_set("world_size", "", size);
  require<CommError>(other == size, "rank ", meeting.rank, " counts ", size, " ranks, but another rank counts ", other);
  store.set(concat("host/", meeting.rank), host_identity());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string self = concat("process ", ::getpid(), " on ", host.data(), address.empty() ? "" : " at ", address);
  const std::string holder = store.compare_set(concat("joined/", meeting.rank), "", self);
  require<CommError>(
      holder == self, "two processes claim to be rank ", meeting.rank, ": ", holder, ", and ", self,
      meeting.scheme == "file" ? "; or the file is left over: give every run a new one, or a run_id" : "");
  store_barrier(store, "joined", "join", meeting, options.join_timeout);
  if (!options.verbose || meeting.rank != 0) return;
  const std::vector<std::string> joined = store.multi_get(rank_keys("joined", meeting.world_size));
  for (std::size_t rank = 0; rank < joined.size(); ++rank)
    remark(options, concat("rank ", rank, " joined: ", printable(joined[rank])));
}

/// The first rank that cannot share memory with this one; -1: there is none.
int rank_elsewhere(Store& store, const Rendezvous& meeting) {
  const std::vector<std::string> hosts = store.multi_get(rank_keys("host", meeting.world_size));
  const std::string own = host_identity();  // once: it asks the system
  const auto other = std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host != own; });
  return other == hosts.end() ? -1 : static_cast<int>(other - hosts.begin());
}

/// What NCCL's sockets use: the interface that was asked for; where all ranks are on this host, none that others reach.
std::string nccl_interface(Store& store, const Rendezvous& meeting) {
  const bool one_host = rank_elsewhere(store, meeting) < 0;
  const PortRange ports = port_range();
  require<UsageError>(one_host || !ports.limits(), "backend nccl takes ports of its own between hosts, not ",
                      describe(ports), "; expected backend tcp");
  if (const auto asked = environment_variable(kInterfaceVariable)) return *asked;
  return one_host ? loopback_interface() : "";
}

/// Numbers of the ranks' hosts: that of the first rank on each. Empty where all are on one, or each has one of its own.
std::vector<int> shared_hosts(Store& store, const Rendezvous& meeting) {
  const std::vector<std::string> names = store.multi_get(rank_keys("host", meeting.world_size));
  std::vector<int> hosts;
  for (const std::string& name : names)
    hosts.push_back(static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin()));
  const std::set<int> different(hosts.begin(), hosts.end());
  return different.size() > 1 && different.size() < hosts.size() ? hosts : std::vector<int>{};
}

/// Over shared memory where it can be had, else over tcp, and within hosts over memory.
std::unique_ptr<ProcessGroup> connect_best(ConnectOptions options, const Rendezvous& meeting,
                                           const std::shared_ptr<Store>& store) {
  if (rank_elsewhere(*store, meeting) < 0) return connect_on_host(options, store, meeting.rank, meeting.world_size);
  options.backend = "tcp";
  options.hosts = shared_hosts(*store, meeting);
  return connect(options, store, meeting.rank, meeting.world_size);
}

/// Where this rank is reached by ranks on other hosts, as far as the store cannot tell.
std::string own_address(Store& store, const Rendezvous& meeting, Milliseconds timeout) {
  if (rank_elsewhere(store, meeting) < 0) return kLoopback;
  const auto master = environment_variable("MASTER_ADDR");
  require<UsageError>(master.has_value(), "the ranks are on several hosts: environment variable MASTER_ADDR or ",
                      kInterfaceVariable, " expected, but not set");
  return address_towards(*master, timeout);
}

std::shared_ptr<Store> open_store(const InitOptions& options, const Rendezvous& meeting,
                                  std::optional<MeetingFolder>& folder, std::string& address) {
  if (meeting.scheme == "job") {
    folder.emplace(meeting.place, meetings++);
    return std::make_shared<FileStore>(folder->store(), meeting.run, 0, options.join_timeout);
  }
  if (meeting.scheme == "file")
    return std::make_shared<FileStore>(meeting.place, meeting.run, meeting.world_size, options.join_timeout);
  const bool elastic = environment_variable(kElasticVariable).has_value();
  TcpStoreOptions tcp_options{.host = meeting.host,
                              .port = meeting.port,
                              .more_ports = meeting.more_ports,
                              .run = meeting.run,
                              .secret = given_secret(),
                              .one_host = meeting.one_host,
                              .early = elastic,
                              .serve = meeting.rank == 0 && !elastic,  // else a launcher
                              .ranks = meeting.world_size,
                              .timeout = options.join_timeout};
  if (!meeting.place.empty() && meeting.scheme == "env") {
    folder.emplace(meeting.place, meetings++);
    tcp_options.port = 0;
    tcp_options.port_store = std::make_shared<FileStore>(folder->store(), meeting.run, 0, options.join_timeout);
  }
  if (const auto reached = environment_variable(kStoreEndpointVariable); reached && meeting.rank == 0) {
    const HostAndPort place = parse_endpoint(*reached, concat("environment variable ", kStoreEndpointVariable), true);
    tcp_options.reached_host = place.host;
    tcp_options.reached_port = number_of(place.port, kStoreEndpointVariable);
  }
  const auto tcp = std::make_shared<TcpStore>(tcp_options);
  address = tcp->local_address();
  return tcp;
}

/// `address`: this rank's, where others reach it; empty: still to be found.
std::unique_ptr<ProcessGroup> join_group(const InitOptions& options, const Rendezvous& meeting,
                                         std::shared_ptr<Store> store, std::string address) {
  const auto init = std::make_shared<PrefixStore>(store, "duet/init/");
  if (const auto interface = environment_variable(kInterfaceVariable))
    address = address_of(*interface, address.empty() ? kLoopback : address);
  join(*init, meeting, options, address);
  if (auto* const tcp = dynamic_cast<TcpStore*>(store.get())) tcp->accept_no_more();
  if (address.empty()) address = own_address(*init, meeting, options.join_timeout);
  ConnectOptions over{.backend = options.backend,
                      .connect_timeout = options.join_timeout,
                      .group = {.timeout = options.timeout, .whole_job = options.subgroup.empty()},
                      .address = std::move(address)};
  fault_point("init");
  if (options.backend == "nccl") {
    const LaunchedRank launched = resolve_rank();
    over.device = options.device.value_or(
        Device{DeviceKind::cuda, launched.launcher.empty() ? meeting.rank : launched.place.local_rank});
    over.interface = nccl_interface(*init, meeting);
  }
  const int elsewhere = options.backend == "shm" ? rank_elsewhere(*init, meeting) : -1;
  require<CommError>(elsewhere < 0, "backend shm: rank ", elsewhere,
                     " is on another host, or in another container, than rank ", meeting.rank);
  auto group = options.backend == "auto" ? connect_best(over, meeting, init)
                                         : connect(over, init, meeting.rank, meeting.world_size);
  init->set(concat("ready/", meeting.rank), "");
  store_barrier(*init, "ready", "connect", meeting, options.join_timeout);
  leave_last(*init, "through", meeting.rank, meeting.world_size);
  group->set_store(std::move(store));
  return group;
}

/// Checks the options, with defaults filled in.
InitOptions complete(InitOptions options) {
  const auto fill_in = [](Milliseconds& timeout, const char* variable, Milliseconds otherwise) {
    if (timeout.count() != 0) return;
    const auto given = environment_variable(variable);
    timeout = given ? Milliseconds(number_of(*given, variable)) : otherwise;
  };
  fill_in(options.join_timeout, kJoinTimeoutVariable, kStoreTimeout);
  fill_in(options.timeout, kTimeoutVariable, kGroupTimeout);
  options.verbose = options.verbose || environment_variable(kVerboseVariable);
  check_backend(options.backend, false);
  require<UsageError>(options.timeout.count() > 0 && options.join_timeout.count() > 0,
                      "timeouts must be positive, got ", options.timeout.count(), " ms and ",
                      options.join_timeout.count(), " ms");
  return options;
}

/// Whether this is the group of all ranks of an elastic job.
bool is_elastic(const InitOptions& options, const Rendezvous& meeting) {
  if (!environment_variable(kElasticVariable)) return false;
  require<UsageError>(meeting.scheme == "env" && options.subgroup.empty() &&
                          (options.backend == "auto" || options.backend == "shm" || options.backend == "tcp" ||
                           options.backend == "nccl"),
                      "an elastic job has one process group: init_method env://, backend auto, shm, tcp or nccl; got ",
                      options.init_method, ", ", options.backend);
  return true;
}

/// The group of all ranks of an elastic job, which have a file for their store where they are on one host.
std::unique_ptr<ProcessGroup> meet_elastic(const InitOptions& options, const Rendezvous& meeting) {
  ElasticOptions elastic{.rank = meeting.rank,
                         .ranks = meeting.world_size,
                         .backend = options.backend,
                         .timeout = options.timeout,
                         .join_timeout = options.join_timeout};
  if (options.backend == "nccl") {
    const std::string process = needed_variable(kElasticProcessVariable);  // a spare one has a GPU of its own, too
    elastic.device = options.device.value_or(Device{DeviceKind::cuda, number_of(process, kElasticProcessVariable)});
    elastic.interface = environment_variable(kInterfaceVariable).value_or(loopback_interface());
  }
  const std::string store = environment_variable(kElasticStoreVariable).value_or("");
  if (store.starts_with("/")) return make_elastic_group(elastic);
  require<UsageError>(options.backend != "shm" && options.backend != "nccl", "backend ", options.backend,
                      ": the elastic job is on several hosts, expected tcp");
  std::optional<MeetingFolder> folder;
  elastic.backend = "tcp";
  elastic.host = number_of(needed_variable("GROUP_RANK"), "environment variable GROUP_RANK");
  elastic.store = std::make_shared<PrefixStore>(open_store(options, meeting, folder, elastic.address), store);
  if (const auto interface = environment_variable(kInterfaceVariable))
    elastic.address = address_of(*interface, elastic.address);
  return make_elastic_group(elastic);
}

/// The group of these ranks; `store` is null where they have none yet.
std::unique_ptr<ProcessGroup> meet(const InitOptions& options, const Rendezvous& meeting,
                                   std::shared_ptr<Store> store) {
  hide_secret();
  leave_uncaught_errors();
  require<UsageError>(meeting.world_size >= 1, "world size must be at least 1, got ", meeting.world_size);
  require<UsageError>(meeting.rank >= 0 && meeting.rank < meeting.world_size, "Invalid rank ", meeting.rank,
                      ", rank should be in the interval [0, ", meeting.world_size - 1, "]");
  require<UsageError>(options.backend != "solo" || meeting.world_size == 1, "backend solo has one rank, got ",
                      meeting.world_size);
  if (meeting.world_size == 1) return std::make_unique<SoloGroup>();
  const std::shared_ptr<FlightRecorder>& record = flight_recorder();
  const std::uint32_t number = options.subgroup.empty() ? record->begin_group() : subgroup_number(0, options.subgroup);
  record->enter(Phase::joining, options.subgroup.empty() ? meeting.world_size : 0);
  std::optional<MeetingFolder> folder;  // kept until all have met in it
  std::string address;
  if (store == nullptr && !is_elastic(options, meeting)) store = open_store(options, meeting, folder, address);
  auto group = is_elastic(options, meeting) ? meet_elastic(options, meeting)
                                            : join_group(options, meeting, std::move(store), std::move(address));
  group->set_flight_recorder(record, number);
  record->enter(Phase::ready);
  return group;
}

}  // namespace

RankInfo rank_info() { return resolve_rank().place; }

std::unique_ptr<ProcessGroup> init_process_group(const InitOptions& asked) {
  const InitOptions options = complete(asked);
  return meet(options, read_method(options), nullptr);
}

std::unique_ptr<ProcessGroup> init_process_group(std::shared_ptr<Store> store, int rank, int world_size,
                                                 const InitOptions& options) {
  require<UsageError>(store != nullptr, "init_process_group: there is no store");
  Rendezvous meeting;
  meeting.rank = rank;
  meeting.world_size = world_size;
  // Keys of its own: the store may have served a group before, whose ranks may have left some.
  const std::string prefix = concat("duet/group/", store->next_group(rank), "/");
  return meet(complete(options), meeting, std::make_shared<PrefixStore>(std::move(store), prefix, world_size));
}

}  // namespace duet::ddp
