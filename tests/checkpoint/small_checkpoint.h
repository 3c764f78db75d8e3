// A checkpoint for tests of the files and of their folder, which don't look at its numbers.
#pragma once

#include <cstdint>
#include <string>

#include "lib/io/checkpoint.h"

namespace duet_test {

inline duet::Checkpoint at_step(std::int64_t step, const std::string& series = "") {
  return {.step = step, .arch = "SimpleCNN", .model = {{"fc.weight", duet::zeros({30})}}, .series = series};
}

}  // namespace duet_test
