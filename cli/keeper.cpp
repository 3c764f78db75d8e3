#include "cli/keeper.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cli/text.h"
#include "lib/checkpoint.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kRunId = "TORCHELASTIC_RUN_ID";
constexpr const char* kNoRunId = "none";  // torchrun's, where it was given none
constexpr const char* kRun = "run";       // of a checkpoint: the run that wrote it
constexpr const char* kNoGenerator = "the state of PyTorch's generator is not in a checkpoint";

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

/// What must stay the same for a resumed run to end with the bits of an uninterrupted one.
Metadata settings_of(const TrainOptions& options, std::int64_t train_images) {
  return {{"seed", std::to_string(options.seed)},
          {"batch", std::to_string(options.batch)},
          {"lr", shortest(options.lr)},
          {"momentum", shortest(options.momentum)},
          {"train_images", std::to_string(train_images)}};
}

}  // namespace

Keeper::Keeper(const TrainOptions& options, Setup& setup, std::int64_t train_images, bool leader)
    : options_(options), setup_(setup), train_images_(train_images), leader_(leader) {
  require<UsageError>(options.resume.empty() || !options.compat_torch, "--resume with --compat torch: ", kNoGenerator);
}

std::int64_t Keeper::total_steps(const Position& position) const {
  return position.epoch * setup_.loader->steps() + position.step;
}

/// A launcher that starts its ranks anew leaves them their run's name, so a checkpoint of another run is never taken.
std::optional<LoadedCheckpoint> Keeper::own_checkpoint() const {
  const std::string run = variable(kRunId), restarts = variable("TORCHELASTIC_RESTART_COUNT");
  if (options_.checkpoint.empty() || restarts.empty() || restarts == "0") return {};
  if (run.empty() || run == kNoRunId || !holds_checkpoint(options_.checkpoint)) return {};
  LoadedCheckpoint loaded = load_checkpoint(options_.checkpoint);
  const auto writer = loaded.checkpoint.settings.find(kRun);
  if (writer == loaded.checkpoint.settings.end() || writer->second != run) return {};
  require<UsageError>(!options_.compat_torch, "restart ", restarts, " with --compat torch: ", kNoGenerator);
  if (leader_) std::printf("restart %s: goes on from %s\n", restarts.c_str(), loaded.path.c_str());
  return loaded;
}

Position Keeper::resume() {
  Position position;
  std::optional<LoadedCheckpoint> own = own_checkpoint();
  if (own || !options_.resume.empty()) {
    LoadedCheckpoint loaded = own ? std::move(*own) : load_checkpoint(options_.resume);
    if (leader_)
      for (const std::string& warning : loaded.warnings) std::fprintf(stderr, "duet: %s\n", warning.c_str());
    for (const auto& [key, value] : settings_of(options_, train_images_)) {
      const auto found = loaded.checkpoint.settings.find(key);
      require<DataError>(found == loaded.checkpoint.settings.end() || found->second == value, loaded.path,
                         " is of a run with ", key, " ", found == loaded.checkpoint.settings.end() ? "" : found->second,
                         ", this run has ", value);
    }
    const std::int64_t steps = setup_.loader->steps();
    position = {loaded.checkpoint.epoch, loaded.checkpoint.step - loaded.checkpoint.epoch * steps};
    require<DataError>(position.step >= 0 && position.step <= steps, loaded.path, ": step ", loaded.checkpoint.step,
                       " does not lie in epoch ", loaded.checkpoint.epoch + 1, " of ", steps, " steps");
    // A job may have been struck between its last checkpoint and its end.
    require<UsageError>(own || position.epoch < options_.epochs, loaded.path, " has finished ", position.epoch,
                        " epochs, --epochs is ", options_.epochs, ": nothing left to do");
    const NamedTensors momentum = loaded.checkpoint.optimizer;
    best_ = loaded.checkpoint.best_acc1;
    loaded.checkpoint.optimizer.clear();  // fresh optimizers have no buffers to restore into: load_state makes them
    restore(loaded, setup_.network.arch, setup_.model().state_dict());
    setup_.optimizer->load_state(momentum);
    setup_.loader->start_at(position.epoch, position.step);
  }
  if (leader_ && !options_.checkpoint.empty()) prepare_checkpoint_folder(options_.checkpoint, total_steps(position));
  return position;
}

void Keeper::save(const Position& position, double accuracy) {
  if (!leader_ || options_.checkpoint.empty()) return;
  const bool best = position.step == 0 && 100 * accuracy > best_;
  if (best) best_ = 100 * accuracy;
  Metadata settings = settings_of(options_, train_images_);
  if (const std::string run = variable(kRunId); !run.empty()) settings[kRun] = run;
  save_checkpoint(options_.checkpoint,
                  {.epoch = position.epoch,
                   .step = total_steps(position),
                   .arch = setup_.network.arch,
                   .best_acc1 = best_,
                   .model = setup_.model().state_dict(),
                   .optimizer = setup_.optimizer->state(),
                   .settings = std::move(settings)},
                  best);
}

}  // namespace duet::cli
