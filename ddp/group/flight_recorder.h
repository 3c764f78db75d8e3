// Flight recorder: a rank's step and phase, and its last 128 collectives with their times. Under `duet
// launch` it lies in memory that the launcher keeps, so it outlives a rank that is killed.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/descriptor.h"

namespace duet::ddp {

/// Names that memory to a rank: a file of FlightRecorder::bytes() zero bytes.
inline constexpr const char* kFlightRecorderVariable = "DUET_RECORD_FILE";

/// Where a rank is between two collectives.
enum class Phase : std::uint8_t { none, joining, ready, forward, backward, after };
/// How far a call has come. Over NCCL it has ended when the device's stream waits for it.
enum class Progress : std::uint8_t { called, running, ended, failed };

/// One call of a process group; ddp/group/process_group.h defines the numbers.
struct RecordedCall {
  std::uint32_t group = 0;     // a number of the group; equal on all its ranks
  std::int32_t sequence = -1;  // among the group's collectives, as in error messages; -1: a message
  std::uint8_t op = 0, dtype = 0, reduce = 0;
  Phase phase = Phase::none;
  std::int16_t bucket = -1;  // index of the Reducer's bucket; -1: none
  std::int16_t root = 0;
  std::int64_t count = 0;
  std::int32_t step = 0;
  Progress progress = Progress::called;
  std::uint8_t padding[3] = {};
  std::int64_t called_ns = 0, began_ns = 0, ended_ns = 0;  // by the monotonic clock; 0: not yet
};

/// A record as it was at one moment.
struct FlightRecord {
  Phase phase = Phase::none;
  std::int64_t step = 0;              // the first is 1
  std::uint32_t group = 0;            // number of the newest group of all ranks
  std::int64_t left_ns = 0;           // when an exception first dropped a group; 0: none did
  std::int64_t median_step_ns = 0;    // over the last kSteps steps; 0: there were none
  std::vector<RecordedCall> calls{};  // the oldest first
};

class FlightRecorder;

/// Updates the record of one call. Copies refer to the same call; an empty one to none.
class CallMark {
 public:
  CallMark() = default;
  void running() const;
  void ended(bool failed) const;
  /// How long the call may take: `timeout`, or kStepsPerTimeout times the median step of its rank where that is longer.
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const;

 private:
  friend class FlightRecorder;
  CallMark(std::shared_ptr<FlightRecorder> record, std::uint64_t number)
      : record_(std::move(record)), number_(number) {}
  std::shared_ptr<FlightRecorder> record_;
  std::uint64_t number_ = 0;
};

/// Thread-safe; a call costs three readings of the clock, three locks that are hardly ever held, and some stores.
class FlightRecorder : public std::enable_shared_from_this<FlightRecorder> {
 public:
  static constexpr std::size_t kCalls = 128;  // older ones are overwritten
  static constexpr std::size_t kSteps = 15;   // whose median counts
  static constexpr int kStepsPerTimeout = 10;
  static std::size_t bytes();
  /// In the file of kFlightRecorderVariable where that can be had, else in memory of its own.
  static std::shared_ptr<FlightRecorder> make();
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// `step`: in Phase::joining the number of ranks that join.
  void enter(Phase phase, std::int64_t step = 0);
  /// A new group of all ranks begins; returns its number.
  std::uint32_t begin_group();
  /// An exception drops a group, of all ranks or not.
  void leave();
  /// Records a call; its phase, step, progress and times are filled in here.
  CallMark add(const RecordedCall& call);
  /// The next call is this bucket's.
  void next_bucket(int bucket);
  FlightRecord snapshot() const;
  /// Reads the record that a rank, running or ended, has in this file; Phase::none and no calls if it never had one.
  static FlightRecord read(const std::string& path);

 private:
  friend class CallMark;
  struct Memory;
  explicit FlightRecorder(Memory* memory, bool mapped) : memory_(memory), mapped_(mapped) {}
  void mark(std::uint64_t number, Progress progress);
  void note_step();
  Memory* memory_;
  bool mapped_;
  std::array<std::int64_t, kSteps> steps_{};  // how long the last ones took
  std::size_t steps_noted_ = 0;
  std::int64_t step_began_ns_ = 0;
  std::mutex writing_;  // a writer that is overtaken by kCalls others would spoil a later call; readers need no lock
};

/// A number of a new group for the record, equal on all of its ranks and unlike begin_group()'s: a hash, as its ranks
/// need not have made the same groups before. `whole` is the number of the group that it is part of.
std::uint32_t subgroup_number(std::uint32_t whole, const std::string& name);

/// The record of this process as a rank; made when first asked for.
const std::shared_ptr<FlightRecorder>& flight_recorder();

/// A file in memory that a launcher keeps for a rank, which reaches it by a path of /proc; gone with the launcher.
struct RankFile {
  Descriptor memory{};
  std::string path{};  // empty where memory, descriptors or /proc are missing
};
RankFile make_rank_file(const std::string& kind);

/// False for a path of /proc that leads to anything else than such a file: a rank in another PID namespace than its
/// launcher may see another process under its number.
bool may_be_rank_file(const std::string& path);

}  // namespace duet::ddp
