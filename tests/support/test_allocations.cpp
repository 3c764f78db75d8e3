#include <zlib.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/support/catch2.h"
#include "tests/support/sanitizers.h"

namespace {

// Bodies that the optimiser cannot see through.
__attribute__((noinline)) void nothing_but_sums(std::vector<int>& values) {
  for (int& value : values) value = value * 3 + 1;
}
__attribute__((noinline)) void one_new(std::unique_ptr<int>& out) { out = std::make_unique<int>(3); }
__attribute__((noinline)) void long_string(std::string& out, int length) {
  out.assign(static_cast<std::size_t>(length), 'x');
}

}  // namespace

TEST_CASE("the allocation counter sees nothing where nothing is allocated") {
  std::vector<int> values(100);
  const duet_test::CountAllocations count;
  nothing_but_sums(values);
  const long own = count.own();
  CHECK(own == 0);
}

TEST_CASE("the allocation counter sees a planted allocation and says where it is") {
  std::unique_ptr<int> kept;
  std::string text;
  long after_new = 0;
  long after_string = 0;
  std::string where;
  {
    const duet_test::CountAllocations count;
    one_new(kept);
    after_new = count.own();
    long_string(text, 1000);  // allocated inside libstdc++, on our behalf
    after_string = count.own();
    where = count.first_own();
  }
  CHECK(after_new == 1);
  CHECK(after_string == 2);
  CHECK_THAT(where, duet_test::ContainsSubstring("test_support"));
}

TEST_CASE("the allocation counter sees other threads") {
  std::unique_ptr<int> kept;
  const duet_test::CountAllocations count;
  std::thread([&] { one_new(kept); }).join();
  CHECK(count.own() >= 1);
}

#ifndef DUET_SANITIZED
TEST_CASE("the allocation counter separates a vendor's allocations from duet's") {
  std::vector<Bytef> from(1000, 7), to(2000);
  uLongf length = to.size();
  long own = 0;
  long vendor = 0;
  {
    const duet_test::CountAllocations count;
    compress(to.data(), &length, from.data(), static_cast<uLong>(from.size()));
    own = count.own();
    vendor = count.vendor();
  }
  CHECK(own == 0);
  CHECK(vendor > 0);

  const duet_test::CountAllocations count;
  void* (*volatile allocate)(std::size_t) = std::malloc;  // GCC drops a malloc whose result is only freed
  void* memory = allocate(100);
  own = count.own();
  std::free(memory);
  CHECK(own == 1);
}
#endif
