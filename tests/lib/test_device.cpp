#include <string>
#include <vector>

#include "lib/device.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

using namespace duet;

TEST_CASE("names of devices are read and written") {
  CHECK(parse_device("cpu") == Device{DeviceKind::cpu, 0, -1});
  CHECK(parse_device("cpu:3") == Device{DeviceKind::cpu, 3, -1});
  CHECK(parse_device("cuda") == Device{DeviceKind::cuda, 0, -1});
  CHECK(parse_device("cuda:1.2") == Device{DeviceKind::cuda, 1, 2});
  for (const char* const text : {"cpu:0", "cpu:1023", "cuda:7", "cuda:0.1"}) CHECK(parse_device(text).str() == text);
}

TEST_CASE("what is no device is quoted") {
  for (const char* const text :
       {"", "gpu", "cpu:", "cpu:-1", "cpu:+1", "cpu:1x", "cpu: 1", "cpu:0.1", "cuda:0.", "cuda:.1", "cuda:0.-1",
        "cuda:0.1.2", "cpu:1024", "cpu:99999999999", "CPU", "cpu:0:1"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_device(text), UsageError);
    CHECK_THROWS_WITH(parse_device(text), duet_test::ContainsSubstring("'" + std::string(text) + "'"));
  }
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
