// Checkpoints of a training run: safetensors files in a folder, the last two and the best.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/folder.h"
#include "lib/io/safetensors.h"
#include "lib/position.h"

namespace duet {

/// The state with which a run goes on to the same bits. Only rank 0 writes it; alone, under DataParallel and under
/// DistributedDataParallel the file is the same.
struct Checkpoint {
  data::Position position = {};  // Loader::position(), for another loader's set_position()
  std::int64_t step = 0;         // steps of the optimizer done, over all epochs
  std::string arch = {};         // name of the model: "SimpleCNN"
  double best_acc1 = 0;          // best test accuracy so far, per cent
  NamedTensors model = {};       // Module::state_dict()
  NamedTensors optimizer = {};   // Optimizer::state(); stored as "optimizer.conv1.weight.exp_avg"
  Metadata settings = {};        // what must stay the same when the run goes on: "seed", "lr", ...
  std::string series = {};       // names the training, also after it was resumed: whose files may be removed
};

/// Makes the folder, proves that it can be written, locks it, and removes temporary files of processes that have ended.
/// Keep the lock while checkpoints are written: no other run can prepare the folder then. `run`: named to others by it.
/// Throws DataError when that fails, or when it holds a valid checkpoint of a later step than `step`, which the new run
/// would hide, or one of which that cannot be told as it cannot be read. With a `model`, one that announces more data
/// than a checkpoint of it counts as valid without being read.
FolderLock prepare_checkpoint_folder(const std::string& folder, std::int64_t step = 0, const NamedTensors& model = {},
                                     const std::string& run = "");

/// Makes the folder if it isn't there, writes `folder`/checkpoint-STEP.safetensors atomically, and
/// `folder`/model_best.safetensors too when `best`; then removes all of the same series but this and the checkpoint
/// before it. Returns the path. Throws DataError; older files are then untouched.
std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, bool best = false);

struct LoadedCheckpoint {
  Checkpoint checkpoint;
  std::string path;
  /// One line for each newer file that was passed over, and one where numbers of this one are not finite.
  std::vector<std::string> warnings;
};

/// Reads a file, or the newest valid checkpoint of a folder, in which damaged ones are passed over. Throws DataError
/// with every reason when there is none, and UnreadableFile for a newer one that the system does not open or read.
LoadedCheckpoint load_checkpoint(const std::string& file_or_folder);
/// Loads a checkpoint of the model `arch` with this state dictionary: a file whose header names another model, or
/// tensors that neither the model nor its optimizer has, is refused before they are read, and passed over in a folder.
LoadedCheckpoint load_checkpoint(const std::string& file_or_folder, const std::string& arch, const NamedTensors& model);
/// Whether a folder holds any, by their names; false if there is no such folder. Throws DataError where it cannot be
/// listed.
bool holds_checkpoint(const std::string& folder);

/// Throws DataError unless the checkpoint is of the model `arch` and its tensors are those of `model` (a state
/// dictionary, views of the values), into which they are then copied. The optimizer's are for its load_state().
void restore(const LoadedCheckpoint& loaded, const std::string& arch, const NamedTensors& model);

}  // namespace duet
