// The options of duet bench faults.
#include <CLI/CLI.hpp>

#include "cli/options/command_line.h"
#include "cli/system/files.h"
#include "lib/error.h"

namespace duet::cli {

void add_faults(CLI::App& app, FaultOptions& options) {
  app.add_option("--devices,--ranks", options.devices, "number of ranks, each a process with one thread")
      ->check(one_count());
  app.add_option("--steps", options.steps, "steps of each training")->check(in_range(2, 1e9));
  app.add_option(
         "--kills", options.kills,
         "ranks that are killed (SIGKILL) in each training but the undisturbed ones, in distinct steps, between "
         "forward and backward")
      ->check(in_range(1, 1e4));
  app.add_option("--seed", options.seed, "seed of the kills, the same in each training, and of the training")
      ->check(in_range(0, 999'999));
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "steps from one checkpoint to the next, of trainings that start again from the newest")
      ->check(in_range(1, 1e9));
  app.add_option("--rounds", options.rounds,
                 "how often each training runs, all in turn; of several the medians are reported")
      ->check(in_range(1, 1000));
  app.add_option("--model", options.model, "network, for MNIST")->check(one_of({"simple_cnn", "linear"}));
  app.add_option("--batch", options.batch, "images of a global batch")->check(in_range(1, 60000));
  app.add_option("--data", options.data, "folder with MNIST's four files, or synthetic: drawn digits");
  app.add_option("--vs-torch", options.vs_torch,
                 "a Python that has PyTorch: its DistributedDataParallel over Gloo of the same network trains, too, "
                 "undisturbed and under torchrun's restarts from checkpoints");
  app.add_option("--out", options.out, "folder for index.html, with the picture, results.json and results.csv");
  app.add_flag("--quiet", options.quiet, "results, warnings and errors only");
  add_json(app, options.json, "the same as results.json");
}

void check(const FaultOptions& options) {
  require<UsageError>(options.devices >= 2, "--devices is ", options.devices,
                      ", expected 2 or more: the others go on, or wait, when one is killed");
  require<UsageError>(options.batch >= options.devices, "--batch is ", options.batch, ", smaller than the ",
                      options.devices, " ranks that share it");
  require<UsageError>(options.kills < options.steps, "--kills is ", options.kills, ", but of ", options.steps,
                      " steps all but the first, ", options.steps - 1, ", can have one each");
  require<UsageError>(!options.out.empty(), "--out: empty name of a folder");
  require<UsageError>(options.vs_torch.empty() || options.model == "simple_cnn",
                      "--vs-torch: the peer is simple_cnn, not ", options.model);
}

}  // namespace duet::cli
