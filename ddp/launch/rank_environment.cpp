#include "ddp/launch/rank_environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ios>

#include "ddp/group/flight_recorder.h"
#include "ddp/group/work.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_guard.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

extern "C" char** environ;

namespace duet::ddp {
namespace {

/// This process's variables with others set; the last setting of a name counts.
class Environment {
 public:
  Environment() {
    for (char** next = environ; *next != nullptr; ++next) entries_.emplace_back(*next);
  }
  bool has(const std::string& name) const { return find(name) < entries_.size(); }
  template <class Value>
  void set(const std::string& name, const Value& value) {
    const std::string entry = concat(name, "=", value);
    const std::size_t at = find(name);
    if (at < entries_.size())
      entries_[at] = entry;
    else
      entries_.push_back(entry);
  }
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::size_t find(const std::string& name) const {
    const auto same = [&](const std::string& entry) { return entry.starts_with(name + "="); };
    return static_cast<std::size_t>(std::find_if(entries_.begin(), entries_.end(), same) - entries_.begin());
  }
  std::vector<std::string> entries_;
};

}  // namespace

ReservedPort::ReservedPort(const std::string& address, int port) : port_(port) {
  union {
    sockaddr_in four;
    sockaddr_in6 six;
  } place{};
  const bool is_four = ::inet_pton(AF_INET, address.c_str(), &place.four.sin_addr) == 1;
  if (!is_four && ::inet_pton(AF_INET6, address.c_str(), &place.six.sin6_addr) != 1) {
    require<UsageError>(port != 0, "a free port needs a numeric master address, got ", address);
    return;  // a name: rank 0 will find what it means
  }
  const int family = is_four ? AF_INET : AF_INET6;
  place.four.sin_family = static_cast<sa_family_t>(family);
  place.four.sin_port = htons(static_cast<std::uint16_t>(port));  // the two have it in the same place
  socket_ = Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  socklen_t size = is_four ? sizeof(place.four) : sizeof(place.six);
  auto* generic = reinterpret_cast<sockaddr*>(&place);
  require<CommError>(::bind(socket_.get(), generic, size) == 0, "the job cannot use ", address, " port ", port, ": ",
                     last_errno);
  ::getsockname(socket_.get(), generic, &size);
  port_ = ntohs(place.four.sin_port);
}

std::string random_run_id() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number))
    number = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  return concat("duet-", ::getpid(), "-", std::hex, number);
}

std::vector<std::string> rank_environment(const LaunchOptions& options, const RankVariables& rank) {
  Environment all;
  const int global_rank = options.node_rank * options.ranks + rank.local_rank;
  const int world_size = options.nodes * options.ranks;
  all.set("LOCAL_RANK", rank.local_rank);
  for (const char* name : {"RANK", "ROLE_RANK"}) all.set(name, global_rank);
  all.set("LOCAL_WORLD_SIZE", options.ranks);
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) all.set(name, world_size);
  all.set("GROUP_RANK", options.node_rank);
  all.set("GROUP_WORLD_SIZE", options.nodes);
  all.set("ROLE_NAME", "default");
  all.set("MASTER_ADDR", options.master_address);
  all.set("MASTER_PORT", rank.port);
  all.set("TORCHELASTIC_RESTART_COUNT", rank.attempt);
  all.set("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  all.set("TORCHELASTIC_RUN_ID", rank.run_id);
  all.set("TORCHELASTIC_USE_AGENT_STORE", "False");
  all.set(kErrorFileVariable, rank.error_file);
  all.set(kFlightRecorderVariable, rank.record_file);
  all.set(kJobVariable, rank.job);
  all.set(kJoinTimeoutVariable, options.join_timeout.count());
  all.set(kTimeoutVariable, options.timeout.count());
  if (!all.has("OMP_NUM_THREADS")) all.set("OMP_NUM_THREADS", 1);
  if (!all.has("UCX_VFS_ENABLE")) all.set("UCX_VFS_ENABLE", "n");  // no thread of UCX's where Gloo brings it along
  if (!rank.secret.empty()) all.set(kSecretVariable, rank.secret);
  if (!options.interface.empty()) all.set(kInterfaceVariable, options.interface);
  for (const auto& [name, value] : options.environment) all.set(name, value);
  return all.entries();
}

}  // namespace duet::ddp
