// The cells of a comparison: they learn one after the other, then rounds time them against each other; and the cost
// model that is fitted to what the rounds measured.
#pragma once

#include <vector>

#include "compare/cells.h"
#include "compare/cost_model/cost_model.h"
#include "compare/parked_cell.h"
#include "compare/results.h"
#include "train/options/options.h"

namespace duet::cli {

/// Results of all cells; marked as partial where a signal came before all had learnt and all rounds were over. A failed
/// cell is a row that says why.
Results run_cells(const CompareOptions& options, const Machine& machine, const Training& settings);

/// A cell with what it has learnt, and what the rounds measured of it, in their order; shorter than others where it has
/// failed.
struct CellRounds {
  Cell cell;
  TrainedCell learnt{};
  std::vector<Run> bursts{};
  std::vector<CollectiveTimes> collectives{};  // what a cell of Use::collectives has in place of bursts
};

/// Fills batch_sweep, model and model_notes from the rounds of single, copies and all-reduces: never from a cell that
/// the model predicts, nor from one whose devices outnumber the cores or GPUs. `results` must hold the runs and their
/// rounds.
void fit_model(Results& results, const std::vector<CellRounds>& cells);

}  // namespace duet::cli
