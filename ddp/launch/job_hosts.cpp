#include "ddp/launch/job_hosts.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "ddp/launch/rank_environment.h"
#include "ddp/store/secret.h"
#include "ddp/store/tcp_store.h"
#include "lib/base/descriptor.h"
#include "lib/base/recovery.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {

namespace {

constexpr Milliseconds kHeartbeat{250};  // commits go along with it
constexpr Milliseconds kSlice{100};      // in which threads look whether they are to end

std::unique_ptr<TcpStore> make_store(const LaunchOptions& options, const JobMeeting& meeting, bool serves,
                                     Milliseconds timeout = kHostLimit) {
  return std::make_unique<TcpStore>(TcpStoreOptions{.host = options.master_address,
                                                    .port = meeting.port,
                                                    .run = meeting.run,
                                                    .secret = meeting.secret,
                                                    .serve = serves,
                                                    .ranks = options.nodes * (options.ranks + 2),
                                                    .timeout = timeout});
}

template <class Message>
std::string written(Message message) {
  StateStream stream{std::vector<std::byte>()};
  message.stream(stream);
  const std::vector<std::byte> bytes = stream.written();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class Message>
Message read(const std::string& text) {
  StateStream stream{std::as_bytes(std::span(text))};
  Message message;
  message.stream(stream);
  require<CommError>(stream.at_end(), "a launcher of the elastic job has sent ", text.size(), " bytes, too many");
  return message;
}

template <class Value>
void stream_each(StateStream& stream, std::vector<Value>& values) {
  std::uint32_t count = static_cast<std::uint32_t>(values.size());
  stream.value(count);
  if (stream.reads()) stream.require_left(count, 1);
  values.resize(count);
  for (Value& value : values) value.stream(stream);
}

/// From another host to the arbiter's.
struct Report {
  struct Loss {
    std::int32_t rank = 0, replacement = 0, phase = 0;
    std::string how{};

    void stream(StateStream& stream) {
      for (std::int32_t* const number : {&rank, &replacement, &phase}) stream.value(*number);
      stream.sequence(how);
    }
  };
  std::vector<JobLine> lines{};
  std::vector<Loss> losses{};
  enum class End : std::uint8_t { none, well, failed, left };
  End ended = End::none;
  std::string failure{};

  void stream(StateStream& stream) {
    stream.sequence(lines);
    stream_each(stream, losses);
    stream.value(ended);
    stream.sequence(failure);
  }
};

/// From the arbiter's host to another one.
struct Order {
  struct Start {
    std::int32_t rank = 0, replacement = 0;
    std::uint8_t is_first = 0;  // since all have begun

    void stream(StateStream& stream) {
      stream.value(rank);
      stream.value(replacement);
      stream.value(is_first);
    }
  };
  std::int32_t begun = 0;  // how often all ranks have begun again
  std::vector<std::byte> decisions{};
  std::vector<Start> starts{};
  std::uint8_t ended = 0;
  std::string reason{};

  void stream(StateStream& stream) {
    stream.value(begun);
    stream.sequence(decisions);
    stream_each(stream, starts);
    stream.value(ended);
    stream.sequence(reason);
  }
};

/// Wakes the thread that supervises the processes.
class Bell {
 public:
  Bell() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    require<CommError>(event_.open(), "no descriptor for the launchers of other hosts: ", last_errno);
  }
  int descriptor() const { return event_.get(); }
  void ring() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(event_.get(), &one, sizeof one);
  }
  void reset() const {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
  }

 private:
  Descriptor event_;
};

/// What comes under PREFIX/0, PREFIX/1, ... of a store, in this order.
class Inbox {
 public:
  Inbox(std::unique_ptr<Store> store, std::string prefix, const Bell& bell)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        bell_(bell),
        thread_(start_thread("the thread that hears other launchers", [this] { serve(); })) {}
  ~Inbox() {
    stopping_ = true;
    thread_.join();
  }
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(texts_, {});
  }
  /// When the last one came, or the first was waited for.
  Clock::time_point heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }
  /// Why nothing comes any more; empty: something may.
  std::string lost() {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

 private:
  void serve() {
    try {
      for (std::int64_t next = 0; !stopping_;) {
        const std::string key = concat(prefix_, next);
        if (!comes(key)) continue;
        const std::string text = store_->get(key);
        store_->delete_key(key);
        ++next;
        const std::lock_guard lock(mutex_);
        texts_.push_back(text);
        heard_ = Clock::now();
        bell_.ring();
      }
    } catch (const Error& error) {
      const std::lock_guard lock(mutex_);
      lost_ = error.what();
      bell_.ring();
    }
  }

  /// Waits for it a moment.
  bool comes(const std::string& key) {
    try {
      store_->wait({key}, kSlice);
      return true;
    } catch (const CommError&) {
      return store_->check({key});  // throws where the store is lost
    }
  }

  const std::unique_ptr<Store> store_;
  const std::string prefix_;
  const Bell& bell_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::vector<std::string> texts_;
  std::string lost_;
  Clock::time_point heard_ = Clock::now();
  std::thread thread_;
};

