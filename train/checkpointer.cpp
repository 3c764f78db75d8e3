#include "train/checkpointer.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>

#include "ddp/launch/rank_environment.h"
#include "lib/base/environment.h"
#include "lib/base/text.h"
#include "lib/blocks.h"
#include "lib/error.h"
#include "lib/io/folder.h"
#include "lib/parse_number.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr const char* kRunId = "TORCHELASTIC_RUN_ID";
constexpr const char* kRestarts = "TORCHELASTIC_RESTART_COUNT";
constexpr const char* kNoRunId = "none";  // torchrun's, where it was given none
constexpr const char* kRunPart = "run";   // setting of a checkpoint that names the run that wrote it
constexpr const char* kBlocksSetting = "blocks";
constexpr const char* kNoGenerator = "the state of PyTorch's generator is not in a checkpoint";

std::string variable(const char* name) { return environment_variable(name).value_or(""); }

/// What must stay the same for a resumed run to end with the bits of an uninterrupted one, but the images.
Metadata settings_of(const TrainOptions& options) {
  return {{"seed", std::to_string(options.seed)},
          {"batch", std::to_string(options.batch)},
          {"lr", shortest(options.lr)},
          {"optimizer", options.optimizer},
          {"momentum", shortest(options.momentum)},
          {"weight_decay", options.weight_decay ? shortest(*options.weight_decay) : "default"},
          {"sync_bn", options.sync_bn ? "on" : "off"}};
}

void require_same(const LoadedCheckpoint& loaded, const std::string& key, const std::string& value) {
  const auto found = loaded.checkpoint.settings.find(key);
  if (found == loaded.checkpoint.settings.end()) return;
  require<DataError>(found->second == value, loaded.path, " is of a run with ", key, " ", found->second,
                     ", this run has ", value);
}

/// Where checkpoints are written: a run that goes on in a folder also leaves its own there.
std::string checkpoint_folder(const TrainOptions& options) {
  if (!options.checkpoint.empty()) return options.checkpoint;
  return !options.resume.empty() && is_folder(options.resume) ? options.resume : "";
}

struct ResumePoint {
  LoadedCheckpoint loaded;
  bool restarted = false;  // it is this job's own, after a restart by the launcher
};

/// After a restart by the launcher this job's own checkpoint, else that of --resume, else none. The name of the run is
/// kept across restarts, so a checkpoint of another run is never taken.
std::optional<ResumePoint> find_checkpoint(const TrainOptions& options, const NamedTensors& model) {
  const std::string arch = chosen_network(options).arch, folder = checkpoint_folder(options);
  const std::string run = variable(kRunId), restarts = variable(kRestarts);
  require<UsageError>(options.resume.empty() || options.compat == Compat::duet,
                      "--resume with --compat torch: ", kNoGenerator);
  std::optional<ResumePoint> found;
  const bool restarted = !restarts.empty() && restarts != "0" && !run.empty() && run != kNoRunId;
  if (restarted && !folder.empty() && holds_checkpoint(folder)) {
    LoadedCheckpoint loaded = load_checkpoint(folder, arch, model);
    const auto writer = loaded.checkpoint.settings.find(kRunPart);
    if (writer != loaded.checkpoint.settings.end() && writer->second == run)
      found = ResumePoint{std::move(loaded), true};
    require<UsageError>(!found || options.compat == Compat::duet, "restart ", restarts,
                        " with --compat torch: ", kNoGenerator);
  }
  if (!found && !options.resume.empty()) found = ResumePoint{load_checkpoint(options.resume, arch, model)};
  if (!found) return found;
  const Checkpoint& checkpoint = found->loaded.checkpoint;
  require<DataError>(checkpoint.arch == arch, found->loaded.path, " is of the model \"", checkpoint.arch,
                     "\", expected \"", arch, "\"");
  for (const auto& [key, value] : settings_of(options)) require_same(found->loaded, key, value);
  // A restarted job may have failed after its last checkpoint, with nothing left to do; so may a rank be lost.
  require<UsageError>(found->restarted || Recovery::instance().replaces() || checkpoint.position.epoch < options.epochs,
                      found->loaded.path, " has finished ", checkpoint.position.epoch, " epochs, --epochs is ",
                      options.epochs, ": nothing left to do");
  return found;
}

/// The step up to which checkpoints of a folder may be: those of a lost rank's job are its own.
std::int64_t latest_step(std::int64_t begin) { return Recovery::instance().replaces() ? INT64_MAX : begin; }

}  // namespace

void require_resumable(const TrainOptions& options) {
  const std::string folder = checkpoint_folder(options);
  require<UsageError>(options.checkpoint_every == 0 || !folder.empty(), "--checkpoint-every is ",
                      options.checkpoint_every, ", but neither --checkpoint nor --resume names a folder");
  if (options.resume.empty() && folder.empty()) return;
  const std::unique_ptr<nn::Module> network = make_network(options, classes_of_data(options));
  const NamedTensors model = network->state_dict();
  const std::optional<ResumePoint> found = find_checkpoint(options, model);
  if (!folder.empty())  // the lock is let go: rank 0 takes it
    prepare_checkpoint_folder(folder, latest_step(found ? found->loaded.checkpoint.step : 0), model, variable(kRunId));
}

