// What ranks throw that are threads of a LibTorch program.
#pragma once

#include <ATen/Parallel.h>

#include <functional>
#include <string>

#include "ddp/group/process_group.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

namespace duet_test {

/// The text of what the ranks throw; each must throw the same.
inline std::string error_of(int ranks, const std::function<void(duet::ddp::ProcessGroup&)>& body) {
  at::set_num_threads(1);
  std::string text;
  for (const auto& failure : try_ranks(Over::memory, ranks, {}, body)) {
    const std::string own = text_of(failure);
    CHECK((text.empty() || text == own));
    text = own;
  }
  return text;
}

}  // namespace duet_test
