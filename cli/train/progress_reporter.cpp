#include "cli/train/progress_reporter.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "ddp/launch/rank_output.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kRelayed = "DUET_RELAYED_PROGRESS";  // set where the launcher reads progress from stderr

std::string title_of(const TrainOptions& options) { return concat(name(options.mode), " ", options.devices); }

Progress progress_of(const StepClock& clock, int epoch, int epochs) {
  Progress progress{.epoch = epoch + 1,
                    .epochs = epochs,
                    .step = clock.epoch_step(),
                    .steps = clock.epoch_steps(),
                    .loss = clock.epoch_loss(),
                    .samples_per_s = clock.samples_per_s(),
                    .left_s = 0};
  const double done = static_cast<double>(progress.step) / static_cast<double>(progress.steps);
  if (done > 0) progress.left_s = clock.epoch_seconds() / done * (1 - done + epochs - progress.epoch);
  return progress;
}

}  // namespace

ProgressReporter::ProgressReporter(const TrainOptions& options, bool leader)
    : title_(title_of(options)),
      line_(stderr, leader && options.progress.empty() ? terminal_style(stderr, options.quiet) : TerminalStyle{}),
      relayed_(leader && options.progress.empty() && std::getenv(kRelayed) != nullptr) {
  if (leader && !options.progress.empty())
    file_ = ddp::Descriptor(::open(options.progress.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
}

void ProgressReporter::report(const StepClock& clock, int epoch, int epochs) {
  const auto now = Clock::now();
  if (now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  const Progress progress = progress_of(clock, epoch, epochs);
  if (file_.open()) {
    std::string text = to_line(progress);
    text.insert(text.size() - 1, std::string(text.size() < 100 ? 100 - text.size() : 0, ' '));
    // Progress is best effort: a full disk must not end the training.
    [[maybe_unused]] const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
  }
  if (relayed_) ddp::write_all(STDERR_FILENO, to_line(progress));
  line_.show(title_, progress);
}

ProgressRelay::ProgressRelay(const TrainOptions& options)
    : title_(title_of(options)),
      style_(options.progress.empty() ? terminal_style(stderr, options.quiet) : TerminalStyle{}),
      line_(stderr, style_) {}

ddp::LaunchOptions ProgressRelay::launch_options() {
  ddp::LaunchOptions options;
  if (!style_.rewrite) return options;
  options.environment = {{kRelayed, "1"}};
  options.on_line = [this](int rank, bool is_stderr, std::string_view text) { pass_on(rank, is_stderr, text); };
  options.on_remark = [this](const std::string& text) { pass_on(-1, true, text); };
  return options;
}

void ProgressRelay::pass_on(int rank, bool is_stderr, std::string_view text) {
  {
    Progress progress;
    const std::lock_guard lock(line_mutex_);
    if (rank == 0 && is_stderr && from_line(std::string(text), progress)) return line_.show(title_, progress);
    line_.clear();
  }
  ddp::write_all(is_stderr ? STDERR_FILENO : STDOUT_FILENO, concat(text, "\n"));
}

}  // namespace duet::cli
