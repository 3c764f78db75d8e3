#include "ddp/launch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "ddp/group/failure_report.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/store/store.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr Milliseconds kPoll{50};   // where the kernel cannot report that a process has ended
constexpr Milliseconds kLook{250};  // the kernel does not report a stopped process
constexpr Milliseconds kStopReported{1000};
// A rank's error may be the consequence of another's, which may still be unwinding: wait for its report.
constexpr Milliseconds kSettle{100}, kSettleConsequence{500};
constexpr Milliseconds kCauseLimit{10'000};  // of a rank whose record shows an exception unwinding

/// What remarks call the ranks of other launchers; empty if there are none.
std::string ranks_elsewhere(const LaunchOptions& options) {
  std::vector<int> others;
  for (int rank = 0; rank < options.nodes * options.ranks; ++rank)
    if (rank / options.ranks != options.node_rank) others.push_back(rank);
  return others.empty() ? "" : concat("other hosts (", rank_names(others), ")");
}

}  // namespace

Job::Job(const LaunchOptions& options, const SignalPipe& signals, OutputThread& output, JobGuard& guard,
         RankVariables common, const std::vector<std::vector<int>>& cores, const std::string& folder)
    : options_(options),
      signals_(signals),
      thread_(output),
      guard_(guard),
      output_(std::make_shared<RankOutput>(options, output, folder, common.attempt, options.node_rank * options.ranks)),
      waits_(options.remark_after, ranks_elsewhere(options)) {
  const auto count = static_cast<std::size_t>(options.ranks);
  failed_.resize(count);
  stopped_.resize(count);
  stop_reported_.resize(count);
  ranks_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    error_files_.push_back(make_error_file(global(i)));
    common.local_rank = static_cast<int>(i);
    common.error_file = error_files_.back().path;
    record_files_.push_back(make_record_file());
    common.record_file = record_files_.back().path;
    ranks_.emplace_back(concat("the process of rank ", global(i), " of ", options.nodes * options.ranks),
                        options.command, rank_environment(options, common),
                        cores.empty() ? std::vector<int>{} : cores[i]);
  }
}

Job::File Job::make_memory_file(const char* name) {
  File file;
  file.memory = Descriptor(::memfd_create(name, MFD_CLOEXEC));
  if (file.memory.open()) file.path = concat("/proc/", ::getpid(), "/fd/", file.memory.get());
  return file;
}

Job::File Job::make_error_file(int rank) const {
  const std::string path = output_->error_file(rank);
  if (path.empty()) return make_memory_file("duet-rank-error");
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return {{}, path};
}

/// The job goes on without one where memory is short.
Job::File Job::make_record_file() {
  File file = make_memory_file("duet-rank-record");
  if (file.path.empty() || ::posix_fallocate(file.memory.get(), 0, static_cast<off_t>(FlightRecorder::bytes())) != 0)
    return {};
  return file;
}

LaunchResult Job::run() {
  while (any_alive()) {
    wait_for_events();
    read_lines(false);
    pass_on_signals();
    look_for_stopped();
    look_for_waits();
    look_at_guard();
    end_overdue();
  }
  read_lines(true);
  return result();
}

bool Job::any_alive() {
  bool any = false;
  for (RankProcess& rank : ranks_) any = !rank.look() || any;
  look_for_failures();
  return any;
}

void Job::wait_for_events() {
  std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}};
  bool blind = false;
  const bool reads = thread_.has_room();
  if (!reads) events.push_back({thread_.descriptor(), POLLIN, 0});
  for (RankProcess& rank : ranks_) {
    if (reads && rank.output().open()) events.push_back({rank.output().descriptor(), POLLIN, 0});
    if (reads && rank.errors().open()) events.push_back({rank.errors().descriptor(), POLLIN, 0});
    if (rank.ended()) continue;
    if (rank.end_descriptor() >= 0)
      events.push_back({rank.end_descriptor(), POLLIN, 0});
    else
      blind = true;
  }
  // poll() rounds down to 0 what is left below 1 ms.
  Milliseconds limit = blind ? kPoll : kLook;
  if (kill_at_ || terminate_at_) {
    const auto next = terminate_at_ ? *terminate_at_ : *kill_at_;
    limit = std::min(limit, std::max(std::chrono::ceil<Milliseconds>(next - Clock::now()), Milliseconds(0)));
  }
  ::poll(events.data(), events.size(), static_cast<int>(limit.count()));
  thread_.acknowledge();
}

