// duet launch: the ranks of any program, as processes of this machine.
#include "ddp/launch/launch.h"

#include <unistd.h>

#include <string>

#include "cli/options/options.h"
#include "ddp/launch/rank_output.h"
#include "lib/error.h"

namespace duet::cli {

int launch(const LaunchOptions& options) {
  const Endpoint endpoint = endpoint_of(options);
  ddp::LaunchOptions job = options.job;
  job.master_address = endpoint.address;
  job.master_port = endpoint.port;
  if (!options.redirects.empty()) job.redirects = ddp::parse_streams(options.redirects);
  if (!options.tee.empty()) job.tee = ddp::parse_streams(options.tee);
  job.pin = !options.no_pin;
  job.on_remark = [](const std::string& text) { ddp::write_all(STDERR_FILENO, concat("duet: ", text, "\n")); };
  const ddp::LaunchResult result = ddp::launch(job);
  const std::string report = result.report.empty() ? "" : result.report + "\n";
  if (!result.message.empty()) ddp::write_if_read(STDERR_FILENO, concat("duet: ", result.message, "\n", report));
  return result.exit_code;
}

}  // namespace duet::cli
