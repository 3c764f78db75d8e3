// duet train: one run, in one mode.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/signals.h"
#include "cli/trainer.h"
#include "lib/backend/backend.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kStarted = "DUET_STARTED_NS";

/// When the program was started: as its starter says, so that the time of exec counts, else now.
std::int64_t started_ns() {
  const char* given = std::getenv(kStarted);
  if (!given) {
    setenv(kStarted, std::to_string(monotonic_ns()).c_str(), 0);  // for ranks that this process starts
    given = std::getenv(kStarted);
  }
  return std::strtoll(given, nullptr, 10);
}

}  // namespace

int train(const TrainOptions& options) {
  const std::int64_t started = started_ns();
  std::string why;
  require<DeviceError>(kind_available(options.device, why), "--device ", duet::name(options.device), ": ", why);
  note_signals();
  Backend& devices = backend(options.device);
  devices.set_threads_per_device(options.threads_per_device);
  devices.bind_thread({options.device, 0});
  const Images images = find_images(options);
  if (options.progress.empty()) std::printf("data: %s\n", images.description.c_str());
  const Team team;
  Setup setup = make_setup(options, *images.train, nullptr);
  const Outcome outcome = train_and_report(options, images, setup, team, started);
  return outcome.signal == 0 ? 0 : 128 + outcome.signal;
}

}  // namespace duet::cli
