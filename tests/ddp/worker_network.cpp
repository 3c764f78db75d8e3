// The scenarios of ranks with a bad network between them.
#include <arpa/inet.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/gloo/load.h"
#include "ddp/init.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "lib/error.h"
#include "lib/nn/simple_cnn.h"
#include "tests/ddp/train.h"
#include "tests/ddp/transport/proxy.h"
#include "tests/ddp/worker.h"

using namespace duet;
using namespace duet::ddp;
using namespace std::chrono_literals;

namespace duet_test {
namespace {

/// "DELAY_MS RESET_AFTER SWALLOW_AFTER ONLY_ANSWERS", with -1 for never.
Trouble parse_trouble(const Arguments& arguments, std::size_t first) {
  const auto number = [&](std::size_t i) { return std::stoll(arguments.at(first + i)); };
  return {.delay = std::chrono::milliseconds(number(0)),
          .reset_after = static_cast<std::size_t>(number(1)),
          .swallow_after = static_cast<std::size_t>(number(2)),
          .only_answers = number(3) != 0};
}

/// Publishes this rank's proxy in place of every port of its own at which Gloo listens.
class ProxiedStore final : public Store {
 public:
  ProxiedStore(Store& store, std::string address, const Trouble& trouble)
      : Store(store.timeout()), store_(store), address_(std::move(address)), trouble_(trouble) {}
  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override {
    if (op == StoreOp::set) strings.at(1) = with_proxies(strings.at(1));
    return store_.request(op, std::move(strings), timeout);
  }
  std::size_t proxied_bytes() const {
    std::size_t sum = 0;
    for (const auto& [port, proxy] : proxies_) sum += proxy->bytes();
    return sum;
  }

 private:
  std::string with_proxies(const std::string& value) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    require<Error>(::inet_pton(AF_INET, address_.c_str(), &own.sin_addr) == 1, "no address: ", address_);
    std::string changed = value;
    for (std::size_t at = 0; at + sizeof(own) <= value.size(); ++at) {
      sockaddr_in found{};
      std::memcpy(&found, value.data() + at, sizeof(found));
      if (found.sin_family != AF_INET || found.sin_addr.s_addr != own.sin_addr.s_addr || found.sin_port == 0) continue;
      auto& proxy = proxies_[found.sin_port];
      if (!proxy) proxy = std::make_unique<Proxy>(address_, ntohs(found.sin_port), trouble_);
      found.sin_port = htons(static_cast<std::uint16_t>(proxy->port()));
      std::memcpy(changed.data() + at, &found, sizeof(found));
    }
    return changed;
  }
  Store& store_;
  const std::string address_;
  const Trouble trouble_;
  std::map<in_port_t, std::unique_ptr<Proxy>> proxies_;
};

/// Data goes over Gloo and every rank's proxy: "TASK TROUBLE... TIMEOUT CONNECT_TIMEOUT", in ms. Ranks have addresses
/// of their own, as on several hosts: Gloo compares them to decide which side connects.
void run_proxied(const Arguments& arguments) {
  ::signal(SIGTERM, SIG_IGN);  // each rank must detect it by itself
  require<UsageError>(arguments.at(1) == "train" || arguments[1] == "endless", "no task is called '", arguments[1],
                      "'");
  const RankInfo self = rank_info();
  const auto store = std::make_shared<TcpStore>(TcpStoreOptions{.host = *environment_variable("MASTER_ADDR"),
                                                                .port = std::stoi(*environment_variable("MASTER_PORT")),
                                                                .secret = given_secret(),
                                                                .serve = self.rank == 0,
                                                                .timeout = 60s});
  const std::string address = concat("127.0.0.", 10 + self.rank);
  ProxiedStore proxied(*store, address, parse_trouble(arguments, 2));
  {
    const GroupOptions options{.timeout = Milliseconds(std::stoi(arguments.at(6))), .leave_timeout = 5s};
    const auto group = make_transport_group(
        make_gloo_transport(
            proxied, self.rank, self.world_size,
            {.address = address, .connect_timeout = Milliseconds(std::stoi(arguments.at(7))), .group = options}),
        options);
    group->set_store(store);
    if (arguments.at(1) == "train") {
      nn::SimpleCNN model(kSeed);
      DistributedDataParallel net(model, *group);
      train(model, net, 64, self.rank, self.world_size);
      std::cout << fingerprint(model) << std::endl;
    }
    std::vector<float> values(50'000, 1.0f);
    while (arguments[1] == "endless") group->all_reduce(std::span<float>(values), ReduceOp::max).wait();
    group->barrier().wait();
  }
  std::cout << (proxied.proxied_bytes() > 0 ? "proxied" : "direct") << std::endl;
  store->set(concat("over/", self.rank), "");
  if (self.rank == 0)  // it serves the store
    for (int rank = 0; rank < self.world_size; ++rank) store->wait({concat("over/", rank)}, 60s);
}

/// Ranks reach rank 0's store through a proxy: "ROUNDS STORE_PORT PROXY_PORT".
void run_through(const Arguments& arguments) {
  ::signal(SIGTERM, SIG_IGN);
  const RankInfo self = rank_info();
  const auto group =
      init_process_group({.init_method = concat("tcp://127.0.0.1:", arguments.at(self.rank == 0 ? 2 : 3)),
                          .rank = self.rank,
                          .world_size = self.world_size,
                          .timeout = 10s});
  sum_rounds(*group, std::stoi(arguments.at(1)));
}

}  // namespace

bool run_network_scenario(const Arguments& arguments) {
  if (arguments.at(0) == "proxied") return run_proxied(arguments), true;
  if (arguments[0] == "through") return run_through(arguments), true;
  return false;
}

}  // namespace duet_test
