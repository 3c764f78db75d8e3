#include "ddp/launch/rank_environment.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "ddp/group/flight_recorder.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_processes.h"
#include "ddp/store/connection.h"
#include "ddp/store/secret.h"
#include "ddp/store/store.h"
#include "lib/base/environment.h"
#include "lib/base/recovery.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

extern "C" char** environ;

namespace duet::ddp {
using boost::asio::ip::tcp;

namespace {

/// This process's variables.
std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> variables;
  for (char** next = environ; *next != nullptr; ++next) {
    const std::string_view entry = *next;
    const std::size_t equals = std::min(entry.find('='), entry.size());
    if (equals < entry.size()) variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

}  // namespace

ReservedPort::ReservedPort(const std::string& address, int port, const PortRange& range) : port_(port) {
  boost::system::error_code error;
  auto host = boost::asio::ip::make_address(address, error);
  if (error && port != 0) return;  // a name: rank 0 will find what it means
  if (error) host = boost::asio::ip::make_address(address_of_host(address, Milliseconds(0)));
  boost::asio::io_context io;
  tcp::acceptor socket(io);
  bind_one(socket, host, port == 0 ? range : PortRange{port, port}, false, "the job cannot use ");
  port_ = socket.local_endpoint().port();
  socket_ = Descriptor(socket.release());
  ::fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
}

std::string random_run_id() { return concat("duet-", ::getpid(), "-", random_hex(sizeof(std::uint64_t))); }

std::vector<std::string> rank_environment(const LaunchOptions& options, const RankVariables& rank) {
  std::map<std::string, std::string> all = own_environment();
  const int world_size = options.nodes * options.ranks;
  all["LOCAL_RANK"] = std::to_string(rank.local_rank);
  for (const char* name : {"RANK", "ROLE_RANK"}) all[name] = std::to_string(rank.rank);
  all["LOCAL_WORLD_SIZE"] = std::to_string(options.ranks);
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) all[name] = std::to_string(world_size);
  all["GROUP_RANK"] = std::to_string(options.node_rank);
  all["GROUP_WORLD_SIZE"] = std::to_string(options.nodes);
  all["ROLE_NAME"] = "default";
  all["MASTER_ADDR"] = options.master_address;
  all["MASTER_PORT"] = std::to_string(rank.port);
  all["TORCHELASTIC_RESTART_COUNT"] = std::to_string(rank.attempt);
  all["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(options.max_restarts);
  all["TORCHELASTIC_RUN_ID"] = rank.run_id;
  all["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  all[kErrorFileVariable] = rank.error_file;
  all[kFlightRecorderVariable] = rank.record_file;
  for (const char* const name :
       {kElasticVariable, kElasticStoreVariable, kElasticProcessVariable, kReplacementVariable, kJoinsVariable})
    all.erase(name);  // of a job that this one is in
  if (!rank.elastic_file.empty()) {
    all[kElasticVariable] = rank.elastic_file;
    all[kElasticStoreVariable] = rank.elastic_store;
    all[kElasticProcessVariable] = std::to_string(rank.process);
    all[kReplacementVariable] = std::to_string(rank.replacement);
    if (rank.joins) all[kJoinsVariable] = "1";
  }
  all[kJobVariable] = rank.job;
  all[kJoinTimeoutVariable] = std::to_string(options.join_timeout.count());
  all[kTimeoutVariable] = std::to_string(options.timeout.count());
  all.try_emplace("OMP_NUM_THREADS", "1");
  all.try_emplace("UCX_VFS_ENABLE", "n");  // no thread of UCX's where Gloo brings it along
  if (!rank.secret.empty()) all[kSecretVariable] = rank.secret;
  if (!options.interface.empty()) all[kInterfaceVariable] = options.interface;
  if (options.verbose) all[kVerboseVariable] = "1";
  if (!options.port_range.empty()) all[kPortRangeVariable] = options.port_range;
  for (const auto& [name, value] : options.environment) all[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : all) entries.push_back(concat(name, "=", value));
  return entries;
}

namespace {

constexpr int kMaxNodes = 1024;

int first_number(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int number = otherwise;
  return file >> number ? number : otherwise;
}

/// The numbers of "0-3,8".
std::vector<int> read_list(const std::string& path) {
  std::ifstream file(path);
  std::vector<int> numbers;
  for (int first = 0; file >> first;) {
    int last = first;
    if (file.peek() == '-') {
      file.get();
      file >> last;
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (file.peek() != ',') break;
    file.get();
  }
  return numbers;
}

std::string as_list(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += concat(text.empty() ? "" : ",", numbers[i]);
    if (end - i > 1) text += concat("-", numbers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

std::vector<Cpu> usable_cpus(const std::string& folder) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {};
  std::vector<Cpu> cpus;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &set)) continue;
    // The first of the siblings stands for their core.
    const std::string topology = concat(folder, "/cpu/cpu", number, "/topology/");
    cpus.push_back({.number = number, .core = first_number(topology + "thread_siblings_list", number)});
  }
  for (int node = 0; node < kMaxNodes; ++node) {
    for (const int number : read_list(concat(folder, "/node/node", node, "/cpulist")))
      for (Cpu& cpu : cpus)
        if (cpu.number == number) cpu.node = node;
  }
  return cpus;
}

std::vector<std::vector<Cpu>> share_cpus(std::vector<Cpu> cpus, int ranks) {
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.node, a.core, a.number) < std::tie(b.node, b.core, b.number);
  });
  std::vector<std::vector<Cpu>> units;  // cores, or hardware threads
  for (const Cpu& cpu : cpus) {
    if (units.empty() || units.back().front().core != cpu.core) units.emplace_back();
    units.back().push_back(cpu);
  }
  const auto wanted = static_cast<std::size_t>(ranks);
  if (units.size() < wanted) {
    units.clear();
    for (const Cpu& cpu : cpus) units.push_back({cpu});
  }
  if (units.size() < wanted) return {};
  std::vector<std::vector<Cpu>> shares(wanted);
  for (std::size_t rank = 0; rank < wanted; ++rank) {
    const std::size_t begin = rank * units.size() / wanted, end = (rank + 1) * units.size() / wanted;
    for (std::size_t i = begin; i < end; ++i) shares[rank].insert(shares[rank].end(), units[i].begin(), units[i].end());
  }
  return shares;
}

