#include "ddp/launch/job_hosts.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "ddp/launch/launcher_link.h"
#include "ddp/launch/rank_environment.h"
#include "ddp/store/tcp_store.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

namespace {

constexpr Milliseconds kPause{100};

std::unique_ptr<TcpStore> make_store(const LaunchOptions& options, const JobMeeting& meeting, bool serves,
                                     Milliseconds timeout = kHostLimit, int interrupt = -1) {
  return std::make_unique<TcpStore>(TcpStoreOptions{.host = options.master_address,
                                                    .port = meeting.port,
                                                    .run = meeting.run,
                                                    .secret = meeting.secret,
                                                    .serve = serves,
                                                    .ranks = options.nodes * (options.ranks + 2),
                                                    .timeout = timeout,
                                                    .interrupt = interrupt});
}

const char* const kGreeting = "launchers/greeting";

/// What is said of a launcher that is_silent().
std::string silence() { return concat("has said nothing for ", kHostLimit.count() / 1000, " s"); }

std::string key_of(const std::string& session, const char* direction) {
  return concat("launchers/", session, "/", direction);
}

/// A host, the size of the job as its launcher was told, and a name for that launcher.
struct Greeting {
  std::int32_t host = 0, nodes = 0, ranks = 0;
  std::string session{};

  void stream(StateStream& stream) {
    for (std::int32_t* const number : {&host, &nodes, &ranks}) stream.value(*number);
    stream.sequence(session);
  }
};

/// The keys of the ranks begin so.
std::string prefix_of(std::int32_t begun) { return concat("ranks/", begun, "/"); }

class ArbiterHosts final : public JobHosts {
 public:
  ArbiterHosts(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory, JobArbiter& arbiter,
               const SignalPipe* signals)
      : options_(options),
        memory_(memory),
        arbiter_(arbiter),
        signals_(signals),
        store_(make_store(options, meeting, true)),
        table_(store_, &store_->served()),
        greetings_(table_, kGreeting, bell_),
        watch_(memory, bell_),
        join_until_(Clock::now() + options.join_timeout) {
    for (int rank = 0; rank < options.nodes * options.ranks; ++rank)
      places_.push_back(home_of(rank) == 0 ? Place{.host = 0, .processes = 1, .is_begun = true} : Place{});
  }

  ~ArbiterHosts() override {
    const Clock::time_point until = Clock::now() + kHostLimit;  // for the last that they have to be told
    while (!links_.empty() && Clock::now() < until) {
      try {
        exchange(true);
      } catch (const Error&) {  // they hear no more of this launcher
        return;
      }
      if (leaves_) return;
      std::array<pollfd, 2> events = {
          {{bell_.descriptor(), POLLIN, 0}, {signals_ != nullptr ? signals_->descriptor() : -1, POLLIN, 0}}};
      ::poll(events.data(), events.size(), static_cast<int>(kPause.count()));
      for (int signal; events[1].revents != 0 && (signal = signals_->next()) != 0;)
        if (!is_left_to_ranks(signal)) return;
    }
  }

  int descriptor() const override { return bell_.descriptor(); }

  std::vector<HostEvent> exchange(bool is_idle) override {
    bell_.reset();
    is_idle_ = is_idle;
    if (!ended_) arbiter_.require_own();
    for (const std::string& text : greetings_.take()) welcome(text);
    for (auto& [host, link] : links_) try {
        hear(host, *link);
        for (Letterbox* const box : {static_cast<Letterbox*>(&link->inbox), static_cast<Letterbox*>(&link->outbox)})
          if (const std::string lost = box->lost(); !lost.empty()) link->left = lost;
      } catch (const CommError& error) {
        link->left = error.what();
      }
    require<CommError>(ended_ || greetings_.lost().empty(),
                       "the launchers of other hosts are not heard: ", greetings_.lost());
    lose_hosts();
    look_for_absent();
    if (!ended_) forget_generations();
    for (auto& [host, link] : links_) send(*link);
    std::erase_if(links_, [](const auto& one) { return one.second->ended; });
    return std::exchange(events_, {});
  }

  void lose(int, const std::string&, Phase) override {}

  Start replace(int rank, bool needed) override {
    Place& place = place_of(rank);
    place.is_lost = false;
    if (place.host == kNowhere && !needed && !links_.contains(home_of(rank))) return Start::later;
    place.host = host_for(rank, place.host);
    return start(rank);
  }

  std::vector<int> begin_again() override {
    table_->delete_prefix(prefix_of(begun_++));
    forgotten_ = 0;
    for (auto& [host, link] : links_) link->starts.clear();
    std::vector<int> here;
    for (Place& place : places_) place.is_lost = place.is_begun = false;
    for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
      if (home_of(rank) != 0 && place_of(rank).processes == 0) continue;  // its host has not come yet
      if (replace(rank, true) == Start::here) here.push_back(rank);
    }
    return here;
  }

