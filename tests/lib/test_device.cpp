#include <string>
#include <vector>

#include "lib/device.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet;

TEST_CASE("names of devices have kind, index and logical index") {
  CHECK(Device{DeviceKind::cpu, 3}.str() == "cpu:3");
  CHECK(Device{DeviceKind::cuda, 1, 2}.str() == "cuda:1.2");
}

TEST_CASE("the first devices of a kind") {
  const auto devices = first_devices(DeviceKind::cpu, 3);
  CHECK(devices == std::vector<Device>{{DeviceKind::cpu, 0}, {DeviceKind::cpu, 1}, {DeviceKind::cpu, 2}});
  CHECK(first_devices(DeviceKind::cuda, 1024).back().str() == "cuda:1023");
  CHECK_THROWS_AS(first_devices(DeviceKind::cpu, 0), UsageError);
  CHECK_THROWS_WITH(first_devices(DeviceKind::cpu, 1025), "number of devices is 1025, expected 1 to 1024");
}

TEST_CASE("an error names what was wrong") {
  try {
    require<DataError>(1 > 2, "field ", 3, " is ", "bad");
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "field 3 is bad");
  }
  CHECK_NOTHROW(require(true, "never"));
}
