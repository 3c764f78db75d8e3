// Every interleaving of the recovery protocol with one to three deaths.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/elastic/protocol.h"
#include "tests/support/catch2.h"

using namespace duet_test::elastic;

namespace {

struct HashState {
  static_assert(std::has_unique_object_representations_v<State>);
  std::size_t operator()(const State& state) const {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const std::byte byte : std::as_bytes(std::span(&state, 1)))
      hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 1099511628211u;
    return hash;
  }
};

/// All states that can be reached, breadth first, so that the path to one is a shortest.
class Search {
 public:
  explicit Search(const Rules& rules) : rules_(rules) {
    number_of(first_state(rules), 0);
    for (std::uint32_t at = 0; at < states_.size() && problem_.empty(); ++at) expand(at);
    if (problem_.empty()) check_ends();
  }

  std::size_t states() const { return states_.size(); }
  std::size_t ends() const { return ends_; }
  const std::string& problem() const { return problem_; }  // with the path to it; empty: none

 private:
  std::uint32_t number_of(const State& state, std::uint32_t from) {
    const auto [place, is_new] = numbers_.try_emplace(state, static_cast<std::uint32_t>(states_.size()));
    if (is_new) {
      states_.push_back(&place->first);
      from_.push_back(from);
    }
    return place->second;
  }

  void expand(std::uint32_t at) {
    try {
      for (const Transition& transition : transitions(*states_[at], rules_)) {
        const std::uint32_t next = number_of(transition.next, at);
        if (!transition.death) edges_.emplace_back(next, at);
      }
    } catch (const std::logic_error& error) {
      problem_ = error.what() + path_to(at);
    }
  }

  /// An end can be reached from every state without a death, so no wait lasts for ever.
  void check_ends() {
    std::vector<char> reaches(states_.size());
    std::vector<std::uint32_t> open;
    const auto reach = [&](std::uint32_t state) {
      if (std::exchange(reaches[state], 1) == 0) open.push_back(state);
    };
    for (std::uint32_t i = 0; i < states_.size(); ++i)
      if (is_end(*states_[i])) ++ends_, reach(i);
    std::sort(edges_.begin(), edges_.end());
    while (!open.empty()) {
      const std::uint32_t to = open.back();
      open.pop_back();
      for (auto edge = std::lower_bound(edges_.begin(), edges_.end(), std::pair{to, std::uint32_t{0}});
           edge != edges_.end() && edge->first == to; ++edge)
        reach(edge->second);
    }
    const auto stuck = std::find(reaches.begin(), reaches.end(), 0);
    if (stuck != reaches.end())
      problem_ = "no end can be reached" + path_to(static_cast<std::uint32_t>(std::distance(reaches.begin(), stuck)));
  }

  std::string path_to(std::uint32_t at) const {
    std::string path = "\n  " + text_of(*states_[at]);
    for (; at != 0; at = from_[at])
      for (const Transition& transition : transitions(*states_[from_[at]], rules_))
        if (transition.next == *states_[at]) {
          path = "\n  " + transition.name + path;
          break;
        }
    return path;
  }

  const Rules rules_;
  std::unordered_map<State, std::uint32_t, HashState> numbers_;
  std::vector<const State*> states_;
  std::vector<std::uint32_t> from_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;  // to, from
  std::size_t ends_ = 0;
  std::string problem_;
};

}  // namespace

TEST_CASE("ranks that die and are replaced at any moment agree on every step, and none waits for ever") {
  const Search search({});
  INFO(search.states() << " states; " << search.problem());
  CHECK(search.problem().empty());
  CHECK(search.ends() > 0);
}

TEST_CASE("ranks go on without lost ones, which join again at any moment, and none waits for ever") {
  const int least = GENERATE(1, 2);
  const Search search({.least = least, .most_deaths = 2});
  INFO("at least " << least << ": " << search.states() << " states; " << search.problem());
  CHECK(search.problem().empty());
  CHECK(search.ends() > 0);
}

TEST_CASE("spare processes take the parts of lost ranks at any moment, and none waits for ever") {
  const Rules rules = GENERATE(Rules{.spares = 1}, Rules{.least = 1, .most_deaths = 2, .spares = 1});
  const Search search(rules);
  INFO("at least " << rules.least << ": " << search.states() << " states; " << search.problem());
  CHECK(search.problem().empty());
  CHECK(search.ends() > 0);
  const auto mistake = GENERATE(Mistake::plan_before_arrivals, Mistake::keep_committed);
  const Search mistaken({.mistake = mistake, .most_deaths = 2, .spares = 1});
  INFO("mistake " << static_cast<int>(mistake));
  CHECK_FALSE(mistaken.problem().empty());
}

TEST_CASE("ranks of another host, whose memory follows, agree with the others, and none waits for ever") {
  const Rules rules =
      GENERATE(Rules{.most_deaths = 2, .ranks_elsewhere = 1}, Rules{.most_deaths = 2, .ranks_elsewhere = 2},
               Rules{.least = 1, .most_deaths = 1, .ranks_elsewhere = 1});
  const Search search(rules);
  INFO(rules.ranks_elsewhere << " there, at least " << rules.least << ": " << search.states() << " states; "
                             << search.problem());
  CHECK(search.problem().empty());
  CHECK(search.ends() > 0);
}

TEST_CASE("ranks whose communicators are aborted agree, and none waits for ever") {
  const Rules rules = GENERATE(Rules{.aborts = true}, Rules{.least = 1, .most_deaths = 2, .aborts = true});
  const Search search(rules);
  INFO("at least " << rules.least << ": " << search.states() << " states; " << search.problem());
  CHECK(search.problem().empty());
  CHECK(search.ends() > 0);
  const Search mistaken(
      {.mistake = Mistake::take_from_aborted, .least = rules.least, .most_deaths = 1, .aborts = true});
  CHECK_FALSE(mistaken.problem().empty());
}

TEST_CASE("the search finds mistakes that are planted in the protocol") {
  const auto mistake = GENERATE(Mistake::copy_in_place, Mistake::keep_committed, Mistake::plan_before_arrivals,
                                Mistake::exit_when_committed, Mistake::wait_for_plan_only, Mistake::commit_before_sums);
  const Search search({.mistake = mistake});
  INFO("mistake " << static_cast<int>(mistake));
  CHECK_FALSE(search.problem().empty());
}

TEST_CASE("the search finds mistakes about ranks that were left out") {
  const auto mistake = GENERATE(Mistake::join_in_place, Mistake::keep_committed, Mistake::wait_for_plan_only);
  const Search search({.mistake = mistake, .least = 1, .most_deaths = 2});
  INFO("mistake " << static_cast<int>(mistake));
  CHECK_FALSE(search.problem().empty());
}

TEST_CASE("the search finds mistakes about ranks of another host") {
  const auto mistake = GENERATE(Mistake::keep_old_line, Mistake::commit_before_sums);
  const Search search({.mistake = mistake, .most_deaths = 2, .ranks_elsewhere = 1});
  INFO("mistake " << static_cast<int>(mistake));
  CHECK_FALSE(search.problem().empty());
}
