// CPU devices in a precision of the test's own.
#pragma once

#include "lib/backend/backend.h"
#include "lib/error.h"
#include "tests/support/catch2.h"

namespace duet_test {

/// While it lives, CPU devices compute in this precision.
struct WithCpuPrecision {
  explicit WithCpuPrecision(duet::Precision precision) { cpu().set_precision(precision); }
  ~WithCpuPrecision() { cpu().set_precision(duet::Precision::fp32); }
  WithCpuPrecision(const WithCpuPrecision&) = delete;
  WithCpuPrecision& operator=(const WithCpuPrecision&) = delete;

 private:
  static duet::Backend& cpu() { return duet::backend(duet::DeviceKind::cpu); }
};

inline bool machine_has_bf16() {
  try {
    const WithCpuPrecision set(duet::Precision::bf16);
    return true;
  } catch (const duet::UsageError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("no instructions for bf16"));
    return false;
  }
}

}  // namespace duet_test
