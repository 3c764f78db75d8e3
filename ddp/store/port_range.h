// The ports on which this process may listen.
#pragma once

#include <string>

namespace duet::ddp {

/// Holds "FIRST-LAST": each port that duet takes and no option names is one of these. Gloo, MPI and NCCL take
/// ports of their own, so backends gloo and mpi are refused with it, and nccl where ranks are on several hosts.
inline constexpr const char* kPortRangeVariable = "DUET_PORT_RANGE";

struct PortRange {
  int first = 0, last = 0;  // 0 for both: any free port
  const char* source = "";  // the variable that asks for it; empty: none does
  bool limits() const { return *source != '\0'; }
};

/// Reads "30000-30010". Throws UsageError that begins with `what`, the name of an option or a variable.
PortRange parse_port_range(const std::string& text, const std::string& what);

/// What DUET_PORT_RANGE says; any free port without it. Throws UsageError.
PortRange port_range();

/// "port 29500", "any of the ports 30000-30010 (DUET_PORT_RANGE)".
std::string describe(const PortRange& ports);

}  // namespace duet::ddp
