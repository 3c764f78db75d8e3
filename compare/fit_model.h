// The cost model of a comparison, fitted to what its rounds measured of single, copies and all-reduces; never to a cell
// that it predicts, nor to one whose devices outnumber the cores or GPUs.
#pragma once

#include <vector>

#include "compare/cells.h"
#include "compare/parked_cell.h"
#include "compare/results.h"
#include "model/cost_model.h"

namespace duet::cli {

/// What the rounds measured of a cell, in their order; shorter than others where it has failed.
struct CellRounds {
  Cell cell;
  std::vector<Burst> bursts{};
  std::vector<CollectiveTimes> collectives{};  // of such a cell in place of bursts
};

/// Fills batch_sweep, model and model_notes. `results` must hold the runs and their rounds.
void fit_model(Results& results, const std::vector<CellRounds>& cells);

}  // namespace duet::cli