  std::string store() const override { return prefix_of(begun_); }

  bool is_needed() const override {
    if (memory_.ended()) return !links_.empty();
    const bool all_have_come = static_cast<int>(known_.size()) == options_.nodes - 1;
    return !is_idle_ || !all_have_come ||
           std::ranges::any_of(links_, [](const auto& one) { return !one.second->is_idle; });
  }

  void end(const std::string& failure, bool leaves) override {
    ended_ = true;
    leaves_ = leaves;
    reason_ = failure;
  }

 private:
  static constexpr int kNowhere = -1;
  struct Place {
    int host = kNowhere;    // that its process is on
    int processes = 0;      // that have had its number
    bool is_begun = false;  // one since all have begun
    bool is_lost = false;   // and not replaced yet
  };
  struct Link {
    Link(const std::shared_ptr<Store>& table, const std::string& session, const JobMemory& memory, const Bell& bell)
        : inbox(table, key_of(session, "reports"), bell), outbox(table, key_of(session, "orders"), bell, memory) {}
    Inbox inbox;
    Outbox outbox;
    Backlog<Order::Start> starts{};
    std::int64_t losses = 0;       // that were taken
    std::int64_t told_starts = 0;  // in an order
    bool is_idle = false;          // no process runs there, nor is to start
    bool told = false;             // to end
    bool ended = false;
    std::string left{};  // why
  };

  Place& place_of(int rank) { return places_[static_cast<std::size_t>(rank)]; }
  int home_of(int rank) const { return rank / options_.ranks; }

  /// Takes, of the hosts that are left, its own one, else the one it was on, else one with the fewest processes.
  int host_for(int rank, int last) const {
    const auto is_left = [&](int host) { return host == 0 || links_.contains(host); };
    if (is_left(home_of(rank))) return home_of(rank);
    if (last != kNowhere && is_left(last)) return last;
    int best = 0;
    const auto load = [&](int host) {
      return std::ranges::count_if(places_, [&](const Place& place) { return place.host == host; });
    };
    for (const auto& [host, link] : links_)
      if (load(host) < load(best)) best = host;
    return best;
  }

  Start start(int rank) {
    Place& place = place_of(rank);
    const int before = place.processes++;
    const bool is_first = !std::exchange(place.is_begun, true);
    if (place.host == 0) return Start::here;
    Link& link = *links_.at(place.host);
    link.starts.items.push_back({rank, before, is_first});
    link.is_idle = false;
    return Start::elsewhere;
  }