Checkpointer::Checkpointer(const TrainOptions& options, Setup& setup, const Images& images,
                           const ddp::ProcessGroup& group)
    : options_(options),
      setup_(setup),
      images_{{"train_images", std::to_string(images.train->size())},
              {"data", images.name},
              {"data_hash", hash_text(*images.train)}},
      group_(group),
      folder_(checkpoint_folder(options)),
      series_(ddp::random_run_id()) {}

void Checkpointer::say_position(const std::string& path, bool restarted, const data::Position& position) const {
  std::string text = restarted ? concat("restart ", variable(kRestarts), ": resumes from ", printable(path))
                               : concat("resumed from ", printable(path), ", epoch ", position.epoch + 1);
  if (!restarted && position.step > 0) text += concat(" after step ", position.step, " of ", setup_.loader->steps());
  std::puts(text.c_str());
}

/// A run that goes on keeps the blocks of its batches, whatever its number of devices; checkpoints of earlier versions
/// have 8 and do not say so.
void Checkpointer::take_blocks(const LoadedCheckpoint& loaded) {
  if (setup_.batches == nullptr) return;
  const auto found = loaded.checkpoint.settings.find(kBlocksSetting);
  const std::string text = found == loaded.checkpoint.settings.end() ? std::to_string(kBlocks) : found->second;
  const std::optional<int> blocks = parse_number<int>(text);
  require<DataError>(blocks && is_block_count(*blocks), loaded.path, ": ", kBlocksSetting, " is \"", text,
                     "\", expected 8, 16 or 32");
  require<DataError>(options_.blocks == 0 || options_.blocks == *blocks, loaded.path, " is of a run with ", *blocks,
                     " blocks, this run has --blocks ", options_.blocks);
  setup_.batches->set_blocks(*blocks);
}

data::Position Checkpointer::resume() {
  data::Position position;
  const NamedTensors model = setup_.model().state_dict();
  if (std::optional<ResumePoint> found = find_checkpoint(options_, model)) {
    LoadedCheckpoint& loaded = found->loaded;
    if (leader())
      for (const std::string& warning : loaded.warnings) std::fprintf(stderr, "duet: %s\n", printable(warning).c_str());
    for (const char* const key : {"train_images", "data", "data_hash"}) require_same(loaded, key, images_.at(key));
    take_blocks(loaded);
    const std::int64_t steps = setup_.loader->steps();
    const std::int64_t epoch = loaded.checkpoint.position.epoch;
    position = {epoch, loaded.checkpoint.step - epoch * steps};  // files of earlier versions lack the position's step
    require<DataError>(position.step >= 0 && position.step <= steps, loaded.path, ": step ", loaded.checkpoint.step,
                       " does not lie in epoch ", position.epoch + 1, " of ", steps, " steps");
    if (leader() && !Recovery::instance().replaces()) say_position(loaded.path, found->restarted, position);
    const NamedTensors optimizer = loaded.checkpoint.optimizer;
    best_ = loaded.checkpoint.best_acc1;
    series_ = loaded.checkpoint.series;
    loaded.checkpoint.optimizer.clear();  // fresh optimizers have no buffers to restore into: load_state makes them
    restore(loaded, chosen_network(options_).arch, model);
    setup_.optimizer->load_state(optimizer);
    setup_.loader->set_position(position);
  }
  // A process that replaces rank 0 is not it yet.
  if (!leader() || folder_.empty() || Recovery::instance().replaces()) return position;
  lock_.emplace(prepare_checkpoint_folder(folder_, latest_step(total_steps(position)), model, variable(kRunId)));
  if (!lock_->warning().empty()) std::fprintf(stderr, "duet: %s\n", printable(lock_->warning()).c_str());
  return position;
}

void Checkpointer::stream(StateStream& state) {
  state.sequence(series_);
  state.value(best_);
}

bool Checkpointer::due(const data::Position& position) const {
  return writes() && options_.checkpoint_every > 0 && total_steps(position) % options_.checkpoint_every == 0 &&
         position.step < setup_.loader->steps();
}

void Checkpointer::save(const data::Position& position, double accuracy) {
  if (!leader() || folder_.empty()) return;
  std::optional<FolderLock> lock;  // of a rank that is the first only until that one joins again
  if (!lock_) (Recovery::instance().places_change() ? lock : lock_).emplace(folder_, variable(kRunId));
  const bool best = position.step == 0 && 100 * accuracy > best_;
  Metadata settings = settings_of(options_);
  settings.insert(images_.begin(), images_.end());
  if (setup_.batches != nullptr && options_.device == DeviceKind::cpu)
    settings[kBlocksSetting] = std::to_string(setup_.batches->blocks());
  if (const std::string run = variable(kRunId); !run.empty()) settings[kRunPart] = run;
  last_ = save_checkpoint(folder_,
                          {.position = position,
                           .step = total_steps(position),
                           .arch = chosen_network(options_).arch,
                           .best_acc1 = best ? 100 * accuracy : best_,
                           .model = setup_.model().state_dict(),
                           .optimizer = setup_.optimizer->state(),
                           .settings = std::move(settings),
                           .series = series_},
                          best);
}

}  // namespace duet::cli
