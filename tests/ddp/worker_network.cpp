// The scenarios of ranks with a bad network between them, and of many ranks.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/init.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "ddp/tcp/tcp_transport.h"
#include "ddp/transport/engine.h"
#include "ddp/transport/modules.h"
#include "lib/error.h"
#include "lib/monotonic.h"
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
    if (op == StoreOp::set || op == StoreOp::post) strings.at(1) = with_proxies(strings.at(1));
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
    const auto group = make_group(
        make_gloo_transport(
            proxied, self.rank, self.world_size,
            {.connect_timeout = Milliseconds(std::stoi(arguments.at(7))), .group = options, .address = address}),
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
  ::setenv(kStoreEndpointVariable, concat("127.0.0.1:", arguments.at(3)).c_str(), 1);  // the proxy is no relay
  const auto group =
      init_process_group({.init_method = concat("tcp://127.0.0.1:", arguments.at(self.rank == 0 ? 2 : 3)),
                          .rank = self.rank,
                          .world_size = self.world_size,
                          .timeout = 10s});
  sum_rounds(*group, std::stoi(arguments.at(1)));
}

/// Passes on what comes to a port until SIGTERM, and prints how many bytes it were: "PORT TARGET [UID]".
void run_relay(const Arguments& arguments) {
  sigset_t end;
  ::sigemptyset(&end);
  ::sigaddset(&end, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &end, nullptr);
  if (arguments.size() > 3) {
    const auto user = static_cast<uid_t>(std::stoul(arguments[3]));
    require<UsageError>(::setresuid(user, user, user) == 0, "cannot be the user ", user);
  }
  const Proxy relay("127.0.0.1", std::stoi(arguments.at(2)), {}, std::stoi(arguments.at(1)));
  std::cout << "ready" << std::endl;
  int signal = 0;
  ::sigwait(&end, &signal);
  std::cout << relay.bytes() << " bytes" << std::endl;
}

/// What every one of so many processes does; prints how many of them did it, and in which time.
void run_processes(int count, const std::function<void(int)>& task) {
  std::vector<pid_t> children;
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      task(i);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      ::_exit(1);
    }
  }
  int good = 0;
  for (const pid_t child : children) {
    int status = 1;
    good += ::waitpid(child, &status, 0) == child && status == 0;
  }
  std::cout << good << " of " << count << " in " << microseconds_since(begin) / 1000 << " ms" << std::endl;
}

/// Ranks that connect over TCP, each a process: "RANKS PORT".
void run_join_ranks(const Arguments& arguments) {
  const int size = std::stoi(arguments.at(1)), port = std::stoi(arguments.at(2));
  run_processes(size, [&](int rank) {
    TcpStore store({.port = port, .serve = rank == 0, .timeout = 60s});
    connect_tcp_mesh(store, rank, size, "127.0.0.1", 60s);
    if (store.add("over", 1) == size) store.set("all over", "");
    store.wait({"all over"});
    if (rank != 0) store.add("left", 1);
    while (rank == 0 && store.add("left", 0) < size - 1) std::this_thread::sleep_for(1ms);
  });
}

/// Clients of one store, each a thread, that wait for all others: "CLIENTS".
void run_join_store(const Arguments& arguments) {
  const int count = std::stoi(arguments.at(1));
  TcpStore server({.port = 0, .serve = true, .timeout = 120s});
  const auto keys = rank_keys("joined", count);
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        TcpStore client({.port = server.port(), .timeout = 120s});
        client.set(keys[static_cast<std::size_t>(i)], "");
        client.wait(keys);
        ++good;
      } catch (const std::exception& error) {
        std::cerr << concat(error.what(), "\n");
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::cout << good << " of " << count << " in " << microseconds_since(begin) / 1000 << " ms" << std::endl;
}

}  // namespace

bool run_network_scenario(const Arguments& arguments) {
  if (arguments.at(0) == "proxied") return run_proxied(arguments), true;
  if (arguments[0] == "through") return run_through(arguments), true;
  if (arguments[0] == "relay") return run_relay(arguments), true;
  if (arguments[0] == "join_ranks") return run_join_ranks(arguments), true;
  if (arguments[0] == "join_store") return run_join_store(arguments), true;
  return false;
}

}  // namespace duet_test
