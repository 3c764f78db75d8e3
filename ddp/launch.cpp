#include "ddp/launch.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "ddp/rank_environment.h"
#include "ddp/rank_process.h"
#include "ddp/work.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr Milliseconds kPoll{50};     // where the kernel cannot tell that a process has ended
constexpr Milliseconds kSettle{100};  // a rank's error may be the consequence of another's death: that shows soon

std::atomic<int> signal_pipe{-1};

void note_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t told = ::write(signal_pipe.load(), &byte, 1);
  errno = saved;
}

/// Turns SIGINT and SIGTERM into bytes of a pipe for as long as it lives.
class SignalPipe {
 public:
  SignalPipe() : pipe_(make_pipe()) {
    int none = -1;
    require<UsageError>(signal_pipe.compare_exchange_strong(none, pipe_.write.get()), "one launch at a time");
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, &action, &before_[0]);
    ::sigaction(SIGTERM, &action, &before_[1]);
  }
  ~SignalPipe() {
    ::sigaction(SIGINT, &before_[0], nullptr);
    ::sigaction(SIGTERM, &before_[1], nullptr);
    signal_pipe.store(-1);
  }
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  int descriptor() const { return pipe_.read.get(); }
  /// The next signal that came, or 0.
  int next() const {
    unsigned char byte = 0;
    return ::read(pipe_.read.get(), &byte, 1) == 1 ? byte : 0;
  }

 private:
  Pipe pipe_;
  std::array<struct sigaction, 2> before_{};
};

class Job {
 public:
  explicit Job(const LaunchOptions& options)
      : options_(options), port_(options.master_address, options.master_port), reports_(make_pipe()) {
    const std::string run_id = random_run_id();
    ranks_.reserve(static_cast<std::size_t>(options.ranks));
    for (int rank = 0; rank < options.ranks; ++rank)
      ranks_.emplace_back(options.command, rank_environment(options, rank, port_.port(), run_id, reports_.write.get()),
                          reports_.write.get());
    failed_.resize(ranks_.size());
    report_lines_ = LineReader(std::move(reports_.read));
  }

  LaunchResult run() {
    while (any_alive()) {
      wait_for_events();
      read_lines();
      pass_on_signals();
      end_overdue();
    }
    read_lines();
    return result();
  }

 private:
  struct Failure {
    bool failed = false;
    bool consequence = false;  // its own report says that it lost a peer
    Clock::time_point when;
    std::string text;
  };

  bool any_alive() {
    bool any = false;
    for (RankProcess& rank : ranks_) any = !rank.look() || any;
    look_for_failures();
    return any;
  }

