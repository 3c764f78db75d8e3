// duet launch: the ranks of any program, as processes of this machine.
#include "ddp/launch.h"

#include <cstdio>

#include "cli/commands.h"

namespace duet::cli {

int launch(const LaunchOptions& options) {
  const ddp::LaunchResult result = ddp::launch({.ranks = options.processes,
                                                .command = options.command,
                                                .master_address = options.master_addr,
                                                .master_port = options.master_port});
  if (!result.message.empty()) std::fprintf(stderr, "duet: %s\n", result.message.c_str());
  return result.exit_code;
}

}  // namespace duet::cli