  void welcome(const std::string& text) {
    Greeting greeting;
    try {
      greeting = read<Greeting>(text);
    } catch (const CommError&) {  // of another version of duet, whose launcher ends by itself
      return;
    }
    const int host = greeting.host;
    if (host < 1 || host >= options_.nodes || greeting.nodes != options_.nodes || greeting.ranks != options_.ranks)
      return refuse(greeting);
    if (memory_.ended() || ended_) return tell(greeting, concat("host ", host, " came after the job had ended"));
    if (links_.contains(host)) lose_host(host, "was started again, or is there twice");
    links_.emplace(host, std::make_unique<Link>(table_, greeting.session, memory_, bell_));
    for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
      Place& place = place_of(rank);
      if (home_of(rank) != host || place.host != kNowhere || place.is_lost) continue;
      place.host = host;
      start(rank);
    }
    if (!known_.insert(host).second)
      events_.push_back({.kind = HostEvent::Kind::remarks, .text = concat("host ", host, " takes part again")});
  }

  void refuse(const Greeting& greeting) {
    const std::string reason =
        concat("the launcher of host 0 has ", options_.nodes, " hosts of ", options_.ranks, " ranks, that of host ",
               greeting.host, " has ", greeting.nodes, " of ", greeting.ranks);
    tell(greeting, reason);
    events_.push_back({.kind = HostEvent::Kind::remarks, .text = reason + ": it is refused"});
  }

  /// Why it does not take part.
  void tell(const Greeting& greeting, const std::string& reason) {
    table_->set(key_of(greeting.session, "orders"), written(Order{.begun = begun_, .ended = 1, .reason = reason}));
  }

  /// Once all have arrived for a generation none of its ranks uses the keys of those before.
  void forget_generations() {
    for (const std::uint32_t planned = memory_.planned(); forgotten_ + 1 < planned; ++forgotten_)
      table_->delete_prefix(prefix_of(begun_) + generation_prefix(forgotten_));
  }

  void hear(int host, Link& link) {
    for (const std::string& text : link.inbox.take()) {
      const Report report = read<Report>(text);
      link.starts.forget(report.taken);
      for (const JobLine& line : report.lines)
        if (is_current(host, line.rank, line.replacement)) arbiter_.take(line);
      for (const Report::Loss& loss : report.losses.take(link.losses)) {
        if (!is_current(host, loss.rank, loss.replacement)) continue;
        place_of(loss.rank).is_lost = true;
        events_.push_back({.kind = HostEvent::Kind::lost,
                           .rank = loss.rank,
                           .phase = static_cast<Phase>(loss.phase),
                           .text = loss.how});
      }
      link.is_idle = report.is_idle != 0 && report.taken == link.starts.end();
      link.ended = link.ended || report.ended == Report::End::well || report.ended == Report::End::failed;
      if (report.ended == Report::End::left) link.left = report.failure;
      if (report.ended == Report::End::well && !memory_.ended() && !link.told) link.left = "all has ended there";
      if (report.ended == Report::End::failed)
        events_.push_back({.kind = HostEvent::Kind::ends, .text = concat("host ", host, ": ", report.failure)});
    }
  }

  bool is_current(int host, int rank, int replacement) {
    return 0 <= rank && rank < static_cast<int>(places_.size()) && place_of(rank).host == host &&
           !place_of(rank).is_lost && place_of(rank).processes == replacement + 1;
  }

  void lose_hosts() {
    std::map<int, std::string> lost;
    for (const auto& [host, link] : links_) {
      if (!link->left.empty()) lost[host] = concat("has left the job: ", link->left);
      if (link->left.empty() && !link->ended && link->inbox.is_silent()) lost[host] = silence();
    }
    for (const auto& [host, how] : lost) lose_host(host, how);
  }

  /// A job to which a host has never come ends.
  void look_for_absent() {
    if (Clock::now() < join_until_ || memory_.ended()) return;
    join_until_ = Clock::time_point::max();
    std::vector<int> absent;
    for (int host = 1; host < options_.nodes; ++host)
      if (!known_.contains(host)) absent.push_back(host);
    if (!absent.empty())
      events_.push_back({.text = concat("no duet launch of ", rank_names(absent, "host"), " came within ",
                                        options_.join_timeout.count(), " ms")});
  }

  /// Its launcher is told, as it may only have been stopped.
  void lose_host(int host, const std::string& how) {
    links_.at(host)->outbox.send(
        written(Order{.begun = begun_, .ended = 1, .reason = concat("host ", host, " counts as lost, as it ", how)}));
    links_.erase(host);
    bool first = true;
    for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
      Place& place = place_of(rank);
      if (place.host != host) continue;
      place.host = kNowhere;
      if (std::exchange(place.is_lost, true)) continue;  // its process was lost before
      events_.push_back({.kind = HostEvent::Kind::lost,
                         .rank = rank,
                         .is_same_loss = !std::exchange(first, false),
                         .text = concat("rank ", rank, " is lost with host ", host, ", which ", how)});
    }
  }

  void send(Link& link) {
    const bool has_news = link.starts.end() != std::exchange(link.told_starts, link.starts.end()) || ended_;
    if (link.ended || link.told || (!has_news && !link.outbox.is_due())) return;
    link.outbox.note_changes();
    link.outbox.send(written(Order{begun_, link.losses, arbiter_.decisions(), link.starts, ended_, reason_}));
    link.told = ended_;
  }

  const LaunchOptions& options_;
  JobMemory& memory_;
  JobArbiter& arbiter_;
  const SignalPipe* const signals_;
  Bell bell_;
  const std::shared_ptr<TcpStore> store_;
  const std::shared_ptr<Store> table_;  // its own
  Inbox greetings_;
  MemoryWatch watch_;
  std::vector<Place> places_;                   // by rank
  std::map<int, std::unique_ptr<Link>> links_;  // by host
  std::set<int> known_;                         // hosts that have taken part
  Clock::time_point join_until_;                // when all must have
  std::vector<HostEvent> events_;
  std::int32_t begun_ = 0;       // how often all ranks have begun again
  std::uint32_t forgotten_ = 0;  // generations whose keys were deleted
  bool is_idle_ = false;         // no process runs here
  bool ended_ = false, leaves_ = false;
  std::string reason_;
};

class FollowerHosts final : public JobHosts {
 public:
  FollowerHosts(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory,
                std::function<bool()> end_processes)
      : session_(random_run_id()),
        memory_(memory),
        follower_(memory),
        processes_(options.nodes * options.ranks),
        store_(make_store(options, meeting, false)),
        inbox_(make_store(options, meeting, false, kHostLimit, leaving_.descriptor()), key_of(session_, "orders"),
               bell_),
        outbox_(store_, key_of(session_, "reports"), bell_, memory),
        watch_(memory, bell_),
        end_processes_(std::move(end_processes)) {
    const std::string greeting = written(Greeting{options.node_rank, options.nodes, options.ranks, session_});
    while (store_->compare_set(kGreeting, "", greeting) != greeting) std::this_thread::sleep_for(kPause);
  }
  ~FollowerHosts() override { leaving_.ring(); }

