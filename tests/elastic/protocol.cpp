#include "tests/elastic/protocol.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace duet_test::elastic {

namespace {

void check(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

void clear_left_groups(State& state) {
  std::uint8_t oldest = state.decisions.generation;
  if (state.elsewhere != 0) oldest = std::min(oldest, state.host.decisions.generation);
  for (std::size_t g = 0; g < oldest; ++g)
    if (std::none_of(state.ranks.begin(), state.ranks.end(), [&](const Rank& rank) {
          return rank.generation == g &&
                 (rank.at == At::stepping || rank.at == At::posted || rank.at == At::reduced ||
                  rank.at == At::finished ||
                  (rank.at == At::arrived && (state.elsewhere != 0 || state.decisions.planned == g)));
        }))
      state.groups[g] = {};
}

/// Collects what one rank can do.
class RankTransitions {
 public:
  RankTransitions(const State& state, const Rules& rules, std::size_t number, std::vector<Transition>& all)
      : state_(state), rules_(rules), mistake_(rules.mistake), number_(number), all_(all) {}

  void collect() {
    const Rank& rank = state_.ranks[number_];
    if (rank.at == At::dead || rank.at == At::exited) return;
    if (state_.deaths < rules_.most_deaths && !state_.decisions.ended && !state_.all_lost)
      add(
          "dies",
          [](State& next, Rank& r, Group&) {
            ++next.deaths;
            r = {.at = At::dead, .generation = 0, .step = kNoState};
          },
          true);
    switch (rank.at) {
      case At::starting: return state_.is_member(number_, seen().generation) ? arrive() : apply();
      case At::applying: return arrive_if_member();
      case At::arrived: return await_plan();
      case At::stepping: return rank.step == kSteps ? finish() : begin_collective();
      case At::finished: return await_end();
      case At::posted: return reduce();
      case At::reduced: return complete();
      case At::dead:
      case At::exited: return;
    }
  }

 private:
  template <typename Change>
  void add(const char* name, Change change, bool death = false) {
    State next = state_;
    Rank& rank = next.ranks[number_];
    change(next, rank, next.groups[rank.generation]);
    clear_left_groups(next);
    all_.push_back({"rank " + std::to_string(number_) + " " + name, next, death});
  }

  const Rank& rank() const { return state_.ranks[number_]; }
  const Group& group() const { return state_.groups[rank().generation]; }
  const Decisions& seen() const { return state_.seen_by(number_); }
  bool behind() const { return seen().generation > rank().generation; }
  /// What the rank writes to.
  Line& line(State& next) const { return (state_.is_elsewhere(number_) ? next.host.lines : next.lines)[number_]; }

  void arrive() {
    add("arrives", [this](State& next, Rank& r, Group&) {
      line(next).arrived = seen().generation;
      line(next).finished = 0;
      line(next).applies = false;
      r = {.at = At::arrived, .generation = seen().generation, .step = r.step};
    });
  }
  void apply() {
    if (seen().ended) return;
    add("applies", [this](State& next, Rank& r, Group&) {
      line(next).applies = true;
      r.at = At::applying;
    });
  }
  void arrive_if_member() {
    if (state_.is_member(number_, seen().generation)) arrive();
  }
  /// A wait that ends in a newer generation makes the step void.
  void arrive_if_behind() {
    if (behind()) arrive();
  }

  void await_plan() {
    if (seen().planned == rank().generation) take_or_give();
    if (mistake_ != Mistake::wait_for_plan_only) arrive_if_behind();
  }

  void take_or_give() {
    const Group& g = group();
    if (rank().step == g.base) {
      if (number_ == seen().source)
        add("gives a chunk", [](State&, Rank& r, Group& own) {
          if (++own.given == kChunks) r.at = At::stepping;
        });
      else
        add("begins", [](State&, Rank& r, Group&) { r.at = At::stepping; });
    } else if (rank().copied < g.given) {
      add("takes a chunk", [this](State& next, Rank& r, Group& own) {
        if (mistake_ == Mistake::copy_in_place) r.step = kTornState;
        if (++r.copied < kChunks) return;
        r = {.at = At::stepping, .generation = r.generation, .step = own.base};
        line(next).committed = own.base;
      });
    }
  }

  void begin_collective() {
    check(rank().step != kTornState && rank().step != kNoState, "a step begins from no whole state");
    arrive_if_behind();
    add("posts", [this](State& next, Rank& r, Group& own) {
      const int step = own.base + own.posted[number_] / kCollectives;
      check(r.step == step, "collectives of two steps meet");
      ++own.posted[number_];
      r.at = At::posted;
      if (mistake_ == Mistake::commit_before_sums && r.collectives + 1 == kCollectives)
        line(next).committed = static_cast<std::uint8_t>(r.step + 1);
    });
  }

  bool all_at(const std::array<std::uint8_t, kRanks>& counts, std::uint8_t count) const {
    for (std::size_t r = 0; r < kRanks; ++r)
      if ((group().members >> r & 1) != 0 && counts[r] < count) return false;
    return true;
  }

  /// Another rank has left the group, and its kernels have sent what they had.
  bool is_aborted() const {
    for (std::size_t r = 0; r < kRanks; ++r)
      if ((group().members >> r & 1) != 0 && state_.ranks[r].generation > rank().generation) return rules_.aborts;
    return false;
  }

  void reduce() {
    if (is_aborted() || all_at(group().posted, group().posted[number_]))
      add("reduces", [this](State&, Rank& r, Group& own) {
        own.reduced[number_] = own.posted[number_];
        r.at = At::reduced;
      });
    arrive_if_behind();
  }

  void complete() {
    const bool counts = !rules_.aborts || !behind() || mistake_ == Mistake::take_from_aborted;
    if (counts && (is_aborted() || all_at(group().reduced, group().reduced[number_]))) {
      check(!is_aborted(), "sums count that an aborted communicator has a part in");
      if (rank().collectives + 1 < kCollectives)
        add("completes", [](State&, Rank& r, Group&) { r.at = At::stepping, ++r.collectives; });
      else
        add("commits", [this](State& next, Rank& r, Group&) {
          r = {.at = At::stepping, .generation = r.generation, .step = static_cast<std::uint8_t>(r.step + 1)};
          line(next).committed = r.step;
        });
    }
    arrive_if_behind();
  }

  void finish() {
    add("has ended its training", [this](State& next, Rank& r, Group&) {
      line(next).finished = static_cast<std::uint8_t>(r.generation + 1);
      r.at = At::finished;
    });
  }

  void await_end() {
    if (seen().ended || mistake_ == Mistake::exit_when_committed)
      add("exits", [](State&, Rank& r, Group&) { r.at = At::exited; });
    arrive_if_behind();
  }

  const State& state_;
  const Rules& rules_;
  Mistake mistake_;
  std::size_t number_;
  std::vector<Transition>& all_;
};

/// A lost rank makes a new generation, in which a process that waits outside has its part, or another process its
/// number, or which goes on without it.
void lose(State& next, const Rules& rules, std::size_t number) {
  Line& line = next.lines[number];
  line.applies = false;
  if (!next.is_member(number)) return;
  const auto own = static_cast<std::uint8_t>(1u << number);
  const std::uint8_t members = next.groups[next.decisions.generation].members;
  const auto others = static_cast<std::uint8_t>(members & ~own);
  const auto spare = std::ranges::find(next.lines, true, &Line::applies);
  const bool is_needed = rules.least >= rules.ranks() || std::popcount(others) < rules.least;
  check(next.decisions.generation + std::size_t{1} < next.groups.size(), "more generations than the model has");
  next.groups[++next.decisions.generation].members = is_needed && spare == next.lines.end() ? members : others;
  if (spare != next.lines.end()) {
    next.groups[next.decisions.generation].members |= static_cast<std::uint8_t>(1u << (spare - next.lines.begin()));
    spare->applies = false;
  }
  line.finished = line.arrived = 0;
  if (rules.mistake != Mistake::keep_committed) line.committed = kNoState;
}

constexpr Rank kStarting = {.at = At::starting, .generation = 0, .step = kNoState};

void see_death(const State& state, const Rules& rules, std::size_t number, std::vector<Transition>& all) {
  if (state.ranks[number].at != At::dead || state.is_elsewhere(number)) return;
  State next = state;
  lose(next, rules, number);
  next.ranks[number] = kStarting;
  all.push_back({"arbiter sees the loss of rank " + std::to_string(number), next});
}

void admit(const State& state, const Rules& rules, std::size_t number, std::vector<Transition>& all) {
  if (!state.lines[number].applies || state.is_member(number)) return;
  const std::uint8_t members = state.groups[state.decisions.generation].members;
  if (std::popcount(members) == rules.ranks()) return;
  State next = state;
  std::uint8_t& generation = next.decisions.generation;
  if (rules.mistake != Mistake::join_in_place) ++generation;
  next.groups[generation].members = static_cast<std::uint8_t>(members | 1u << number);
  next.lines[number].applies = false;
  all.push_back({"arbiter admits rank " + std::to_string(number), next});
}

void publish_plan(const State& state, Mistake mistake, std::vector<Transition>& all) {
  const std::uint8_t generation = state.decisions.generation;
  if (generation == state.decisions.planned) return;
  for (std::size_t r = 0; r < kRanks; ++r) {
    if (!state.is_member(r)) continue;
    const std::uint8_t arrived = state.lines[r].arrived;
    if (mistake == Mistake::plan_before_arrivals ? arrived == 0 : arrived != generation) return;
  }
  State next = state;
  int step = -1;
  for (std::size_t r = 0; r < kRanks; ++r)
    if (state.lines[r].committed != kNoState && state.lines[r].committed > step) {
      step = state.lines[r].committed;
      next.decisions.source = static_cast<std::uint8_t>(r);
    }
  for (const Line& line : state.lines)
    check(line.committed == kNoState || line.committed + 1 >= step, "ranks are more than one step apart");
  next.decisions.planned = generation;
  next.all_lost = step < 0;
  if (step >= 0) next.groups[generation].base = static_cast<std::uint8_t>(step);
  all.push_back({"the plan is published", next});
}

void end(const State& state, std::vector<Transition>& all) {
  for (std::size_t r = 0; r < kRanks; ++r)
    if (state.is_member(r) && state.lines[r].finished != state.decisions.generation + 1) return;
  State next = state;
  next.decisions.ended = true;
  all.push_back({"the job ends", next});
}

/// Collects what can happen between the arbiter and the other host.
class HostTransitions {
 public:
  HostTransitions(const State& state, const Rules& rules, std::vector<Transition>& all)
      : state_(state), rules_(rules), all_(all) {}

  void collect() {
    const Host& host = state_.host;
    if (host.has_report) take_report();
    if (host.is_dead) return lose_host();
    if (host.has_order) follow();
    if (!host.has_order && (host.decisions != state_.decisions || host.starts != 0)) order();
    if (!host.has_report && has_news()) report();
    if (state_.deaths < rules_.most_deaths && !state_.decisions.ended) die();
  }

 private:
  template <typename Use>
  void for_ranks(Use use) const {
    for (std::size_t r = 0; r < kRanks; ++r)
      if (state_.is_elsewhere(r)) use(r, static_cast<std::uint8_t>(1u << r));
  }
  void add(const char* name, State next, bool death = false) {
    clear_left_groups(next);
    all_.push_back({name, std::move(next), death});
  }

  void order() {
    State next = state_;
    Host& host = next.host;
    host.has_order = true;
    host.order = next.decisions;
    host.ordered_starts = std::exchange(host.starts, std::uint8_t{0});
    add("an order is sent", next);
  }

  void follow() {
    State next = state_;
    Host& host = next.host;
    host.decisions = std::exchange(host.order, Decisions{});
    for_ranks([&](std::size_t r, std::uint8_t bit) {
      if ((host.ordered_starts & bit) == 0) return;
      const std::uint8_t committed = rules_.mistake == Mistake::keep_old_line ? host.lines[r].committed : kNoState;
      host.lines[r] = {.committed = committed};
      host.started_processes[r] = host.processes[r];
      host.told &= static_cast<std::uint8_t>(~bit);
      next.ranks[r] = kStarting;
    });
    host.ordered_starts = 0;
    host.has_order = false;
    add("an order comes", next);
  }

  bool is_told(std::uint8_t bit) const { return (state_.host.told & bit) != 0; }
  bool has_news() const {
    bool news = false;
    for_ranks([&](std::size_t r, std::uint8_t bit) {
      news = news || (!is_told(bit) && (state_.ranks[r].at == At::dead || state_.host.lines[r] != state_.lines[r]));
    });
    return news;
  }

  /// The report of a lost process has the line that it wrote last.
  void report() {
    State next = state_;
    Host& host = next.host;
    host.has_report = true;
    for_ranks([&](std::size_t r, std::uint8_t bit) {
      if (is_told(bit)) return;
      host.reported |= bit;
      host.report[r] = host.lines[r];
      host.reported_processes[r] = host.started_processes[r];
      if (state_.ranks[r].at != At::dead) return;
      host.told |= bit;
      host.reported_losses |= bit;
    });
    add("a report is sent", next);
  }

  void take_report() {
    State next = state_;
    Host& host = next.host;
    for_ranks([&](std::size_t r, std::uint8_t bit) {
      if ((host.reported & bit) == 0 || host.reported_processes[r] != host.processes[r]) return;
      next.lines[r] = host.report[r];
      if ((host.reported_losses & bit) == 0 || next.decisions.ended) return;
      lose(next, rules_, r);
      host.starts |= bit;
      ++host.processes[r];
    });
    host.report = {};
    host.reported_processes = {};
    host.reported = host.reported_losses = 0;
    host.has_report = false;
    add("a report comes", next);
  }

  void die() {
    State next = state_;
    ++next.deaths;
    next.host.is_dead = true;
    for_ranks(
        [&](std::size_t r, std::uint8_t) { next.ranks[r] = {.at = At::dead, .generation = 0, .step = kNoState}; });
    add("the other host dies", next, true);
  }

  /// Its ranks start on the arbiter's.
  void lose_host() {
    if (state_.decisions.ended) return;
    State next = state_;
    for_ranks([&](std::size_t r, std::uint8_t) {
      lose(next, rules_, r);
      next.ranks[r] = kStarting;
    });
    next.elsewhere = 0;
    next.host = {};
    add("arbiter sees the loss of the other host", next);
  }

  const State& state_;
  const Rules& rules_;
  std::vector<Transition>& all_;
};

}  // namespace

State first_state(const Rules& rules) {
  constexpr unsigned kAll = (1u << kRanks) - 1;
  State state;
  state.groups[0].members = static_cast<std::uint8_t>((1u << rules.ranks()) - 1);
  for (auto spare = static_cast<std::size_t>(rules.ranks()); spare < kRanks; ++spare) {
    state.ranks[spare] = kStarting;
    state.lines[spare].committed = kNoState;
  }
  state.elsewhere = static_cast<std::uint8_t>(kAll & ~((1u << (kRanks - rules.ranks_elsewhere)) - 1));
  return state;
}

std::vector<Transition> transitions(const State& state, const Rules& rules) {
  std::vector<Transition> all;
  if (state.all_lost) return all;
  for (std::size_t r = 0; r < kRanks; ++r) RankTransitions(state, rules, r, all).collect();
  if (state.elsewhere != 0) HostTransitions(state, rules, all).collect();
  if (state.decisions.ended) return all;
  for (std::size_t r = 0; r < kRanks; ++r) see_death(state, rules, r, all);
  for (std::size_t r = 0; r < kRanks; ++r) admit(state, rules, r, all);
  publish_plan(state, rules.mistake, all);
  end(state, all);
  return all;
}

bool is_end(const State& state) {
  if (state.all_lost)
    return std::none_of(state.ranks.begin(), state.ranks.end(), [](const Rank& r) { return r.step <= kSteps; });
  for (std::size_t r = 0; r < kRanks; ++r) {
    const Rank& rank = state.ranks[r];
    const bool left_out = state.decisions.ended && !state.is_member(r) && rank.step == kNoState;
    if (rank.at != At::dead && !left_out && !(rank.at == At::exited && rank.step == kSteps)) return false;
  }
  return true;
}

std::string text_of(const State& state) {
  constexpr const char* kAt[] = {"dead",   "starting", "applying", "arrived", "stepping",
                                 "posted", "reduced",  "finished", "exited"};
  std::string text = "generation " + std::to_string(state.decisions.generation) + ", planned " +
                     std::to_string(state.decisions.planned);
  for (std::size_t r = 0; r < kRanks; ++r)
    text += "; rank " + std::to_string(r) + ": " + kAt[static_cast<std::size_t>(state.ranks[r].at)] + " in " +
            std::to_string(state.ranks[r].generation) + ", step " + std::to_string(state.ranks[r].step);
  return text;
}

}  // namespace duet_test::elastic
