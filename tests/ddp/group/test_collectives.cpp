// Every collective, reduction and dtype on every backend, against plain loops.
#include <latch>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/error.h"
#include "tests/ddp/collective_faults.h"
#include "tests/ddp/each_backend.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet::ddp;
using namespace duet_test;

TEST_CASE("every collective, reduction and dtype") {
  const Over over = each_backend();
  if (missing(over)) DUET_SKIP("Gloo is not built");
  const int size = GENERATE(1, 2, 3, 4);
  std::mutex mutex;
  std::vector<std::string> faults;
  run_ranks(over, size, [&](ProcessGroup& group) {
    const std::vector<std::string> own = faults_of(group);
    const std::lock_guard lock(mutex);
    faults.insert(faults.end(), own.begin(), own.end());
  });
  CHECK(faults == std::vector<std::string>());
}

TEST_CASE("a group of one does every collective") {
  SoloGroup group;
  CHECK(faults_of(group) == std::vector<std::string>());
}

TEST_CASE("memory that ranks share is made behind the collectives that were started") {
  std::latch waits(1);
  run_ranks(Over::shm, 3, [&](ProcessGroup& group) {
    std::vector<float> first(4, 1), second(4, 1);
    const bool early = group.rank() == 0;
    if (!early) waits.wait();
    Work one = group.all_reduce(std::span(first)), two = group.all_reduce(std::span(second));
    if (early) {
      CHECK_THROWS_AS(one.wait(Milliseconds(1)), duet::CommError);  // the group's own thread waits from now on
      waits.count_down();
    }
    CHECK(group.shared_storage(64) != nullptr);
    two.wait();
    CHECK(second == std::vector<float>(4, 3));
  });
}
