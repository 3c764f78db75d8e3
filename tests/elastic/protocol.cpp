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
  for (std::size_t g = 0; g < state.generation; ++g)
    if (std::none_of(state.ranks.begin(), state.ranks.end(), [&](const Rank& rank) {
          return rank.generation == g && (rank.at == At::stepping || rank.at == At::posted || rank.at == At::reduced ||
                                          rank.at == At::finished || (rank.at == At::arrived && state.planned == g));
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
    if (state_.deaths < rules_.most_deaths && !state_.ended && !state_.all_lost)
      add(
          "dies",
          [](State& next, Rank& r, Group&) {
            ++next.deaths;
            r = {.at = At::dead, .generation = 0, .step = kNoState};
          },
          true);
    switch (rank.at) {
      case At::starting: return state_.is_member(number_) ? arrive() : apply();
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
  bool behind() const { return state_.generation > rank().generation; }

  void arrive() {
    add("arrives", [this](State& next, Rank& r, Group&) {
      next.arrived[number_] = next.generation;
      next.finished[number_] = 0;
      r = {.at = At::arrived, .generation = next.generation, .step = r.step};
    });
  }
  void apply() {
    if (!state_.ended) add("applies", [](State&, Rank& r, Group&) { r.at = At::applying; });
  }
  void arrive_if_member() {
    if (state_.is_member(number_)) arrive();
  }
  /// A wait that ends in a newer generation makes the step void.
  void arrive_if_behind() {
    if (behind()) arrive();
  }

  void await_plan() {
    if (state_.planned == rank().generation) take_or_give();
    if (mistake_ != Mistake::wait_for_plan_only) arrive_if_behind();
  }

  void take_or_give() {
    const Group& g = group();
    if (rank().step == g.base) {
      if (number_ == state_.source)
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
        next.committed[number_] = own.base;
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
        next.committed[number_] = static_cast<std::uint8_t>(r.step + 1);
    });
  }

  bool all_at(const std::array<std::uint8_t, kRanks>& counts, std::uint8_t count) const {
    for (std::size_t r = 0; r < kRanks; ++r)
      if ((group().members >> r & 1) != 0 && counts[r] < count) return false;
    return true;
  }

  void reduce() {
    if (all_at(group().posted, group().posted[number_]))
      add("reduces", [this](State&, Rank& r, Group& own) {
        own.reduced[number_] = own.posted[number_];
        r.at = At::reduced;
      });
    arrive_if_behind();
  }

  void complete() {
    if (all_at(group().reduced, group().reduced[number_])) {
      if (rank().collectives + 1 < kCollectives)
        add("completes", [](State&, Rank& r, Group&) { r.at = At::stepping, ++r.collectives; });
      else
        add("commits", [this](State& next, Rank& r, Group&) {
          r = {.at = At::stepping, .generation = r.generation, .step = static_cast<std::uint8_t>(r.step + 1)};
          next.committed[number_] = r.step;
        });
    }
    arrive_if_behind();
  }

  void finish() {
    add("has ended its training", [this](State& next, Rank& r, Group&) {
      next.finished[number_] = static_cast<std::uint8_t>(r.generation + 1);
      r.at = At::finished;
    });
  }

  void await_end() {
    if (state_.ended || mistake_ == Mistake::exit_when_committed)
      add("exits", [](State&, Rank& r, Group&) { r.at = At::exited; });
    arrive_if_behind();
  }

  const State& state_;
  const Rules& rules_;
  Mistake mistake_;
  std::size_t number_;
  std::vector<Transition>& all_;
};

/// A dead rank makes a new generation, in which another process has its number, or which goes on without it.
void see_death(const State& state, const Rules& rules, std::size_t number, std::vector<Transition>& all) {
  if (state.ranks[number].at != At::dead) return;
  State next = state;
  next.ranks[number] = {.at = At::starting, .generation = 0, .step = kNoState};
  if (state.is_member(number)) {
    const auto own = static_cast<std::uint8_t>(1u << number);
    const std::uint8_t members = state.groups[state.generation].members;
    const bool others_go_on = rules.least < kRanks && std::popcount(members) > rules.least;
    next.groups[++next.generation].members = others_go_on ? members & ~own : members;
    next.finished[number] = 0;
    if (rules.mistake != Mistake::keep_committed) next.committed[number] = kNoState;
  }
  all.push_back({"arbiter sees the loss of rank " + std::to_string(number), next});
}

void admit(const State& state, Mistake mistake, std::size_t number, std::vector<Transition>& all) {
  if (state.ranks[number].at != At::applying || state.is_member(number)) return;
  State next = state;
  if (mistake != Mistake::join_in_place) ++next.generation;
  next.groups[next.generation].members =
      static_cast<std::uint8_t>(state.groups[state.generation].members | 1u << number);
  all.push_back({"arbiter admits rank " + std::to_string(number), next});
}

void publish_plan(const State& state, Mistake mistake, std::vector<Transition>& all) {
  if (state.generation == state.planned) return;
  for (std::size_t r = 0; r < kRanks; ++r) {
    if (!state.is_member(r)) continue;
    const std::uint8_t arrived = state.arrived[r];
    if (mistake == Mistake::plan_before_arrivals ? arrived == 0 : arrived != state.generation) return;
  }
  State next = state;
  int step = -1;
  for (std::size_t r = 0; r < kRanks; ++r)
    if (state.committed[r] != kNoState && state.committed[r] > step) {
      step = state.committed[r];
      next.source = static_cast<std::uint8_t>(r);
    }
  for (const std::uint8_t committed : state.committed)
    check(committed == kNoState || committed + 1 >= step, "ranks are more than one step apart");
  next.planned = state.generation;
  next.all_lost = step < 0;
  if (step >= 0) next.groups[state.generation].base = static_cast<std::uint8_t>(step);
  all.push_back({"the plan is published", next});
}

void end(const State& state, std::vector<Transition>& all) {
  for (std::size_t r = 0; r < kRanks; ++r)
    if (state.is_member(r) && state.finished[r] != state.generation + 1) return;
  State next = state;
  next.ended = true;
  all.push_back({"the job ends", next});
}

}  // namespace

State first_state() {
  State state;
  state.groups[0].members = (1u << kRanks) - 1;
  return state;
}

std::vector<Transition> transitions(const State& state, const Rules& rules) {
  std::vector<Transition> all;
  if (state.all_lost) return all;
  for (std::size_t r = 0; r < kRanks; ++r) RankTransitions(state, rules, r, all).collect();
  if (state.ended) return all;
  for (std::size_t r = 0; r < kRanks; ++r) see_death(state, rules, r, all);
  for (std::size_t r = 0; r < kRanks; ++r) admit(state, rules.mistake, r, all);
  publish_plan(state, rules.mistake, all);
  end(state, all);
  return all;
}

bool is_end(const State& state) {
  if (state.all_lost)
    return std::none_of(state.ranks.begin(), state.ranks.end(), [](const Rank& r) { return r.step <= kSteps; });
  for (std::size_t r = 0; r < kRanks; ++r) {
    const Rank& rank = state.ranks[r];
    const bool left_out = state.ended && !state.is_member(r) && rank.step == kNoState;
    if (rank.at != At::dead && !left_out && !(rank.at == At::exited && rank.step == kSteps)) return false;
  }
  return true;
}

std::string text_of(const State& state) {
  constexpr const char* kAt[] = {"dead",   "starting", "applying", "arrived", "stepping",
                                 "posted", "reduced",  "finished", "exited"};
  std::string text = "generation " + std::to_string(state.generation) + ", planned " + std::to_string(state.planned);
  for (std::size_t r = 0; r < kRanks; ++r)
    text += "; rank " + std::to_string(r) + ": " + kAt[static_cast<std::size_t>(state.ranks[r].at)] + " in " +
            std::to_string(state.ranks[r].generation) + ", step " + std::to_string(state.ranks[r].step);
  return text;
}

}  // namespace duet_test::elastic
