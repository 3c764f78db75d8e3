// The recovery protocol of an elastic job as a state machine, which a test searches exhaustively: the launcher, which
// is the arbiter, and ranks that run steps of collectives, die, and are replaced or left out until they join again.
// Some ranks may be on another host, whose memory follows that of the arbiter's by orders, and tells it of its ranks by
// reports. Names are those of the runtime.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace duet_test::elastic {

inline constexpr int kRanks = 3;  // with spare processes
inline constexpr int kMostDeaths = 3;
inline constexpr int kSteps = 3;
inline constexpr int kCollectives = 2;  // of a step
inline constexpr int kChunks = 2;       // in which a rank gives its state to others

// A unit between two steps of training, such as an evaluation or a checkpoint, is a step here: some collectives that
// none completes before all have posted, and a commit, counted with the others. With one collective, as a unit may
// have, the searches find the same. A unit whose only collective lets its root go on, as a broadcast may, would not
// hold the ranks one step apart.

/// Mistakes that can be planted, to show that the search finds them.
enum class Mistake {
  none,
  copy_in_place,         // a rank that adopts a state writes it over its own as it comes
  keep_committed,        // the committed step of a lost rank stands for its replacement
  plan_before_arrivals,  // the plan counts ranks that arrived for an earlier generation
  exit_when_committed,   // a rank leaves after its own last step
  wait_for_plan_only,    // a rank that waits for a plan does not see the next generation
  commit_before_sums,    // a step counts when its last bucket is sent
  join_in_place,         // a rank that was left out becomes a member of the generation that runs
  take_from_aborted,     // sums count in which an aborted communicator has a part
  keep_old_line,         // on the other host, what a lost process wrote stands for its replacement
};

struct Rules {
  Mistake mistake = Mistake::none;
  int least = kRanks;             // ranks that go on without a lost one; kRanks: they wait for its replacement
  int most_deaths = kMostDeaths;  // of ranks, and of the other host
  int ranks_elsewhere = 0;        // the last ones
  int spares = 0;                 // the last ones, which wait for the loss of a rank
  bool aborts = false;            // who leaves a group ends the collectives of the others, as NCCL's kernels do
  int ranks() const { return kRanks - spares; }
};

/// Where the process of a rank is. What no other process can observe is not a state of its own: a rank that dies
/// between its last sum and its commit is one that died in `reduced`.
enum class At : std::uint8_t {
  dead,      // and the arbiter has not seen it
  starting,  // runs main() from the top, up to its first training step
  applying,  // is there, but no member of the generation
  arrived,   // waits for a plan; then gives its state or takes another's
  stepping,  // before a collective of a step, or behind the last step
  posted,    // has written its part of a collective
  reduced,   // has summed its elements
  finished,  // waits for all to have ended their training
  exited,
};

inline constexpr std::uint8_t kNoState = 0xff;    // of a process that has just started
inline constexpr std::uint8_t kTornState = 0xfe;  // parts of two steps

struct Rank {
  At at = At::stepping;
  std::uint8_t generation = 0;   // of the group that it is in, or has arrived for
  std::uint8_t step = 0;         // its parameters are those after so many steps
  std::uint8_t collectives = 0;  // completed ones of the step
  std::uint8_t copied = 0;       // chunks of another's state
  auto operator<=>(const Rank&) const = default;
};

/// What lies in the segment of a generation's group. It outlives ranks; all zero once no rank is in it.
struct Group {
  std::uint8_t members = 0;  // a bit for each rank
  std::uint8_t base = 0;     // the step that its ranks agreed on
  std::uint8_t given = 0;    // chunks of the source's state
  std::array<std::uint8_t, kRanks> posted{}, reduced{};
  auto operator<=>(const Group&) const = default;
};

/// What the arbiter decides.
struct Decisions {
  std::uint8_t generation = 0, planned = 0, source = 0;
  bool ended = false;
  auto operator<=>(const Decisions&) const = default;
};

/// What a rank writes into the memory of its host.
struct Line {
  std::uint8_t committed = 0, arrived = 0, finished = 0;  // `finished`: in which generation, + 1
  bool applies = false;
  auto operator<=>(const Line&) const = default;
};
using Lines = std::array<Line, kRanks>;

/// The other host, and what is on its way to it and from it: one order and one report at most. Of ranks, bits and
/// counts by their number.
struct Host {
  Decisions decisions{}, order{};
  Lines lines{}, report{};
  // How many processes had the number before: as the arbiter, the host, and the report have it.
  std::array<std::uint8_t, kRanks> processes{}, started_processes{}, reported_processes{};
  std::uint8_t starts = 0, ordered_starts = 0;     // of processes: not ordered yet, and on their way
  std::uint8_t told = 0;                           // lost processes that the host has reported
  std::uint8_t reported = 0, reported_losses = 0;  // in the report
  bool has_order = false, has_report = false;
  bool is_dead = false;  // with all its processes
  auto operator<=>(const Host&) const = default;
};

/// What lies in memory that the arbiter shares with ranks of its host, and all of the rest.
struct State {
  Decisions decisions{};
  std::uint8_t deaths = 0;
  bool all_lost = false;
  std::uint8_t elsewhere = 0;  // a bit for each rank of the other host
  Lines lines{};
  std::array<Rank, kRanks> ranks{};
  Host host{};
  std::array<Group, 2 * kMostDeaths + 1> groups{};  // each lost rank may join again
  auto operator<=>(const State&) const = default;
  bool is_member(std::size_t rank, std::uint8_t generation) const {
    return (groups[generation].members >> rank & 1) != 0;
  }
  bool is_member(std::size_t rank) const { return is_member(rank, decisions.generation); }
  bool is_elsewhere(std::size_t rank) const { return (elsewhere >> rank & 1) != 0; }
  /// What the rank sees of the decisions.
  const Decisions& seen_by(std::size_t rank) const { return is_elsewhere(rank) ? host.decisions : decisions; }
};
/// All ranks step in the first generation.
State first_state(const Rules& rules);

struct Transition {
  std::string name;
  State next;
  bool death = false;
};

/// What can happen next. Throws std::logic_error where an assertion of the protocol does not hold.
std::vector<Transition> transitions(const State& state, const Rules& rules);

/// The job has ended as it may: all processes there are have the last step, or none was left that had any.
bool is_end(const State& state);

std::string text_of(const State& state);

}  // namespace duet_test::elastic