/// Rings when the memory changes.
class MemoryWatch {
 public:
  MemoryWatch(const JobMemory& memory, const Bell& bell)
      : thread_(start_thread("the thread that watches the elastic job's memory", [this, &memory, &bell] {
          for (std::uint32_t seen = memory.changes(); !stopping_;) {
            memory.await_change(seen, kSlice);
            if (const std::uint32_t now = memory.changes(); std::exchange(seen, now) != now) bell.ring();
          }
        })) {}
  ~MemoryWatch() {
    stopping_ = true;
    thread_.join();
  }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// What a launcher sends to another one: at once where anything but commits has changed, else now and then.
class Outbox {
 public:
  Outbox(Store& store, std::string prefix, const JobMemory& memory)
      : store_(store), prefix_(std::move(prefix)), memory_(memory) {}
  bool is_due() const { return memory_.changes() != changes_ || Clock::now() >= sent_ + kHeartbeat; }
  /// Before what is sent is read from the memory.
  void note_changes() { changes_ = memory_.changes(); }
  void send(const std::string& text) {
    sent_ = Clock::now();
    store_.set(concat(prefix_, next_++), text);
  }

 private:
  Store& store_;
  const std::string prefix_;
  const JobMemory& memory_;
  std::uint32_t changes_ = 0;
  Clock::time_point sent_{};
  std::int64_t next_ = 0;
};

const char* const kGreetings = "launchers/greeting/";
const char* const kGreeters = "launchers/greeters";

std::string prefix_of(const std::string& session, const char* direction) {
  return concat("launchers/", session, "/", direction, "/");
}

/// Of the keys of the ranks.
std::string prefix_of(std::int32_t begun) { return concat("ranks/", begun, "/"); }

class ArbiterHosts final : public JobHosts {
 public:
  ArbiterHosts(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory, JobArbiter& arbiter)
      : options_(options),
        meeting_(meeting),
        memory_(memory),
        arbiter_(arbiter),
        store_(make_store(options, meeting, true)),
        greetings_(make_store(options, meeting, false), kGreetings, bell_),
        watch_(memory, bell_) {
    for (int rank = 0; rank < options.nodes * options.ranks; ++rank)
      places_.push_back(home_of(rank) == 0 ? Place{.host = 0, .processes = 1, .is_begun = true} : Place{});
  }

  ~ArbiterHosts() override {
    const Clock::time_point until = Clock::now() + kHostLimit;  // for the last that they have to be told
    while (!links_.empty() && Clock::now() < until) {
      exchange();
      pollfd event{bell_.descriptor(), POLLIN, 0};
      ::poll(&event, 1, static_cast<int>(kSlice.count()));
    }
  }

  int descriptor() const override { return bell_.descriptor(); }

  std::vector<HostEvent> exchange() override {
    bell_.reset();
    for (const std::string& text : greetings_.take()) welcome(text);
    for (auto& [host, link] : links_) hear(host, *link);
    lose_hosts();
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
    ++begun_;
    std::vector<int> here;
    for (Place& place : places_) place.is_lost = place.is_begun = false;
    for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
      if (home_of(rank) != 0 && place_of(rank).processes == 0) continue;  // its host has not come yet
      if (replace(rank, true) == Start::here) here.push_back(rank);
    }
    return here;
  }

  std::string store() const override { return prefix_of(begun_); }

  bool is_needed() const override { return !memory_.ended() || !links_.empty(); }

  void end(const std::string& failure, bool) override {
    ended_ = true;
    reason_ = failure;
  }

 private:
  static constexpr int kNowhere = -1;
  struct Place {
    int host = kNowhere;    // that its process is on
    int processes = 0;      // that have had its number
    bool is_begun = false;  // one since all have begun
    bool is_lost = false;   // with its host, and nobody has been told yet
  };
  struct Link {
    Link(Store& store, std::unique_ptr<Store> heard, const std::string& session, const JobMemory& memory,
         const Bell& bell)
        : inbox(std::move(heard), prefix_of(session, "reports"), bell),
          outbox(store, prefix_of(session, "orders"), memory) {}
    Inbox inbox;
    Outbox outbox;
    std::vector<Order::Start> starts{};
    bool told = false;  // to end
    bool ended = false;
    std::string left{};  // why
  };

