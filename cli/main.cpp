// The program `duet`: reads the command line and runs one command. Every error is one line.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <variant>

#include "cli/options/options.h"
#include "cli/system/signals.h"
#include "ddp/launch/launch.h"
#include "ddp/launch/rank_output.h"
#include "lib/base/descriptor.h"
#include "lib/base/text.h"
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

namespace {

using namespace duet::cli;

struct Runner {
  std::string command_line;

  int operator()(const Printed& printed) const {
    std::fputs(printed.text.c_str(), stdout);
    return 0;
  }
  int operator()(const InfoOptions& options) const { return info(options); }
  int operator()(const CollectiveOptions& options) const { return bench(options, command_line); }
  int operator()(const TrainOptions& options) const { return train(options); }
  int operator()(const CompareOptions& options) const { return compare(options, command_line); }
  int operator()(const PredictOptions& options) const { return predict(options, command_line); }
  int operator()(const LaunchOptions& options) const { return launch(options); }
};

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

/// "duet: ", or "duet: rank 2: " in a rank; and for the launcher.
void complain(const std::exception& error) {
  const std::optional<int> rank = duet::ddp::launched_rank();
  std::fprintf(stderr, "duet: %s%s\n", rank ? duet::concat("rank ", *rank, ": ").c_str() : "",
               duet::printable(error.what()).c_str());
  if (const std::string report = duet::ddp::unprinted_report(); !report.empty())
    std::fprintf(stderr, "%s\n", report.c_str());
  duet::ddp::leave_error(error);
}

}  // namespace

int main(int argc, char** argv) {
  duet::open_closed_streams();
  explain_bus_errors();
  fail_beyond_size_limit();
  try {
    const int status = std::visit(Runner{as_typed(argc, argv)}, parse({argv + 1, argv + argc}));
    // An earlier write may have failed, of which the last fflush() says nothing.
    if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && status == 0)
      throw duet::DataError("cannot write to the standard output");
    return status;
  } catch (const duet::UsageError& error) {
    complain(error);
    return 2;
  } catch (const std::exception& error) {
    complain(error);
    return 1;
  }
}
