// A block of memory by which a comparison and the parked processes of a cell agree on bursts of training steps. The
// ranks of a cell wait in the kernel: nothing spins, and no collective runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace duet::cli {

/// What one rank measured over the timed steps of a burst. In a process of several ranks the first reports for all.
struct RankBurst {
  double wall_s = 0, used_s = 0, delayed_s = 0;  // see CpuUse
  double median_us = 0, fastest_us = 0, slowest_us = 0;
  double spread_share = 0;  // of its steps: see fit_spread()
};

struct BurstLayout;

/// The mapped file. Moves, does not copy.
class BurstMap {
 public:
  /// Throws DataError where the file cannot be mapped, or is not one that BurstControl made.
  BurstMap(const std::string& path, bool create);
  ~BurstMap();
  BurstMap(const BurstMap&) = delete;
  BurstMap& operator=(const BurstMap&) = delete;
  BurstLayout& operator*() const { return *layout_; }
  BurstLayout* operator->() const { return layout_; }

 private:
  BurstLayout* layout_ = nullptr;
};

/// The side of the comparison. One thread uses it.
class BurstControl {
 public:
  /// Makes the file, for so many ranks.
  BurstControl(std::string path, int ranks);

  const std::string& path() const { return path_; }
  /// Whether all ranks wait for the next command.
  bool parked() const;
  /// Returns when they do, or after `limit`.
  void wait_parked(std::chrono::nanoseconds limit) const;
  /// Starts a burst of so many timed steps in all ranks, which are parked.
  void begin(int steps);
  /// Ends the parked processes.
  void leave() { begin(0); }

  /// Of the last burst, when all are parked again: of every rank, and the text of rank 0.
  std::vector<RankBurst> bursts() const;
  std::string text() const;

 private:
  std::string path_;
  std::uint32_t ranks_;
  BurstMap map_;
  std::uint32_t commands_ = 0;
};

/// The side of a rank. One thread uses it.
class BurstPort {
 public:
  BurstPort(const std::string& path, int rank);

  /// Parks until the next command. Returns the number of timed steps, the same on all ranks, or 0 to end.
  int next();
  /// This rank's timed steps are over.
  void report(const RankBurst& burst);
  /// On rank 0, before it parks. Throws DataError where it is too long.
  void report(const std::string& text);
  /// Whether the timed steps of all ranks are over.
  bool all_reported() const;

 private:
  BurstMap map_;
  std::size_t rank_;
  std::uint32_t seen_ = 0;
};

}  // namespace duet::cli