  Place& place_of(int rank) { return places_[static_cast<std::size_t>(rank)]; }
  int home_of(int rank) const { return rank / options_.ranks; }

  /// Of the hosts that are left: the one it was on, else its own one, else one with the fewest processes.
  int host_for(int rank, int last) const {
    const auto is_left = [&](int host) { return host == 0 || links_.contains(host); };
    if (last != kNowhere && is_left(last)) return last;
    if (is_left(home_of(rank))) return home_of(rank);
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
    links_.at(place.host)->starts.push_back({rank, before, is_first});
    return Start::elsewhere;
  }

  void welcome(const std::string& text) {
    const std::size_t blank = text.find(' ');
    const int host = parse_number<int>(std::string_view(text).substr(0, blank)).value_or(0);
    if (blank == std::string::npos || host < 1 || host >= options_.nodes) return;
    if (links_.contains(host)) lose_host(host, "was started again");
    links_.emplace(host, std::make_unique<Link>(*store_, make_store(options_, meeting_, false), text.substr(blank + 1),
                                                memory_, bell_));
    for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
      Place& place = place_of(rank);
      if (home_of(rank) != host || place.host != kNowhere || place.is_lost || memory_.ended()) continue;
      place.host = host;
      start(rank);
    }
    if (!known_.insert(host).second)
      events_.push_back({.kind = HostEvent::Kind::remarks, .text = concat("host ", host, " takes part again")});
  }

  void hear(int host, Link& link) {
    for (const std::string& text : link.inbox.take()) {
      const Report report = read<Report>(text);
      for (const JobLine& line : report.lines)
        if (is_current(host, line.rank, line.replacement)) arbiter_.take(line);
      for (const Report::Loss& loss : report.losses)
        if (is_current(host, loss.rank, loss.replacement))
          events_.push_back({.kind = HostEvent::Kind::lost,
                             .rank = loss.rank,
                             .phase = static_cast<Phase>(loss.phase),
                             .text = loss.how});
      link.ended = link.ended || report.ended == Report::End::well || report.ended == Report::End::failed;
      if (report.ended == Report::End::left) link.left = report.failure;
      if (report.ended == Report::End::failed)
        events_.push_back({.kind = HostEvent::Kind::ends, .text = concat("host ", host, ": ", report.failure)});
    }
  }

  bool is_current(int host, int rank, int replacement) {
    return 0 <= rank && rank < static_cast<int>(places_.size()) && place_of(rank).host == host &&
           place_of(rank).processes == replacement + 1;
  }

  void lose_hosts() {
    std::map<int, std::string> lost;
    for (const auto& [host, link] : links_) {
      if (!link->left.empty()) lost[host] = concat("has left the job: ", link->left);
      if (link->left.empty() && !link->ended && Clock::now() > link->inbox.heard() + kHostLimit)
        lost[host] = concat("has said nothing for ", kHostLimit.count() / 1000, " s");
    }
    for (const auto& [host, how] : lost) lose_host(host, how);
  }

  /// Its launcher is told, in case it comes back.
  void lose_host(int host, const std::string& how) {
    links_.at(host)->outbox.send(
        written(Order{begun_, arbiter_.decisions(), {}, 1, concat("host ", host, " counts as lost, as it ", how)}));
    links_.erase(host);
    bool first = true;
    for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
      Place& place = place_of(rank);
      if (place.host != host) continue;
      place.host = kNowhere;
      place.is_lost = true;
      events_.push_back({.kind = HostEvent::Kind::lost,
                         .rank = rank,
                         .is_same_loss = !std::exchange(first, false),
                         .text = concat("rank ", rank, " is lost with host ", host, ", which ", how)});
    }
  }

  void send(Link& link) {
    if (link.ended || link.told || (link.starts.empty() && !ended_ && !link.outbox.is_due())) return;
    link.outbox.note_changes();
    link.outbox.send(written(Order{begun_, arbiter_.decisions(), std::exchange(link.starts, {}), ended_, reason_}));
    link.told = ended_;
  }

  const LaunchOptions& options_;
  const JobMeeting meeting_;
  JobMemory& memory_;
  JobArbiter& arbiter_;
  Bell bell_;
  const std::unique_ptr<TcpStore> store_;
  Inbox greetings_;
  MemoryWatch watch_;
  std::vector<Place> places_;                   // by rank
  std::map<int, std::unique_ptr<Link>> links_;  // by host
  std::set<int> known_;                         // hosts that have taken part
  std::vector<HostEvent> events_;
  std::int32_t begun_ = 0;  // how often all ranks have begun again
  bool ended_ = false;
  std::string reason_;
};