  int descriptor() const override { return bell_.descriptor(); }

  std::vector<HostEvent> exchange(bool is_idle) override {
    bell_.reset();
    is_idle_ = is_idle;
    std::vector<HostEvent> events;
    for (const std::string& text : inbox_.take()) {
      const Order order = read<Order>(text);
      losses_.forget(order.taken);
      if (order.begun != begun_) {
        if (!end_processes_()) continue;  // the job ends here
        begun_ = order.begun;
        events.clear();  // starts of before
        follower_.clear();
        own_.clear();
        losses_.clear();
      }
      for (const Order::Start& start : order.starts.take(starts_)) {
        require<CommError>(0 <= start.rank && start.rank < processes_ && start.replacement >= 0,
                           "the launcher of host 0 has asked for process ", start.replacement, " of rank ", start.rank,
                           ", expected a rank from 0 to ", processes_ - 1);
        is_idle_ = false;
        follower_.begin(start.rank, start.is_first != 0);
        own_[start.rank] = start.replacement;
        events.push_back({.kind = HostEvent::Kind::start,
                          .rank = start.rank,
                          .replacement = start.replacement,
                          .joins = start.is_first == 0});
      }
      if (!order.decisions.empty()) take(order.decisions);
      if (order.ended != 0) {
        is_over_ = true;
        if (!order.reason.empty()) events.push_back({.kind = HostEvent::Kind::ends, .text = order.reason});
      }
    }
    if (is_over_) return events;
    if (const std::string gone = look_for_arbiter(); !gone.empty()) {
      is_over_ = is_gone_ = true;
      events.push_back({.kind = HostEvent::Kind::ends, .text = "the launcher of host 0 " + gone});
    }
    return events;
  }

  void lose(int rank, const std::string& how, Phase phase) override {
    losses_.items.push_back({rank, own_.at(rank), static_cast<std::int32_t>(phase), how});
    own_.erase(rank);
    send({});
  }

  Start replace(int, bool) override { return Start::later; }
  std::vector<int> begin_again() override { return {}; }
  std::string store() const override { return prefix_of(begun_); }

  bool is_needed() const override { return !is_over_ && !memory_.ended(); }

  void end(const std::string& failure, bool leaves) override {
    using End = Report::End;
    const bool well = failure.empty() || (is_over_ && !is_gone_);
    send({.ended = well ? End::well : leaves || is_gone_ ? End::left : End::failed, .failure = failure});
  }

 private:
  /// Sends what is due. Why the arbiter's launcher is no longer there; empty: it is.
  std::string look_for_arbiter() {
    if (inbox_.is_silent()) return silence();
    if (outbox_.is_due()) send({});
    const std::string lost = outbox_.lost().empty() ? inbox_.lost() : outbox_.lost();
    return lost.empty() ? "" : "is gone: " + lost;
  }

  void take(const std::vector<std::byte>& decisions) {
    std::vector<int> own;
    for (const auto& [rank, replacement] : own_) own.push_back(rank);
    follower_.take(decisions, own);
  }

  void send(Report report) {
    outbox_.note_changes();
    report.taken = starts_;
    report.losses = losses_;
    report.is_idle = is_idle_;
    for (const auto& [rank, replacement] : own_) report.lines.push_back(follower_.line(rank, replacement));
    outbox_.send(written(std::move(report)));
  }

  const std::string session_;
  JobMemory& memory_;
  JobFollower follower_;
  Bell bell_, leaving_;  // the second ends the wait for the arbiter
  const int processes_;
  const std::shared_ptr<TcpStore> store_;
  Inbox inbox_;
  Outbox outbox_;
  MemoryWatch watch_;
  const std::function<bool()> end_processes_;
  std::int64_t starts_ = 0;  // that have been taken
  Backlog<Report::Loss> losses_;
  bool is_idle_ = false;                    // no process runs here
  std::int32_t begun_ = 0;                  // how often all ranks have begun again
  std::map<int, int> own_;                  // processes on this host, and how many had their number before
  bool is_over_ = false, is_gone_ = false;  // the second: the arbiter's launcher, or it is stopped
};

}  // namespace

std::unique_ptr<JobHosts> make_job_arbiter(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory,
                                           JobArbiter& arbiter, const SignalPipe* signals) {
  return std::make_unique<ArbiterHosts>(options, meeting, memory, arbiter, signals);
}

std::unique_ptr<JobHosts> make_job_follower(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory,
                                            Milliseconds timeout, const SignalPipe& signals,
                                            std::function<bool()> end_processes) {
  make_store(options, meeting, false, timeout, signals.ending());  // whether it is there
  return std::make_unique<FollowerHosts>(options, meeting, memory, std::move(end_processes));
}

}  // namespace duet::ddp