void Job::read_lines(bool all) {
  const auto read = [&](LineReader& source, std::size_t i, bool is_stderr) {
    if (all || thread_.has_room())
      source.read([&](std::string_view line) { output_->print(global(i), is_stderr, line); });
  };
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    read(ranks_[i].output(), i, false);
    read(ranks_[i].errors(), i, true);
  }
}

void Job::pass_on_signals() {
  while (const int signal = signals_.next()) {
    if (interrupted_ != 0 && kill_at_) kill_at_ = Clock::now();  // a second signal kills at once
    interrupted_ = interrupted_ != 0 ? interrupted_ : signal;
    for (const RankProcess& rank : ranks_) rank.send(signal == SIGINT ? SIGINT : SIGTERM);
    if (!kill_at_) kill_at_ = Clock::now() + std::max(options_.grace, options_.interrupt_grace);
  }
}

void Job::look_for_failures() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankProcess& rank = ranks_[i];
    Failure& failure = failed_[i];
    if (failure.failed || !rank.ended() || rank.exit_code() == 0) continue;
    failure.failed = true;
    failure.when = failure.seen = Clock::now();
    if (const auto error = error_files_[i].path.empty() ? std::nullopt : read_error_file(error_files_[i].path)) {
      failure.consequence = error->consequence;
      failure.by_signal = error->by_signal;
      failure.text = error->message;
      std::replace(failure.text.begin(), failure.text.end(), '\n', ' ');
      failure.text = printable(failure.text);
      if (error->monotonic_ns > 0) failure.when = Clock::time_point(std::chrono::nanoseconds(error->monotonic_ns));
      const bool own_signal = failure.by_signal && sigterm_at_ && failure.when >= *sigterm_at_;
      if (own_signal) failure.text.clear();
    }
    if (sigterm_at_ || interrupted_ != 0) continue;
    const Milliseconds settle = failure.consequence ? kSettleConsequence : kSettle;
    const auto terminate = Clock::now() + (rank.signal() != 0 ? Milliseconds(0) : settle);
    terminate_at_ = std::min(terminate_at_.value_or(terminate), terminate);
    if (!cause_until_) cause_until_ = Clock::now() + kCauseLimit;
  }
}

void Job::look_for_stopped() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].stopped()) {
      if (stop_reported_[i] && !ranks_[i].ended() && !sigterm_at_) remark(concat("rank ", global(i), " goes on"));
      stopped_[i].reset();
      stop_reported_[i] = false;
      continue;
    }
    const auto now = Clock::now();
    if (!stopped_[i]) stopped_[i] = now;
    if (!stop_reported_[i] && now - *stopped_[i] >= kStopReported) {
      stop_reported_[i] = true;
      remark(concat("rank ", global(i), " has been stopped by a signal for ", kStopReported.count(),
                    " ms; the job ends if that lasts ", options_.stop_limit.count(), " ms"));
    }
    if (now - *stopped_[i] < options_.stop_limit || sigterm_at_ || terminate_at_ || overdue_rank_ >= 0) continue;
    overdue_rank_ = static_cast<int>(i);
    terminate_at_ = now;
  }
}

void Job::look_for_waits() {
  const auto now = Clock::now();
  if (now < next_look_ || sigterm_at_ || terminate_at_ || interrupted_ != 0) return;
  next_look_ = now + kLook;
  if (const std::string text = waits_.look(records(), to_ns(now)); !text.empty()) remark(text);
}

void Job::look_at_guard() {
  try {
    if (const std::string end = guard_.replace_if_ended(); !end.empty())
      remark(concat("the job's guard process ", end, "; another one was started"));
  } catch (const CommError& error) {
    remark(concat("the job's guard process has ended, and there is no other: ", error.what()));
  }
}

