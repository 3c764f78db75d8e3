// Connections between ranks over TCP, and unauthenticated peers that connect first.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/connect.h"
#include "ddp/store/connection.h"
#include "ddp/store/store.h"
#include "ddp/tcp/tcp_transport.h"
#include "ddp/transport/engine.h"
#include "ddp/transport/transport.h"
#include "lib/error.h"
#include "tests/ddp/store/raw_client.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::ddp;
using namespace duet_test;
using namespace std::chrono_literals;

namespace {

/// The ports on which this process listens, as another process would find them in /proc/net/tcp.
std::set<int> listening_ports() {
  std::set<int> ports;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    sockaddr_in address{};
    bytes = sizeof(address);
    if (::getsockname(file, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 && address.sin_family == AF_INET)
      ports.insert(ntohs(address.sin_port));
  }
  return ports;
}

/// Connects to every new port before another rank can: no rank has this rank's address before set() returns.
class UnauthenticatedPeers {
 public:
  void visit() {
    const std::lock_guard lock(mutex_);
    for (const int port : listening_ports()) {
      if (!visited_.insert(port).second) continue;
      for (int kind = 0; kind < kKinds; ++kind) visit(port, kind);
    }
  }
  std::size_t ports() const { return visited_.size(); }
  /// The most that one of them has received, once the ranks have left.
  std::size_t most_received() {
    std::size_t most = 0;
    for (const auto& client : clients_) most = std::max(most, client->wait_for_end().size());
    return most;
  }

 private:
  static constexpr int kKinds = 6;
  void visit(int port, int kind) {
    auto client = std::make_unique<RawClient>(port);
    const std::string number(kNumberBytes, 'n'), proof(kProofBytes, 'p'), magic(kMagic);
    if (kind == 1) client->send("GET / HTTP/1.1\r\nHost: a\r\n\r\n" + number + number);
    if (kind == 2) client->send(magic + client->hello() + proof);
    if (kind == 3) client->send(magic + client->hello().replace(0, kMarkBytes, service_mark("rank 0")) + proof);
    if (kind == 4) client->send(magic);
    if (kind == 5) client.reset();
    if (client) clients_.push_back(std::move(client));
  }

  std::mutex mutex_;
  std::set<int> visited_;
  std::vector<std::unique_ptr<RawClient>> clients_;
};

class VisitedStore final : public Store {
 public:
  explicit VisitedStore(UnauthenticatedPeers& unauthenticated) : Store(60s), unauthenticated_(unauthenticated) {}
  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override {
    if (op == StoreOp::post) unauthenticated_.visit();
    return inner_.request(op, std::move(strings), timeout);
  }

 private:
  UnauthenticatedPeers& unauthenticated_;
  MemoryStore inner_{60s};
};

/// What the ranks of a small job threw.
std::vector<std::exception_ptr> sum_of_ranks(Store& store, int size) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto group =
            make_group(make_tcp_transport(store, rank, size, {.connect_timeout = 60s}), {.timeout = 60s});
        std::vector<float> values(100'000, static_cast<float>(rank + 1));
        group->all_reduce(std::span<float>(values)).wait();
        const auto sum = static_cast<float>(size * (size + 1) / 2);
        for (const float value : values) require<CommError>(value == sum, "got ", value, ", expected ", sum);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace

TEST_CASE("unauthenticated peers that are the first at the ranks' ports are dropped, and the job goes on") {
  const int size = GENERATE(2, 4);
  UnauthenticatedPeers unauthenticated;
  VisitedStore store(unauthenticated);
  for (const auto& failure : sum_of_ranks(store, size)) {
    if (failure) std::rethrow_exception(failure);
  }
  CHECK(unauthenticated.ports() >= static_cast<std::size_t>(size));
  CHECK(unauthenticated.most_received() <= 2 * kMagic.size() + kNumberBytes);  // nothing of the job
}

TEST_CASE("a rank does not take what listens at a lower rank's address for that rank without a proof") {
  MemoryStore store(60s);
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  std::thread impostor([&] {
    boost::system::error_code error;
    for (;;) {
      auto client = acceptor.accept(error);
      std::string received(kMagic.size() + kHelloBytes, '\0');
      boost::asio::read(client, boost::asio::buffer(received), error);
      if (received.front() == 'q') return;
      const std::string magic(kMagic);
      boost::asio::write(client, boost::asio::buffer(magic + std::string(kNumberBytes, 'n')), error);
      received.resize(kProofBytes);
      boost::asio::read(client, boost::asio::buffer(received), error);
      boost::asio::write(client, boost::asio::buffer(magic + received), error);  // the rank's own proof
    }
  });
  store.set("tcp/address/0", concat(acceptor.local_endpoint().port(), " 127.0.0.1"));
  CHECK_THROWS_WITH(make_tcp_transport(store, 1, 2, {.connect_timeout = 500ms}),
                    ContainsSubstring("rank 1 could not connect with rank 0 within 500 ms"));
  RawClient(acceptor.local_endpoint().port()).send(std::string(kMagic.size() + kHelloBytes, 'q'));
  impostor.join();
}

TEST_CASE("ranks that name their hosts with their addresses share memory within hosts") {
  const auto [hosts, backend] = GENERATE(
      table<std::vector<int>, std::string>({{{0, 0, 1}, "tcp+shm"}, {{4, 4, 4}, "shm"}, {{2, 1, 0}, "tcp+shm"}}));
  const auto store = std::make_shared<MemoryStore>(60s);
  std::vector<std::string> names(hosts.size());
  std::vector<float> sums(hosts.size(), 1.0f);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    threads.emplace_back([&, rank, host = hosts[rank]] {
      const ConnectOptions options{
          .backend = "tcp", .join_timeout = 60s, .connect_timeout = 60s, .group = {.timeout = 60s}, .host = host};
      const auto group = connect(options, store, static_cast<int>(rank), static_cast<int>(sums.size()));
      names[rank] = group->backend();
      group->all_reduce(std::span(&sums[rank], 1)).wait();
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(names == std::vector<std::string>(3, backend));
  CHECK(sums == std::vector<float>(3, 3.0f));
}

TEST_CASE("a rank names the ranks that do not connect") {
  MemoryStore store(60s);
  store.set("tcp/address/1", "1 127.0.0.1");
  store.set("tcp/address/2", "1 127.0.0.1");
  CHECK_THROWS_WITH(make_tcp_transport(store, 0, 3, {.connect_timeout = 300ms}),
                    ContainsSubstring("rank 0 could not connect with ranks 1, 2 within 300 ms"));
}

TEST_CASE("a rank refuses what is in the place of another rank's address") {
  for (const std::string place : {"", " ", "1", "x", "0 127.0.0.1", "70000 127.0.0.1", "-1 127.0.0.1", "1x 127.0.0.1",
                                  "1 127.0.0.1 ", "1  127.0.0.1", "1 localhost"}) {
    MemoryStore store(60s);
    store.set("tcp/address/0", place);
    CHECK_THROWS_WITH(make_tcp_transport(store, 1, 2, {.connect_timeout = 300ms}),
                      "rank 0 has no address, got \"" + place + "\"");
  }
}
