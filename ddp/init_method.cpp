#include "ddp/init_method.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "ddp/launch/rank_resolver.h"
#include "ddp/store/network.h"
#include "lib/base/environment.h"
#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

constexpr int kMorePorts = 16;
constexpr std::size_t kNameDigits = 32;  // of a run's digest: its name may be longer than a folder's

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
  meeting.port = number_of(needed_variable("MASTER_PORT"), "environment variable MASTER_PORT");
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

}  // namespace

std::optional<std::pair<std::string, std::string>> split_endpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return {};
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {{host, text.substr(colon + 1)}};
}

int number_of(const std::string& text, const std::string& what) {
  const auto value = parse_number<int>(text);
  require<UsageError>(value.has_value(), what, " must be a number, got \"", text, "\"");
  return *value;
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
  const auto place = split_endpoint(meeting.place);
  require<UsageError>(place.has_value(), prefix, "port number missing");
  meeting.host = place->first;
  meeting.port = number_of(place->second, "port");
  return meeting;
}

}  // namespace duet::ddp
