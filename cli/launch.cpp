// duet launch: the ranks of any program, as processes of this machine.
#include "ddp/launch/launch.h"

#include <unistd.h>

#include <cmath>
#include <string>

#include "cli/options/options.h"
#include "ddp/launch/output_thread.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

ddp::Milliseconds milliseconds(double seconds) { return ddp::Milliseconds(std::llround(seconds * 1000)); }

ddp::RankStreams streams(const std::string& text) {
  return text.empty() ? ddp::RankStreams{} : ddp::parse_streams(text);
}

}  // namespace

int launch(const LaunchOptions& options) {
  const Endpoint endpoint = endpoint_of(options);
  const ddp::LaunchResult result = ddp::launch({
      .ranks = options.processes,
      .command = options.command,
      .nodes = options.nodes,
      .node_rank = options.node_rank,
      .master_address = endpoint.address,
      .master_port = endpoint.port,
      .run_id = options.rdzv_id,
      .interface = options.interface,
      .max_restarts = options.max_restarts,
      .join_timeout = milliseconds(options.rdzv_timeout_s),
      .timeout = milliseconds(options.timeout_s),
      .grace = milliseconds(options.grace_s),
      .stop_limit = milliseconds(options.stop_limit_s),
      .redirects = streams(options.redirects),
      .tee = streams(options.tee),
      .log_folder = options.log_dir,
      .pin = !options.no_pin,
      .verbose = options.verbose,
      .on_remark = [](const std::string& text) { ddp::write_all(STDERR_FILENO, concat("duet: ", text, "\n")); },
  });
  const std::string report = result.report.empty() ? "" : result.report + "\n";
  if (!result.message.empty()) ddp::write_if_read(STDERR_FILENO, concat("duet: ", result.message, "\n", report));
  return result.exit_code;
}

}  // namespace duet::cli
