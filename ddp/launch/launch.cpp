#include "ddp/launch/launch.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <thread>

#include "ddp/group/failure_report.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/launch/check_options.h"
#include "ddp/launch/job_hosts.h"
#include "ddp/launch/job_processes.h"
#include "ddp/launch/job_rank.h"
#include "ddp/launch/launcher_link.h"
#include "ddp/launch/losses.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/launch/rank_output.h"
#include "ddp/store/connection.h"
#include "ddp/store/network.h"
#include "ddp/store/secret.h"
#include "lib/base/descriptor.h"
#include "lib/base/environment.h"
#include "lib/base/function_ref.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

constexpr Milliseconds kPoll{50};   // where the kernel cannot report that a process has ended
constexpr Milliseconds kLook{250};  // the kernel does not report a stopped process
constexpr Milliseconds kStopReported{1000}, kKilled{1};
// The first and the longest wait for an answer of host 0's launcher, which a signal ends: round trips may be slow.
constexpr Milliseconds kAnswer{1000}, kMostAnswer{8000};
// A rank's error may be the consequence of another's, which may still be unwinding: wait for its report.
constexpr Milliseconds kSettle{100}, kSettleConsequence{500};
constexpr Milliseconds kCauseLimit{10'000};  // longest wait for a rank whose record shows an exception unwinding
constexpr std::size_t kLastWords = 500;      // bytes

/// One attempt of a launch: its ranks from their start to their end.
class Job {
 public:
  /// Starts the ranks. `variables` are what they share; `cores` has an entry for each local rank, or none; `folder` is
  /// empty if there are no files. Throws UsageError when the program cannot be run.
  Job(const LaunchOptions& options, const SignalPipe& signals, LaunchOutput& output, JobGuard& guard,
      RankVariables variables, const std::vector<std::vector<int>>& cores, const std::string& folder)
      : options_(options),
        signals_(signals),
        written_(output),
        guard_(guard),
        output_(std::make_shared<RankOutput>(options, output.lines, folder, variables.attempt,
                                             options.node_rank * options.ranks)),
        waits_(options.remark_after, ranks_elsewhere(options)),
        variables_(std::move(variables)),
        cores_(cores) {
    if (options.elastic) losses_.emplace(sizes_of(options), options.max_failures, options.nodes == 1);
    if (options.elastic && options.nodes > 1) meet_hosts();
    if (follows() || interrupted_ != 0) return;  // the arbiter says what starts
    const int first = options.node_rank * options.ranks;
    telling_others([&] {
      for (int local = 0; local < options.ranks + options.spares; ++local) ranks_.push_back(start_rank(first + local));
    });
  }

  /// Returns when all have ended.
  LaunchResult run() {
    telling_others([&] {
      while (any_alive() || !due_.empty() || is_needed_elsewhere()) {
        wait_for_events();
        read_lines(false);
        pass_on_signals();
        look_for_stopped();
        look_for_waits();
        look_at_guard();
        end_overdue();
      }
    });
    read_lines(true);
    LaunchResult ended = result();
    if (hosts_) hosts_->end(ended.message, follows() ? interrupted_ != 0 : hurries_);
    return ended;
  }

 private:
  /// What this launcher cannot do ends the job on all hosts.
  void telling_others(FunctionRef<void()> body) {
    try {
      body();
    } catch (const Error& error) {
      if (hosts_) hosts_->end(error.what(), false);
      throw;
    }
  }

  void meet_hosts() {
    const JobMeeting meeting{variables_.port, concat(variables_.run_id, '|', variables_.port), given_secret()};
    if (options_.node_rank == 0)
      hosts_ = make_job_arbiter(options_, meeting, losses_->job(), losses_->arbiter(), &signals_);
    else
      await_arbiter(meeting);
  }
  void await_arbiter(const JobMeeting& meeting) {
    const auto until = Clock::now() + options_.join_timeout;
    Milliseconds answer = kAnswer;
    while (hosts_ == nullptr && interrupted_ == 0) try {
        hosts_ = make_job_follower(options_, meeting, losses_->job(), std::min(options_.join_timeout, answer), signals_,
                                   [this] { return end_processes_unless_failed(); });
      } catch (const Refused&) {  // another secret, or another run
        throw;
      } catch (const CommError& error) {
        pass_on_signals();  // one of them may have ended the wait
        if (interrupted_ != 0) return;
        require<CommError>(Clock::now() < until, "the launcher of host 0 did not come within ",
                           options_.join_timeout.count(), " ms: ", error.what());
        if (std::exchange(answer, std::min(2 * answer, kMostAnswer)) == kAnswer)
          remark(concat("the launcher of host 0 is not there: it has not started yet, or the job is over; waiting for ",
                        options_.join_timeout.count(), " ms: ", error.what()));
        pollfd event{signals_.ending(), POLLIN, 0};
        ::poll(&event, 1, static_cast<int>(kLook.count()));
      }
  }
  /// Whether the launcher of another host decides on losses.
  bool follows() const { return hosts_ && options_.node_rank != 0; }
  bool is_needed_elsewhere() const { return hosts_ && !ends() && hosts_->is_needed(); }
  /// Ranks that have only lost others may begin again, once it is known which.
  bool ends() const {
    return sigterm_at_ || interrupted_ != 0 || (terminate_at_ && (!losses_ || *terminate_at_ <= Clock::now()));
  }
  /// A rank by itself.
  bool has_failed() const {
    return std::ranges::any_of(ranks_, [](const JobRank& one) { return one.failed && !one.error.consequence; });
  }

  /// `rank`: or the number of a spare process, behind those of the ranks.
  JobRank start_rank(int rank, int replacement = 0, bool joins = false) {
    RankVariables variables = variables_;
    const int ranks = options_.nodes * options_.ranks;
    const bool is_spare = rank >= ranks;
    variables.rank = std::min(rank, ranks - 1);
    variables.local_rank = variables.rank % options_.ranks;
    variables.process = rank;
    const bool is_own = variables.rank / options_.ranks == options_.node_rank;
    if (!is_own) output_->add(rank);
    RankFile error_file = make_error_file(output_->error_file(rank)), record_file = make_record_file();
    variables.error_file = error_file.path;
    variables.record_file = record_file.path;
    if (losses_) {
      variables.elastic_file = losses_->memory().path;
      variables.elastic_store = hosts_ ? hosts_->store() : losses_->store().path;
      variables.replacement = is_spare ? replacement + 1 : replacement;
      variables.joins = joins || is_spare;
    }
    RankProcess process(concat("the process of rank ", rank, " of ", ranks), options_.command,
                        rank_environment(options_, variables),
                        cores_.empty() || is_spare || !is_own ? std::vector<int>{}
                                                              : cores_[static_cast<std::size_t>(variables.local_rank)]);
    return {rank, replacement, std::move(error_file), std::move(record_file), std::move(process)};
  }

  bool any_alive() {
    for (JobRank& rank : ranks_) rank.process.look();
    const auto ended_by_it = [this](const JobRank& rank) {
      return rank.process.ended() && rank.process.exit_code() == 128 + left_to_ranks_;
    };
    if (left_to_ranks_ != 0 && interrupted_ == 0 && std::ranges::any_of(ranks_, ended_by_it)) interrupt(left_to_ranks_);
    look_for_losses();
    if (hosts_) look_for_hosts();
    look_for_recoveries();
    start_due();
    look_for_failures();
    return std::any_of(ranks_.begin(), ranks_.end(), [](const JobRank& rank) { return !rank.process.ended(); });
  }

  bool is_lost(const JobRank& rank) const { return !losses_->is_superfluous(rank.rank) && rank.is_lost(); }

  /// Starts a process that replaces a lost one; later if it cannot start now: the shortage may pass.
  void start_again(JobStart start) {
    try {
      if (start.joins && scripts_in(options_.command) != scripts_)
        return end_by(start.rank, concat("rank ", start.rank, " is lost, and a script of ", options_.command[0],
                                         " has changed since the job began: start the job again"));
      const auto after = std::ranges::find_if(ranks_, [&](const JobRank& one) { return one.rank > start.rank; });
      ranks_.insert(after, start_rank(start.rank, start.replacement, start.joins));
    } catch (const Error& error) {
      const auto now = Clock::now();
      if (start.cause.empty()) {
        start.since = now;
        remark(concat("rank ", start.rank, " has no new process yet, the launcher keeps trying: ", error.what()));
      }
      start.cause = error.what();
      start.next = now + kLook;
      if (!start.joins && now - start.since > options_.replace_timeout)
        return end_by(start.rank, concat("rank ", start.rank, " has no new process: ", start.cause));
      due_.push_back(std::move(start));
    }
  }
  void start_due() {
    for (JobStart& start : std::exchange(due_, {})) {
      if (ends() || losses_->is_superfluous(start.rank)) continue;
      if (start.next <= Clock::now())
        start_again(std::move(start));
      else
        due_.push_back(std::move(start));
    }
  }

  /// In an elastic job, replaces what was lost, as far as it may be.
  void look_for_losses() {
    if (!losses_ || ends() || has_failed()) return;
    if (follows()) return report_losses();
    for (auto at = ranks_.begin(); at != ranks_.end();) {
      const auto rank = at++;
      if (!is_lost(*rank)) continue;
      const std::string cause = message_of(*rank);
      const JobLosses::Loss loss = losses_->lose(rank->rank, cause, phase_of(*rank));
      if (loss == JobLosses::Loss::begins) return start_all_again(cause);
      if (loss == JobLosses::Loss::ends_job) {
        rank->failed = true;
        terminate_at_ = rank->when = rank->seen = Clock::now();
        return;
      }
      remark(concat(cause, " after step ", losses_->step(), "; ", JobLosses::consequence(loss)));
      JobStart start{rank->rank, rank->replacement + 1, true};
      drop(rank);
      if (!hosts_ || hosts_->replace(start.rank, true) == JobHosts::Start::here) start_again(std::move(start));
    }
  }
  void drop(std::list<JobRank>::iterator rank) {
    read_lines(*rank);
    ranks_.erase(rank);
  }
  static Phase phase_of(const JobRank& rank) { return rank.stop_ended ? Phase::none : rank.record().phase; }

  /// Tells the arbiter what was lost here.
  void report_losses() {
    for (auto rank = ranks_.begin(); rank != ranks_.end();) {
      const auto lost = rank++;
      if (!is_lost(*lost)) continue;
      hosts_->lose(lost->rank, message_of(*lost), phase_of(*lost));
      drop(lost);
    }
  }

  /// What other launchers say, and ask for.
  void look_for_hosts() {
    const std::string begun = hosts_->store();
    const bool idle = std::ranges::all_of(ranks_, [](const JobRank& rank) { return rank.process.ended(); });
    for (const HostEvent& event : hosts_->exchange(idle)) {
      if (event.kind == HostEvent::Kind::remarks) remark(event.text);
      if (ends()) continue;
      if (event.kind == HostEvent::Kind::start)
        event.joins ? start_again({event.rank, event.replacement, true})
                    : void(ranks_.push_back(start_rank(event.rank, event.replacement)));
      if (event.kind == HostEvent::Kind::lost && begun == hosts_->store()) lose_elsewhere(event);
      if (event.kind == HostEvent::Kind::ends) end_by(event.rank, event.text);
    }
  }

  /// A process of another host.
  void lose_elsewhere(const HostEvent& event) {
    const JobLosses::Loss loss = losses_->lose(event.rank, event.text, event.phase, !event.is_same_loss);
    if (loss == JobLosses::Loss::ends_job) return end_by(event.rank, event.text + losses_->reason());
    if (loss == JobLosses::Loss::begins) return start_all_again(event.text);
    const bool is_needed = loss != JobLosses::Loss::left_out && loss != JobLosses::Loss::outside;
    const JobHosts::Start start = hosts_->replace(event.rank, is_needed);
    remark(concat(event.text, " after step ", losses_->step(), "; ",
                  start == JobHosts::Start::later ? "the others continue without it until its host takes part again"
                                                  : JobLosses::consequence(loss)));
    if (start == JobHosts::Start::here) start_again({event.rank, 1, true});
  }

  /// Says which new processes have the state of the training; ends the job where some do not come.
  void look_for_recoveries() {
    if (!losses_) return;
    for (const std::string& text : losses_->recoveries()) remark(text);
    if (!follows()) losses_->admit_ready();
    for (const JobRank& rank : ranks_)
      if (losses_->is_superfluous(rank.rank)) rank.process.send(SIGKILL);
    if (ends()) return;
    const auto absence = losses_->overdue(options_.replace_timeout);
    if (!absence) return;
    const auto due = std::ranges::find(due_, absence->rank, &JobStart::rank);
    end_by(absence->rank, absence->message + (due == due_.end() ? "" : ": " + due->cause));
  }

  void kill_all() {
    terminate_at_.reset();  // what has failed has lost another rank
    cause_until_.reset();
    send_all(SIGKILL);
    for (JobRank& rank : ranks_)
      while (!rank.process.look()) std::this_thread::sleep_for(kKilled);
  }
  /// False where the job ends here.
  bool end_processes_unless_failed() {
    if (ends() || has_failed()) return false;
    end_processes();
    return true;
  }
  void end_processes() {
    kill_all();
    for (JobRank& rank : ranks_) read_lines(rank);
    ranks_.clear();
    due_.clear();
  }

  /// Before the first step is complete there is nothing to lose.
  void start_all_again(const std::string& cause) {
    remark(concat(cause, " before the first step; all ranks start again"));
    std::vector<JobStart> starts = due_;
    for (const JobRank& rank : ranks_) starts.push_back({rank.rank, rank.replacement + 1});
    end_processes();
    losses_->begin();
    scripts_ = scripts_in(options_.command);
    if (hosts_) {
      starts.clear();
      for (const int rank : hosts_->begin_again()) starts.push_back({rank, 1});
    }
    for (JobStart& start : starts) start_again({start.rank, start.replacement});
  }

  void wait_for_events() {
    std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}};
    bool blind = false;
    const bool reads = written_.lines.has_room();
    if (!reads) events.push_back({written_.lines.descriptor(), POLLIN, 0});
    if (hosts_) events.push_back({hosts_->descriptor(), POLLIN, 0});
    for (JobRank& one : ranks_) {
      RankProcess& rank = one.process;
      if (reads && rank.output().open()) events.push_back({rank.output().descriptor(), POLLIN, 0});
      if (reads && rank.errors().open()) events.push_back({rank.errors().descriptor(), POLLIN, 0});
      if (rank.ended()) continue;
      if (rank.end_descriptor() >= 0)
        events.push_back({rank.end_descriptor(), POLLIN, 0});
      else
        blind = true;
    }
    // poll() rounds down to 0 what is left below 1 ms.
    Milliseconds limit = blind || (losses_ && losses_->recovers()) ? kPoll : kLook;
    if (kill_at_ || terminate_at_) {
      const auto next = terminate_at_ ? *terminate_at_ : *kill_at_;
      limit = std::min(limit, std::max(std::chrono::ceil<Milliseconds>(next - Clock::now()), Milliseconds(0)));
    }
    ::poll(events.data(), events.size(), static_cast<int>(limit.count()));
    written_.lines.acknowledge();
  }

  /// All there is.
  void read_lines(JobRank& rank) {
    rank.process.output().read([&](std::string_view line) { output_->print(rank.rank, false, line); });
    rank.process.errors().read([&](std::string_view line) {
      output_->print(rank.rank, true, line);
      if (line.find_first_not_of(" \t\r") != line.npos) rank.last_words = line.substr(0, kLastWords);
    });
  }
  /// Only as long as the output thread has room, or all there is.
  void read_lines(bool all) {
    for (JobRank& rank : ranks_)
      if (all || written_.lines.has_room()) read_lines(rank);
  }

  void send_all(int signal) const {
    for (const JobRank& rank : ranks_) rank.process.send(signal);
  }

  void pass_on_signals() {
    while (const int signal = signals_.next()) {
      if (signal == SIGPIPE && (interrupted_ != 0 || terminate_at_ || sigterm_at_)) continue;  // the job ends anyway
      if (!is_left_to_ranks(signal)) {
        interrupt(signal);
        continue;
      }
      send_all(signal);
      if (signal != SIGCONT) left_to_ranks_ = signal;
    }
  }
  void interrupt(int signal) {
    hurries_ = interrupted_ != 0;
    if (hurries_ && kill_at_) kill_at_ = Clock::now();
    interrupted_ = interrupted_ != 0 ? interrupted_ : signal;
    // Where others have their state, they need not end in order: these would end the training for all.
    send_all(follows() ? SIGKILL : signal == SIGINT ? SIGINT : SIGTERM);
    if (!kill_at_) kill_at_ = Clock::now() + std::max(options_.grace, options_.interrupt_grace);
  }

  /// A rank of an elastic job may not end before all have ended their training.
  bool ended_in_order(const JobRank& rank) const {
    return rank.process.exit_code() == 0 && !(losses_ && losses_->trains(rank.rank));
  }

  void look_for_failures() {
    for (JobRank& rank : ranks_) {
      if (rank.failed || !rank.process.ended() || ended_in_order(rank)) continue;
      if (losses_ && losses_->is_superfluous(rank.rank)) continue;
      if (!rank.note_failure(sigterm_at_) && rank.process.exit_code() == 0 && !sigterm_at_)
        rank.error.message = losses_->left_early(rank.rank);
      if (sigterm_at_ || interrupted_ != 0) continue;
      // On several hosts the arbiter says what happened, once a host that is gone has said nothing for so long.
      const Milliseconds settle = !rank.error.consequence ? kSettle : hosts_ ? 2 * kHostLimit : kSettleConsequence;
      const auto terminate =
          Clock::now() + (rank.process.signal() != 0 && !rank.error.consequence ? Milliseconds(0) : settle);
      terminate_at_ = std::min(terminate_at_.value_or(terminate), terminate);
      if (!cause_until_) cause_until_ = Clock::now() + kCauseLimit;
    }
  }

  void look_for_stopped() {
    for (JobRank& rank : ranks_) {
      if (!rank.process.stopped()) {
        if (rank.stop_reported && !rank.stop_ended && !rank.process.ended() && !sigterm_at_)
          remark(concat("rank ", rank.rank, " continues"));
        rank.stopped.reset();
        rank.stop_reported = false;
        continue;
      }
      const auto now = Clock::now();
      if (!rank.stopped) rank.stopped = now;
      if (!rank.stop_reported && now - *rank.stopped >= kStopReported) {
        rank.stop_reported = true;
        remark(concat("rank ", rank.rank, " has been stopped by a signal for ", kStopReported.count(), " ms; ",
                      losses_ ? "another process replaces it" : "the job ends", " if that lasts ",
                      options_.stop_limit.count(), " ms"));
      }
      if (now - *rank.stopped < options_.stop_limit || sigterm_at_ || terminate_at_ || overdue_ != nullptr) continue;
      rank.stop_ended = true;
      if (losses_)
        rank.process.send(SIGKILL);  // it is lost once it is dead
      else
        end_by(rank.rank, message_of(rank));
    }
  }

  /// Ends the job, of which a rank has failed that runs, or is on another host.
  void end_by(int rank, const std::string& message) {
    const auto here = std::ranges::find(ranks_, rank, &JobRank::rank);
    if (here == ranks_.end())
      elsewhere_ = {rank, message};
    else
      overdue_ = &*here, overdue_message_ = message;
    terminate_at_ = Clock::now();
  }

  void look_for_waits() {
    const auto now = Clock::now();
    if (now < next_look_ || sigterm_at_ || terminate_at_ || interrupted_ != 0) return;
    next_look_ = now + kLook;
    if (const JobRank* const one = absent_for_good(ranks_, options_.nodes * options_.ranks))
      return end_by(one->rank,
                    concat("rank ", one->rank, " ended with exit code 0, but the others wait for it to join them"));
    if (const std::string text = waits_.look(records_of(ranks_), to_ns(now)); !text.empty()) remark(text);
  }

  void look_at_guard() {
    try {
      if (const std::string end = guard_.replace_if_ended(); !end.empty())
        remark(concat("the job's guard process ", end, "; another one was started"));
    } catch (const CommError& error) {
      remark(concat("the job's guard process has ended, and there is no other: ", error.what()));
    }
  }

  /// Whether all reported failures are consequences, and a running rank has dropped its group by an exception.
  bool cause_is_on_its_way() const {
    bool leaving = false;
    for (const JobRank& rank : ranks_) {
      if (rank.failed && !rank.error.consequence) return false;
      leaving = leaving || (!rank.process.ended() && rank.record().left_ns > 0);
    }
    return leaving;
  }

  void end_overdue() {
    const auto now = Clock::now();
    if (terminate_at_ && *terminate_at_ <= now && overdue_ == nullptr && cause_until_ && now < *cause_until_ &&
        cause_is_on_its_way())
      terminate_at_ = now + kPoll;
    if (terminate_at_ && *terminate_at_ <= now) {
      terminate_at_.reset();
      sigterm_at_ = now;
      send_all(SIGTERM);
      if (!kill_at_) kill_at_ = now + options_.grace;
    }
    if (kill_at_ && *kill_at_ <= now) {
      send_all(SIGKILL);
      kill_at_ = now + options_.grace;
    }
  }

  void remark(const std::string& text) const { ddp::remark(options_, written_, text); }

  /// Whether the rank ended after the launcher's SIGTERM. One that had reported a failure by then was still
  /// unwinding.
  bool ended_by_sigterm(const JobRank& rank) const { return sigterm_at_ && rank.seen >= *sigterm_at_; }

  /// The signal that killed the rank, unless the launcher made it end.
  int killed_by(const JobRank& rank) const { return ended_by_sigterm(rank) ? 0 : rank.process.signal(); }

  /// How sure it is that this rank failed by itself; -1 if it did not fail or was made to end.
  int culprit_score(const JobRank& rank) const {
    if (overdue_ == &rank) return 4;
    if (!rank.failed || (ended_by_sigterm(rank) && rank.error.message.empty() && !rank.left)) return -1;
    return rank.error.consequence ? 1 : killed_by(rank) != 0 ? 3 : 2;
  }

  /// The rank of another host that ranks of this one lost first, if no cause lies here; -1: there is none.
  int lost_elsewhere(const JobRank& first) const {
    return culprit_score(first) == 1 ? first_lost_elsewhere(ranks_, options_.ranks, options_.node_rank) : -1;
  }

  std::string message_of(const JobRank& rank) const {
    if (overdue_ == &rank) return overdue_message_;
    if (rank.stop_ended)
      return concat("rank ", rank.rank, " was stopped by a signal for more than ", options_.stop_limit.count(), " ms");
    return rank.ending(killed_by(rank));
  }

  LaunchResult result() const {
    if (interrupted_ != 0) return interrupted_by(interrupted_);
    if (elsewhere_) return {.exit_code = 1, .failed_rank = elsewhere_->first, .message = elsewhere_->second};
    const JobRank* first = nullptr;
    for (const JobRank& rank : ranks_) {
      const int score = culprit_score(rank);
      if (score < 0) continue;
      const int best = first == nullptr ? -1 : culprit_score(*first);
      if (score > best || (score == best && rank.when < first->when)) first = &rank;
    }
    if (first == nullptr) return {};
    const int other = lost_elsewhere(*first);
    const std::string lost = other < 0 ? "" : concat("lost rank ", other, " on another host, see its launcher: ");
    return {.exit_code = 1,
            .failed_rank = other < 0 ? first->rank : other,
            .signal = killed_by(*first),
            .message = lost + message_of(*first) + first->hint() + (losses_ ? losses_->reason() : ""),
            .report = failure_report(records_of(ranks_), first->rank, to_ns(sigterm_at_.value_or(Clock::now())))};
  }

  const LaunchOptions& options_;
  const SignalPipe& signals_;
  LaunchOutput& written_;
  JobGuard& guard_;
  std::shared_ptr<RankOutput> output_;
  std::string scripts_ = scripts_in(options_.command);  // as the ranks run them
  std::list<JobRank> ranks_;
  std::vector<JobStart> due_;  // what could not be started
  WaitWatch waits_;
  const RankVariables variables_;
  const std::vector<std::vector<int>> cores_;
  std::optional<JobLosses> losses_;                       // of an elastic job
  std::unique_ptr<JobHosts> hosts_;                       // of one that has several
  std::optional<std::pair<int, std::string>> elsewhere_;  // a rank of another host by which the job ends, and how
  Clock::time_point next_look_{};                         // at the records
  const JobRank* overdue_ = nullptr;                      // stopped, or absent, for longer than the limit
  std::string overdue_message_{};
  int interrupted_ = 0, left_to_ranks_ = 0;  // signals
  bool hurries_ = false;                     // a second signal kills at once
  std::optional<Clock::time_point> terminate_at_, cause_until_, sigterm_at_, kill_at_;
};

}  // namespace

