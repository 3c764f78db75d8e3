// Trainings end with the same bits alone and on any number of devices.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "ddp/transport/modules.h"
#include "lib/parse_number.h"
#include "tests/any_number/draw.h"
#include "tests/support/catch2.h"

using namespace duet_test;

namespace {

std::vector<std::string> backends() {
  std::vector<std::string> all = {"memory", "shm", "tcp"};
  if (duet::ddp::why_no_gloo().empty()) all.push_back("gloo");
  return all;
}

/// DUET_DRAW=SEED trains that draw only; DUET_DRAWS=N draws as many, from seed DUET_DRAW_FROM on.
std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : duet::parse_number<std::uint64_t>(text).value();
}

void check_draw(std::uint64_t seed) {
  const Draw draw = draw_of(seed, backends());
  INFO("DUET_DRAW=" << seed << " test_any_number: " << draw);
  Draw single = draw;
  single.mode = "dp";
  single.devices = single.per_rank = 1;
  const std::vector<float> expected = train(single)[0];
  for (const std::vector<float>& numbers : train(draw)) {
    REQUIRE(numbers.size() == expected.size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      different += std::memcmp(&numbers[i], &expected[i], sizeof(float)) != 0;
    CHECK(different == 0);
  }
}

}  // namespace

TEST_CASE("drawn trainings on 1 to 8 devices end with one device's bits") {
  if (std::getenv("DUET_DRAW") != nullptr) return check_draw(number_of("DUET_DRAW", 0));
  const std::uint64_t draws = number_of("DUET_DRAWS", 100), first = number_of("DUET_DRAW_FROM", 1);
  std::cout << "draws " << first << " to " << first + draws - 1 << "\n";
  for (std::uint64_t seed = first; seed < first + draws; ++seed) check_draw(seed);
}
