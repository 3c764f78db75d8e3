// Checkpoints of a training: resuming and saving.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "ddp/group/process_group.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "lib/io/checkpoint.h"
#include "lib/io/folder.h"
#include "lib/position.h"
#include "train/setup.h"

namespace duet::cli {

/// Throws what Checkpointer::resume() would, as far as it can be found without data and ranks: early, and in one
/// process. Makes the folder of checkpoints.
void require_resumable(const TrainOptions& options);

/// Every rank makes one, resumes and saves; rank 0 alone writes.
class Checkpointer {
 public:
  /// Throws DataError for a folder that cannot be written.
  Checkpointer(const TrainOptions& options, Setup& setup, const Images& images, const ddp::ProcessGroup& group);

  /// Loads --resume into model and optimizer; after a launcher's restart, the job's own newest checkpoint instead.
  /// Throws DataError for a checkpoint of another model, run or data set, or none; and where another run writes into
  /// the folder, which from now on is this run's.
  data::Position resume();
  /// Writes a checkpoint into --checkpoint, else into the folder of --resume, where either is given. `accuracy` (0..1)
  /// is that of the last finished epoch.
  void save(const data::Position& position, double accuracy);
  /// Returns how to resume from the checkpoint that this rank has written last; empty if it has written none.
  std::string how_to_resume() const {
    return last_.empty() ? ""
                         : concat("checkpoint: ", last_, "; to resume, repeat the command with --resume ", folder_);
  }
  /// The epoch is over on all ranks: the next one is saved as the best only with a higher accuracy.
  void end_epoch(double accuracy) { best_ = std::max(best_, 100 * accuracy); }
  /// What rank 0 knows of the checkpoints before the next one, for a process that replaces it: so all ranks use its
  /// series.
  std::string& series() { return series_; }
  void stream(StateStream& state);
  /// Whether any rank writes checkpoints.
  bool writes() const { return !folder_.empty(); }
  /// Whether one is due at a position within an epoch; the last step of an epoch leaves it to the epoch's end.
  bool due(const data::Position& position) const;
  /// Steps that the whole run has done at a position.
  std::int64_t total_steps(const data::Position& position) const {
    return position.epoch * setup_.loader->steps() + position.step;
  }

 private:
  bool leader() const { return group_.rank() == 0; }
  void say_position(const std::string& path, bool restarted, const data::Position& position) const;
  void take_blocks(const LoadedCheckpoint& loaded);

  const TrainOptions& options_;
  Setup& setup_;
  Metadata images_;  // as checkpoints hold them
  const ddp::ProcessGroup& group_;
  std::string folder_;  // where it writes checkpoints; empty: it writes none
  std::string series_;  // name of the training in these checkpoints, kept when it is resumed
  std::optional<FolderLock> lock_;
  double best_ = 0;   // per cent
  std::string last_;  // path of the checkpoint that was written last
};

}  // namespace duet::cli