std::string describe(const std::vector<Cpu>& cpus) {
  std::vector<int> numbers;
  std::set<int> nodes;
  for (const Cpu& cpu : cpus) {
    numbers.push_back(cpu.number);
    nodes.insert(cpu.node);
  }
  return concat(numbers.size() == 1 ? "core " : "cores ", as_list(numbers), " (NUMA node",
                nodes.size() == 1 ? " " : "s ", as_list({nodes.begin(), nodes.end()}), ")");
}

PortRange ports_of(const LaunchOptions& options) {
  if (options.port_range.empty()) return port_range();
  const PortRange ports = parse_port_range(options.port_range, "the range of ports");
  require<UsageError>(
      options.master_port == 0 || (ports.first <= options.master_port && options.master_port <= ports.last), "port ",
      options.master_port, " is not in the range of ports ", options.port_range);
  return ports;
}

std::string run_id_of(const LaunchOptions& options, const std::string& name) {
  if (!options.run_id.empty()) return options.run_id;
  const std::string& host = options.master_address;  // each host has its own name for a zone
  return options.nodes == 1 ? name : concat("duet-", host.substr(0, host.find('%')), "-", options.master_port);
}

std::string secret_of(const LaunchOptions& options, const std::string& given) {
  const auto names_secret = [](const auto& variable) {
    return variable.first == kSecretVariable || variable.first == kSecretFileVariable;
  };
  if (std::any_of(options.environment.begin(), options.environment.end(), names_secret)) return {};
  if (!given.empty()) return environment_variable(kSecretFileVariable) ? "" : given;
  return options.nodes > 1 ? std::string() : random_hex(kSecretBytes);
}

}  // namespace duet::ddp