class FollowerHosts final : public JobHosts {
 public:
  FollowerHosts(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory, Milliseconds timeout,
                std::function<void()> end_processes)
      : session_(random_run_id()),
        memory_(memory),
        follower_(memory),
        store_(make_store(options, meeting, false, timeout)),
        inbox_(make_store(options, meeting, false), prefix_of(session_, "orders"), bell_),
        outbox_(*store_, prefix_of(session_, "reports"), memory),
        watch_(memory, bell_),
        end_processes_(std::move(end_processes)) {
    store_->set(concat(kGreetings, store_->add(kGreeters, 1) - 1), concat(options.node_rank, ' ', session_));
  }

  int descriptor() const override { return bell_.descriptor(); }

  std::vector<HostEvent> exchange() override {
    bell_.reset();
    std::vector<HostEvent> events;
    for (const std::string& text : inbox_.take()) {
      const Order order = read<Order>(text);
      if (std::exchange(begun_, order.begun) != order.begun) {
        end_processes_();
        follower_.clear();
        own_.clear();
      }
      for (const Order::Start& start : order.starts) {
        follower_.begin(start.rank, start.is_first != 0);
        own_[start.rank] = start.replacement;
        events.push_back({.kind = HostEvent::Kind::start,
                          .rank = start.rank,
                          .replacement = start.replacement,
                          .joins = start.is_first == 0});
      }
      take(order.decisions);
      if (order.ended != 0) {
        is_over_ = true;
        if (!order.reason.empty()) events.push_back({.kind = HostEvent::Kind::ends, .text = order.reason});
      }
    }
    if (is_over_) return events;
    if (const std::string gone = look_for_arbiter(); !gone.empty()) {
      is_over_ = true;
      events.push_back({.kind = HostEvent::Kind::ends, .text = "the launcher of host 0 " + gone});
    }
    return events;
  }

  void lose(int rank, const std::string& how, Phase phase) override {
    try_send({.losses = {{rank, own_.at(rank), static_cast<std::int32_t>(phase), how}}});
    own_.erase(rank);
  }

  Start replace(int, bool) override { return Start::later; }
  std::vector<int> begin_again() override { return {}; }
  std::string store() const override { return prefix_of(begun_); }

  bool is_needed() const override { return !is_over_ && !memory_.ended(); }

  void end(const std::string& failure, bool leaves) override {
    using End = Report::End;
    try_send({.ended = is_over_ || failure.empty() ? End::well : leaves ? End::left : End::failed, .failure = failure});
  }

 private:
  /// Sends what is due. Why the arbiter's launcher is no longer there; empty: it is.
  std::string look_for_arbiter() {
    if (Clock::now() > inbox_.heard() + kHostLimit)
      return concat("has said nothing for ", kHostLimit.count() / 1000, " s");
    if (outbox_.is_due()) try_send({});
    const std::string lost = unsent_.empty() ? inbox_.lost() : unsent_;
    return lost.empty() ? "" : "is gone: " + lost;
  }

  void try_send(Report report) {
    try {
      if (unsent_.empty()) send(std::move(report));
    } catch (const CommError& error) {
      unsent_ = error.what();
    }
  }

  void take(const std::vector<std::byte>& decisions) {
    std::vector<int> own;
    for (const auto& [rank, replacement] : own_) own.push_back(rank);
    follower_.take(decisions, own);
  }

  void send(Report report) {
    outbox_.note_changes();
    for (const auto& [rank, replacement] : own_) report.lines.push_back(follower_.line(rank, replacement));
    outbox_.send(written(std::move(report)));
  }

  const std::string session_;
  JobMemory& memory_;
  JobFollower follower_;
  Bell bell_;
  const std::unique_ptr<TcpStore> store_;
  Inbox inbox_;
  Outbox outbox_;
  MemoryWatch watch_;
  const std::function<void()> end_processes_;
  std::int32_t begun_ = 0;  // how often all ranks have begun again
  std::map<int, int> own_;  // processes on this host, and how many had their number before
  bool is_over_ = false;
  std::string unsent_;  // why nothing can be sent any more
};

}  // namespace

std::unique_ptr<JobHosts> make_job_arbiter(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory,
                                           JobArbiter& arbiter) {
  return std::make_unique<ArbiterHosts>(options, meeting, memory, arbiter);
}

std::unique_ptr<JobHosts> make_job_follower(const LaunchOptions& options, const JobMeeting& meeting, JobMemory& memory,
                                            Milliseconds timeout, std::function<void()> end_processes) {
  return std::make_unique<FollowerHosts>(options, meeting, memory, timeout, std::move(end_processes));
}

}  // namespace duet::ddp
