// The program `duet`: reads the command line and runs one command. Every error is one line.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <variant>

#include "ddp/launch/launch.h"
#include "ddp/launch/rank_output.h"
#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "train/options/options.h"
#include "train/system/signals.h"

namespace duet::cli {

int run(const LaunchOptions& options, const std::string&) {
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
  if (!result.message.empty())
    ddp::write_if_read(STDERR_FILENO, concat("duet: ", printable(result.message, "\n"), "\n", report));
  return result.exit_code;
}

int run(const Printed& printed, const std::string&) {
  std::fputs(printed.text.c_str(), stdout);
  return 0;
}

}  // namespace duet::cli

namespace {

/// The command line, with quotes where a shell needs them.
std::string as_typed(int argc, char** argv) {
  std::string line = "duet";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$*?[]{}()<>|&;`!#~") == std::string::npos;
    line += plain ? " " + word : " '" + word + "'";
  }
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  duet::open_closed_streams();
  duet::cli::explain_bus_errors();
  duet::cli::fail_beyond_size_limit();
  try {
    const auto run = [&](const auto& options) { return duet::cli::run(options, as_typed(argc, argv)); };
    const int status = std::visit(run, duet::cli::parse({argv + 1, argv + argc}));
    // An earlier write may have failed, of which the last fflush() says nothing.
    if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && status == 0)
      throw duet::DataError("cannot write to the standard output");
    return status;
  } catch (const std::exception& error) {
    return duet::ddp::report_failure(error, "duet: ");
  }
}