  void wait_for_events() {
    std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}, {report_lines_.descriptor(), POLLIN, 0}};
    bool blind = false;
    for (RankProcess& rank : ranks_) {
      if (rank.output().open()) events.push_back({rank.output().descriptor(), POLLIN, 0});
      if (rank.errors().open()) events.push_back({rank.errors().descriptor(), POLLIN, 0});
      if (rank.ended()) continue;
      if (rank.end_descriptor() >= 0)
        events.push_back({rank.end_descriptor(), POLLIN, 0});
      else
        blind = true;
    }
    // poll() rounds down to 0 what is left below 1 ms.
    Milliseconds limit = blind ? kPoll : Milliseconds(-1);
    if (kill_at_ || terminate_at_) {
      const auto next = terminate_at_ ? *terminate_at_ : *kill_at_;
      const auto left = std::max(std::chrono::ceil<Milliseconds>(next - Clock::now()), Milliseconds(0));
      limit = limit.count() < 0 ? left : std::min(limit, left);
    }
    ::poll(events.data(), events.size(), static_cast<int>(limit.count()));
  }

  void read_lines() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const int rank = static_cast<int>(i);
      ranks_[i].output().read([&](std::string_view line) { print(rank, false, line); });
      ranks_[i].errors().read([&](std::string_view line) { print(rank, true, line); });
    }
    report_lines_.read([&](std::string_view line) { note_report(line); });
  }

  void print(int rank, bool is_stderr, std::string_view line) {
    if (options_.on_line) return options_.on_line(rank, is_stderr, line);
    std::string text = options_.label_lines ? concat("[rank ", rank, "] ", line, "\n") : concat(line, "\n");
    std::string_view left = text;  // one write, so that lines of several ranks never mix
    while (!left.empty()) {
      const ssize_t wrote = ::write(is_stderr ? STDERR_FILENO : STDOUT_FILENO, left.data(), left.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return;  // nobody reads any more
      left.remove_prefix(static_cast<std::size_t>(wrote));
    }
  }

  /// "1 c lost the peer": the rank, c for a consequence of another rank's failure, and the text.
  void note_report(std::string_view line) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space + 2 >= line.size()) return;
    const auto rank = static_cast<std::size_t>(std::atoi(std::string(line.substr(0, space)).c_str()));
    if (rank >= failed_.size()) return;
    failed_[rank].consequence = line[space + 1] == 'c';
    failed_[rank].text = line.substr(std::min(line.size(), space + 3));
  }

  void pass_on_signals() {
    while (const int signal = signals_.next()) {
      if (interrupted_ != 0 && kill_at_) kill_at_ = Clock::now();  // the second time means it
      interrupted_ = interrupted_ != 0 ? interrupted_ : signal;
      for (const RankProcess& rank : ranks_) rank.send(signal);
      if (!kill_at_) kill_at_ = Clock::now() + options_.grace;
    }
  }

  void look_for_failures() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      RankProcess& rank = ranks_[i];
      if (failed_[i].failed || !rank.ended() || rank.exit_code() == 0) continue;
      failed_[i].failed = true;
      failed_[i].when = Clock::now();
      if (told_to_end_ || interrupted_ != 0) continue;
      const auto terminate = Clock::now() + (rank.signal() != 0 ? Milliseconds(0) : kSettle);
      terminate_at_ = std::min(terminate_at_.value_or(terminate), terminate);
    }
  }

  void end_overdue() {
    const auto now = Clock::now();
    if (terminate_at_ && *terminate_at_ <= now) {
      terminate_at_.reset();
      told_to_end_ = now;
      for (const RankProcess& rank : ranks_) rank.send(SIGTERM);
      if (!kill_at_) kill_at_ = now + options_.grace;
    }
    if (kill_at_ && *kill_at_ <= now) {
      for (const RankProcess& rank : ranks_) rank.send(SIGKILL);
      kill_at_ = now + options_.grace;
    }
  }

  /// Whether the rank ended after it was told to. One that had reported a failure by then was still on its way out.
  bool ended_when_told(std::size_t i) const { return told_to_end_ && failed_[i].when >= *told_to_end_; }

  /// How sure it is that this rank failed by itself; -1 if it did not fail or was made to end.
  int guilt(std::size_t i) const {
    const Failure& failure = failed_[i];
    if (!failure.failed) return -1;
    if (ended_when_told(i) && failure.text.empty()) return -1;
    if (ranks_[i].signal() != 0 && !ended_when_told(i)) return 3;
    return failure.consequence ? 1 : 2;
  }

  LaunchResult result() {
    LaunchResult result;
    if (interrupted_ != 0) {
      result.exit_code = 128 + interrupted_;
      result.signal = interrupted_;
      result.message = concat("ended by signal ", interrupted_, " (SIG", ::sigabbrev_np(interrupted_), ")");
      return result;
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (guilt(i) < 0) continue;
      const auto best = static_cast<std::size_t>(std::max(result.failed_rank, 0));
      const bool guiltier = result.failed_rank < 0 || guilt(i) > guilt(best) ||
                            (guilt(i) == guilt(best) && failed_[i].when < failed_[best].when);
      if (guiltier) result.failed_rank = static_cast<int>(i);
    }
    if (result.failed_rank < 0) return result;
    const auto first = static_cast<std::size_t>(result.failed_rank);
    result.exit_code = 1;
    result.signal = ended_when_told(first) ? 0 : ranks_[first].signal();
    if (result.signal != 0) {
      const char* name = ::sigabbrev_np(result.signal);
      result.message = concat("rank ", first, " was killed by signal ", result.signal, " (SIG", name ? name : "?", ")");
    } else if (ranks_[first].signal() != 0) {
      result.message = concat("rank ", first, " failed: ", failed_[first].text);
    } else {
      const std::string& text = failed_[first].text;
      result.message =
          concat("rank ", first, " ended with exit code ", ranks_[first].exit_code(), text.empty() ? "" : ": ", text);
    }
    return result;
  }

  const LaunchOptions& options_;
  SignalPipe signals_;
  ReservedPort port_;
  Pipe reports_;
  LineReader report_lines_;
  std::vector<RankProcess> ranks_;
  std::vector<Failure> failed_;
  int interrupted_ = 0;
  std::optional<Clock::time_point> terminate_at_, told_to_end_, kill_at_;
};

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  require<UsageError>(options.ranks >= 1 && options.ranks <= 1024, "a job has 1 to 1024 ranks, got ", options.ranks);
  require<UsageError>(!options.command.empty() && !options.command[0].empty(), "there is no program to launch");
  require<UsageError>(options.master_port >= 0 && options.master_port <= 65535,
                      "port must have value from 0 to 65535 but was ", options.master_port);
  return Job(options).run();
}

}  // namespace duet::ddp
