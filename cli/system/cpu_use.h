// How much processor time this process got, and how much it was kept from.
#pragma once

namespace duet::cli {

struct CpuUse {
  double used_s = 0;     // of all threads
  double delayed_s = 0;  // that its threads were ready to run and had no core; 0 where the kernel does not count it

  CpuUse operator-(const CpuUse& before) const { return {used_s - before.used_s, delayed_s - before.delayed_s}; }
};

/// Of this process so far; threads that have ended count as used only.
CpuUse cpu_use();

}  // namespace duet::cli
