// Two ranks over Gloo of which one fails as soon as it is connected, while the other has not yet accepted its
// connection.
#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ddp/connect.h"
#include "ddp/store/store.h"
#include "lib/error.h"

using namespace duet;

namespace {

std::latch left(1);  // a rank has left

}  // namespace

/// Gloo's threads call this one: a connection is accepted after its other end has left, if that does not wait for it.
extern "C" __attribute__((visibility("default"))) int accept(int socket, sockaddr* address, socklen_t* bytes) {
  static const auto real = reinterpret_cast<decltype(&accept)>(::dlsym(RTLD_NEXT, "accept"));
  for (int i = 0; i < 100 && !left.try_wait(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return real(socket, address, bytes);
}

int main() {
  const auto store = std::make_shared<ddp::MemoryStore>();
  std::string failures[2];
  std::vector<std::thread> ranks;
  std::atomic<bool> first{true};
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        const auto group = ddp::connect({.backend = "gloo"}, store, rank, 2);
        throw DataError("as asked");
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
      if (first.exchange(false)) left.count_down();
    });
  for (std::thread& rank : ranks) rank.join();
  const bool passed = failures[0] == "as asked" && failures[1] == "as asked";
  std::printf("rank 0: %s; rank 1: %s\n%d passed, %d failed, 0 skipped\n", failures[0].c_str(), failures[1].c_str(),
              passed, !passed);
  return passed ? 0 : 1;
}
