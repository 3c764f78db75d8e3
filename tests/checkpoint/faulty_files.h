// System calls on files that fail, or end the process, when a test says so. Replaces open, write, fsync, close and
// rename in the whole program that links it.
#pragma once

namespace duet_test {

enum class Fault { none, error, crash };

/// From now on the `at`-th call (from 1) fails with `error_number`, or ends the process as if power were lost.
void plan_fault(Fault fault, int at, int error_number = 0);
/// Calls since the last plan_fault; ends the plan.
int end_faults();
/// Exit status of a process that a planned crash ended.
inline constexpr int kCrashStatus = 99;

}  // namespace duet_test
