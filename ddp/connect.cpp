#include "ddp/connect.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "ddp/shm/shm_collectives.h"
#include "ddp/shm/shm_transport.h"
#include "ddp/tcp/tcp_transport.h"
#include "ddp/transport/engine.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// The place of a rank among those that share the store.
struct Member {
  const std::shared_ptr<Store>& store;
  int rank, size;
};
using Group = std::unique_ptr<ProcessGroup>;

Group connect_shm(const ConnectOptions& options, const Member& self) {
  auto transport = ShmTransport::connect(*self.store, self.rank, self.size, options.connect_timeout, {}, options.check);
  return make_group(std::make_unique<ShmCollectives>(std::move(transport), self.store, options.group.timeout),
                    options.group);
}

Group connect_tcp(const ConnectOptions& options, const Member& self) {
  auto transport = make_tcp_transport(*self.store, self.rank, self.size, options);
  const std::vector<int> hosts = options.host < 0 ? options.hosts : transport->hosts();
  if (options.host >= 0 && std::ranges::count(hosts, options.host) == self.size) {
    transport.reset();
    return connect_on_host(options, std::make_shared<PrefixStore>(self.store, "host/"), self.rank, self.size);
  }
  if (!hosts.empty())
    transport =
        make_multi_host_transport(std::move(transport), self.store, hosts, options.connect_timeout, options.check);
  return make_group(std::move(transport), options.group);
}

Group connect_gloo(const ConnectOptions& options, const Member& self) {
  return make_group(make_gloo_transport(*self.store, self.rank, self.size, options), options.group);
}

Group connect_mpi(const ConnectOptions& options, const Member& self) {
  return make_group(make_mpi_transport(*self.store, self.rank, self.size, options), options.group);
}

Group connect_nccl(const ConnectOptions& options, const Member& self) {
  return make_nccl_group(self.store, self.rank, self.size, options);
}

Group connect_memory(const ConnectOptions& options, const Member& self) {
  return make_group(make_memory_transport(*self.store, self.rank, self.size, options.connect_timeout), options.group);
}

Group connect_solo(const ConnectOptions&, const Member& self) {
  require<UsageError>(self.size == 1, "backend solo has one rank, got ", self.size);
  return std::make_unique<SoloGroup>();
}

/// By backend, as in kBackends.
constexpr Group (*kConnect[])(const ConnectOptions& options, const Member& self) = {
    connect_shm, connect_tcp, connect_gloo, connect_mpi, connect_nccl, connect_memory, connect_solo};
static_assert(std::size(kConnect) == kBackends.size());

}  // namespace

void check_backend(const std::string& name, bool threads) {
  const bool known = name == "auto" || std::any_of(kBackends.begin(), kBackends.end(), [&](const Backend& one) {
                       return one.name == name && (threads ? one.threads : one.processes);
                     });
  require<UsageError>(known, "Invalid backend", threads ? " for ranks that are threads" : "", ": '", name, "'");
}

std::unique_ptr<ProcessGroup> connect(const ConnectOptions& options, std::shared_ptr<Store> store, int rank, int size) {
  const auto backend =
      std::find_if(kBackends.begin(), kBackends.end(), [&](const Backend& one) { return one.name == options.backend; });
  require<UsageError>(backend != kBackends.end(), "Invalid backend: '", options.backend, "'");
  Group group = kConnect[backend - kBackends.begin()](options, {store, rank, size});
  group->set_store(std::move(store));
  return group;
}

std::unique_ptr<ProcessGroup> connect_on_host(ConnectOptions over, const std::shared_ptr<Store>& store, int rank,
                                              int size) {
  std::unique_ptr<ProcessGroup> group;
  std::string failure;
  over.backend = "shm";
  over.hosts.clear();
  over.host = -1;
  try {
    group = connect(over, store, rank, size);
  } catch (const CommError& error) {
    if (over.check) over.check();
    failure = error.what();
  }
  const auto failures = meet(*store, "shm/failures", rank, size, over.connect_timeout, failure);
  if (std::ranges::all_of(failures, &std::string::empty)) return group;
  over.backend = "tcp";
  return connect(over, store, rank, size);
}

}  // namespace duet::ddp
