// Every collective, reduction and dtype on every backend, against plain loops.
#include <mutex>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
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
