// Test cases that run over every backend of the host.
#pragma once

#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

namespace duet_test {

/// Runs the rest of the test case over each backend.
inline Over each_backend() { return GENERATE(Over::memory, Over::gloo, Over::shm, Over::tcp); }

}  // namespace duet_test