LaunchResult launch(const LaunchOptions& given) {
  const LaunchOptions options = checked(given);
  const PortRange ports = ports_of(options);
  open_closed_streams();
  const std::string name = random_run_id(), job = job_within(name);
  const SignalPipe signals;
  LaunchOutput output;
  std::optional<ReservedPort> port;  // rank 0's host has it
  if (options.node_rank == 0) port.emplace(options.master_address, options.master_port, ports);
  const std::string folder = options.log_folder.empty() ? "" : concat(options.log_folder, "/", name);
  const auto cores = plan_cores(options, output);
  if (options.verbose && !folder.empty()) remark(options, output, "files of the ranks are in " + folder);
  JobGuard guard(job);
  RankVariables common{
      .port = port ? port->port() : options.master_port, .run_id = run_id_of(options, name), .job = job};
  common.secret = secret_of(options, given_secret());
  for (;; ++common.attempt) {
    LaunchResult result = Job(options, signals, output, guard, common, cores, folder).run();
    end_processes_of(job);
    result.restarts = common.attempt;
    if (result.failed_rank < 0 || common.attempt == options.max_restarts) {
      drain(options, output, signals, result);
      return result;
    }
    remark(options, output,
           concat(result.message, "; restart ", common.attempt + 1, " of ", options.max_restarts,
                  result.report.empty() ? "" : "\n", result.report));
  }
}

}  // namespace duet::ddp
