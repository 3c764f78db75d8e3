// The one training loop of all modes.
#pragma once

#include <cstdint>
#include <functional>

#include "cli/train/step_clock.h"
#include "lib/backend/step_graph.h"
#include "lib/data/loader.h"
#include "lib/nn/module.h"
#include "lib/optim/optimizer.h"

namespace duet::cli {

/// What a step works on: `net` is the model itself or a wrapper around it; everything else is the same in all modes.
struct TrainingStep {
  nn::Module& net;
  optim::Optimizer& optimizer;
  bool loss_in_replica = false;     // net takes a list {images, labels} and gives the loss
  std::function<void()> average{};  // of mode averaging, after backward
  Device device{};                  // of the model: batches go there, unless net cuts them up itself
  bool scatters = false;            // net does
  StepGraph* graph = nullptr;       // replays the steps, of a deferred loader
  std::int64_t graph_steps = 1;     // so many with one launch, where no loss is wanted between them
};

/// Trains over what is left of an epoch. `after_step` is called after every step, or several at once, and may end the
/// pass by returning false; then false is returned.
bool train_epoch(const TrainingStep& training, data::Loader& loader, StepClock& clock,
                 const std::function<bool()>& after_step);

/// Rows of `data` that this process classifies rightly on the net's device; rank and world_size divide every batch of
/// 1,000 rows.
std::int64_t count_correct(nn::Module& net, const data::Dataset& data, int rank, int world_size);

}  // namespace duet::cli
