#include "ddp/launch/rank_environment.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ios>
#include <map>
#include <string_view>

#include "ddp/group/flight_recorder.h"
#include "ddp/group/work.h"
#include "ddp/launch/error_file.h"
#include "ddp/launch/job_guard.h"
#include "ddp/store/asio.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
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

ReservedPort::ReservedPort(const std::string& address, int port) : port_(port) {
  boost::system::error_code error;
  const auto host = boost::asio::ip::make_address(address, error);
  if (error) {
    require<UsageError>(port != 0, "a free port needs a numeric master address, got ", address);
    return;  // a name: rank 0 will find what it means
  }
  boost::asio::io_context io;
  tcp::acceptor socket(io);
  const tcp::endpoint place(host, static_cast<std::uint16_t>(port));
  socket.open(place.protocol(), error);
  if (!error) socket.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) socket.bind(place, error);
  require<CommError>(!error, "the job cannot use ", address, " port ", port, ": ", errno_text(error.value()));
  port_ = socket.local_endpoint().port();
  socket_ = Descriptor(socket.release());
  ::fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
}

std::string random_run_id() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number))
    number = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  return concat("duet-", ::getpid(), "-", std::hex, number);
}

std::vector<std::string> rank_environment(const LaunchOptions& options, const RankVariables& rank) {
  std::map<std::string, std::string> all = own_environment();
  const int global_rank = options.node_rank * options.ranks + rank.local_rank;
  const int world_size = options.nodes * options.ranks;
  all["LOCAL_RANK"] = std::to_string(rank.local_rank);
  for (const char* name : {"RANK", "ROLE_RANK"}) all[name] = std::to_string(global_rank);
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
  all[kJobVariable] = rank.job;
  all[kJoinTimeoutVariable] = std::to_string(options.join_timeout.count());
  all[kTimeoutVariable] = std::to_string(options.timeout.count());
  all.try_emplace("OMP_NUM_THREADS", "1");
  all.try_emplace("UCX_VFS_ENABLE", "n");  // no thread of UCX's where Gloo brings it along
  if (!rank.secret.empty()) all[kSecretVariable] = rank.secret;
  if (!options.interface.empty()) all[kInterfaceVariable] = options.interface;
  for (const auto& [name, value] : options.environment) all[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : all) entries.push_back(concat(name, "=", value));
  return entries;
}

}  // namespace duet::ddp