/// Whether all reported failures are consequences, and a running rank has dropped its group by an exception.
bool Job::cause_is_on_its_way() const {
  bool leaving = false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (failed_[i].failed && !failed_[i].consequence) return false;
    leaving = leaving || (!ranks_[i].ended() && FlightRecorder::read(record_files_[i].path).leaving);
  }
  return leaving;
}

void Job::end_overdue() {
  const auto now = Clock::now();
  if (terminate_at_ && *terminate_at_ <= now && overdue_rank_ < 0 && cause_until_ && now < *cause_until_ &&
      cause_is_on_its_way())
    terminate_at_ = now + kPoll;
  if (terminate_at_ && *terminate_at_ <= now) {
    terminate_at_.reset();
    sigterm_at_ = now;
    for (const RankProcess& rank : ranks_) rank.send(SIGTERM);
    if (!kill_at_) kill_at_ = now + options_.grace;
  }
  if (kill_at_ && *kill_at_ <= now) {
    for (const RankProcess& rank : ranks_) rank.send(SIGKILL);
    kill_at_ = now + options_.grace;
  }
}

void Job::remark(const std::string& text) const { ddp::remark(options_, thread_, text); }

/// Whether the rank ended after the launcher's SIGTERM. One that had reported a failure by then was still
/// unwinding.
bool Job::ended_by_sigterm(std::size_t i) const { return sigterm_at_ && failed_[i].seen >= *sigterm_at_; }

/// How sure it is that this rank failed by itself; -1 if it did not fail or was made to end.
int Job::culprit_score(std::size_t i) const {
  const Failure& failure = failed_[i];
  if (overdue_rank_ == static_cast<int>(i)) return 4;
  if (!failure.failed) return -1;
  if (ended_by_sigterm(i) && failure.text.empty()) return -1;
  if (ranks_[i].signal() != 0 && !ended_by_sigterm(i)) return 3;
  return failure.consequence ? 1 : 2;
}

std::string Job::message_of(std::size_t i) const {
  const std::string rank = concat("rank ", global(i));
  if (overdue_rank_ == static_cast<int>(i))
    return concat(rank, " was stopped by a signal for more than ", options_.stop_limit.count(), " ms");
  const std::string& text = failed_[i].text;
  if (ranks_[i].signal() != 0 && !ended_by_sigterm(i)) {
    const std::string cause = text.empty() ? "" : ": " + text;
    return concat(rank, " was killed by ", signal_text(ranks_[i].signal()), cause);
  }
  if (failed_[i].by_signal) return concat(rank, " ", text);
  if (ranks_[i].signal() != 0) return concat(rank, " failed: ", text);
  return concat(rank, " ended with exit code ", ranks_[i].exit_code(), text.empty() ? "" : ": ", text);
}

std::vector<RankRecord> Job::records() const {
  std::vector<RankRecord> ranks;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    ranks.push_back({global(i), FlightRecorder::read(record_files_[i].path)});
  return ranks;
}

std::string Job::report(int failed_rank) const {
  return failure_report(records(), failed_rank, to_ns(sigterm_at_.value_or(Clock::now())));
}

LaunchResult interrupted_by(int signal) {
  return {.exit_code = 128 + signal, .signal = signal, .message = concat("ended by ", signal_text(signal))};
}

LaunchResult Job::result() const {
  if (interrupted_ != 0) return interrupted_by(interrupted_);
  LaunchResult result;
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (culprit_score(i) < 0) continue;
    const bool comes_first = !first || culprit_score(i) > culprit_score(*first) ||
                             (culprit_score(i) == culprit_score(*first) && failed_[i].when < failed_[*first].when);
    if (comes_first) first = i;
  }
  if (!first) return result;
  result.exit_code = 1;
  result.failed_rank = global(*first);
  result.signal = ended_by_sigterm(*first) ? 0 : ranks_[*first].signal();
  result.message = message_of(*first);
  result.report = report(result.failed_rank);
  return result;
}

}  // namespace duet::ddp
