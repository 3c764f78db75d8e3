// duet bench faults: the same training undisturbed and under kills, by each way to survive them.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "cli/fault_runs.h"
#include "cli/options/options.h"
#include "cli/system/child_process.h"
#include "cli/system/display.h"
#include "cli/system/files.h"
#include "cli/system/machine.h"
#include "cli/system/signals.h"
#include "cli/train/fault_log.h"
#include "cli/train/setup.h"
#include "compare/torch_peers.h"
#include "lib/base/text.h"
#include "lib/data/dataset.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/monotonic.h"
#include "measure/json_fields.h"
#include "report/evidence.h"

namespace duet::cli {
namespace {

constexpr const char* kFaultTestImages = "100";  // the time ends with the last step

/// A way to train: a row of the table.
struct FaultWay {
  const char* name;
  const char* colour;
  std::vector<std::string> launch{};  // what the launcher is to do about a killed rank
  bool killed = true, checkpoints = false, torch = false;
};

/// Each behind the undisturbed training to which it is compared.
std::vector<FaultWay> ways_of(const FaultOptions& options) {
  const std::string kills = std::to_string(options.kills);
  std::vector<FaultWay> ways = {
      {.name = "undisturbed", .colour = "single", .killed = false},
      {.name = "elastic", .colour = "ddp", .launch = {"--elastic", "--max-failures=" + kills}},
      {.name = "elastic spare", .colour = "update", .launch = {"--elastic", "--spares=1", "--max-failures=" + kills}},
      {.name = "restarts", .colour = "averaging", .launch = {"--max-restarts=" + kills}, .checkpoints = true}};
  if (options.devices > 2)  // of two, the second one may be killed before the first is back
    ways.insert(ways.end() - 1,
                {.name = "elastic fewer",
                 .colour = "forward",
                 .launch = {"--elastic", concat("--min-ranks=", options.devices - 1), "--max-failures=" + kills}});
  if (options.vs_torch.empty()) return ways;
  ways.push_back({.name = "torch undisturbed", .colour = "copies", .killed = false, .torch = true});
  ways.push_back({.name = "torch restarts",
                  .colour = "dp",
                  .launch = {"--max_restarts=" + kills},
                  .checkpoints = true,
                  .torch = true});
  return ways;
}

/// The last line of a torchrun's output that names an error; the last lines are a frame.
std::string torch_error(const std::string& log) {
  std::istringstream lines(read_file(log));
  std::string found;
  for (std::string line; std::getline(lines, line);)
    if (line.find("Error: ") != std::string::npos) found = line;
  return found;
}

class FaultBench {
 public:
  explicit FaultBench(const FaultOptions& options)
      : options_(options), line_(stderr, terminal_style(stderr, options.quiet)) {
    Training training;
    training.model = options.model;
    training.data = options.data;
    const Images images = find_images(training);
    const std::int64_t most = images.train->size();
    require<UsageError>(options.batch <= most, "--batch is ", options.batch, ", but the data have ", most, " images");
    while (options.steps % epochs_ != 0 || options.steps / epochs_ * options.batch > most) ++epochs_;
    results_ = {.machine = this_machine(), .settings = options};
    results_.settings.data = images.name;
    results_.kills = draw_kills(options.kills, options.devices, options.steps, options.seed);
    if (!options.vs_torch.empty()) script_ = write_torch_peer(options.vs_torch, "torch", folder_.path());
    // Else torchrun's ranks meet in one store in all attempts, where they find the addresses of ranks that are dead.
    ::setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", 0);
  }

  /// Throws Interrupted.
  const FaultResults& run() {
    const std::vector<FaultWay> ways = ways_of(options_);
    for (const FaultWay& way : ways)
      results_.runs.push_back({.mode = way.name, .devices = options_.devices, .colour = way.colour});
    for (int round = 0; round < options_.rounds; ++round)
      for (std::size_t i = 0; i < ways.size(); ++i) {
        line_.clear();
        line_.show(concat("round ", round + 1, "/", options_.rounds, ": ", ways[i].name));
        if (results_.runs[i].ok) add(ways[i], results_.runs[i]);
      }
    line_.clear();
    compare_with_undisturbed(results_);
    return results_;
  }

 private:
  /// Runs a training once.
  void add(const FaultWay& way, FaultRun& run) {
    const TemporaryFolder folder(folder_.path());
    const std::string log = folder.path() + "/log";
    const std::int64_t started_ns = monotonic_ns();
    const ChildEnd end =
        run_program(way.torch ? options_.vs_torch : kThisProgram, arguments_of(way, folder.path()), log);
    if (end.signal != 0) throw Interrupted{end.signal};
    try {
      const std::string why = end.ok || !way.torch ? "" : torch_error(log);
      require<DataError>(end.ok, why.empty() ? end.reason : why);
      add_round(run, fault_events(read_file(folder.path() + "/faults")), started_ns, options_.steps);
      const Json result = parsed_json(read_file(folder.path() + "/result"));
      run.hashes.push_back(result.at("parameters_sha256"));
      run.parameters_sha256 = run.hashes.front();
      if (way.torch)
        results_.torch_notes = {concat("torch is PyTorch ", result.at("torch").get<std::string>(),
                                       " under --vs-torch, with Gloo and torchrun")};
    } catch (const std::exception& error) {
      run.ok = false;
      run.error = error.what();
    }
  }

  std::vector<std::string> arguments_of(const FaultWay& way, const std::string& folder) const {
    std::vector<std::string> arguments = {"launch", concat("-n", options_.devices)};
    if (way.torch)  // Debian 12's torchrun takes no dashes, and fails on the defaults of --redirects and --tee
      arguments = {"-m",
                   "torch.distributed.run",
                   "--standalone",
                   "--tee=1",
                   "--redirects=1",
                   "--monitor_interval=0.1",
                   concat("--nproc_per_node=", options_.devices)};
    arguments.insert(arguments.end(), way.launch.begin(), way.launch.end());
    const std::vector<std::string> training = way.torch ? torch_training() : duet_training();
    arguments.insert(arguments.end(), training.begin(), training.end());
    for (const std::string& one :
         {concat("--model=", options_.model), concat("--batch=", options_.batch), concat("--seed=", options_.seed),
          concat("--result=", folder, "/result"), concat("--fault-log=", folder, "/faults")})
      arguments.push_back(one);
    if (way.killed) arguments.push_back("--kills=" + to_text(results_.kills));
    if (!way.checkpoints) return arguments;
    arguments.push_back(concat("--checkpoint=", folder, "/checkpoint"));
    arguments.push_back(concat("--checkpoint-every=", options_.checkpoint_every));
    return arguments;
  }

  std::vector<std::string> torch_training() const {
    return {script_, "--device=cpu", concat("--ranks=", options_.devices), concat("--steps=", options_.steps)};
  }
  std::vector<std::string> duet_training() const {
    return {"--",
            kThisProgram,
            "train",
            "--mode=ddp",
            "--quiet",
            concat("--data=", options_.data),
            concat("--epochs=", epochs_),
            concat("--train-images=", options_.steps / epochs_ * options_.batch),
            concat("--test-images=", kFaultTestImages)};
  }

  const FaultOptions& options_;
  const TemporaryFolder folder_;
  ProgressLine line_;
  std::int64_t epochs_ = 1;  // that have the steps, with no more images than there are
  std::string script_;
  FaultResults results_;
};

void print(const FaultResults& results, std::FILE* out) {
  const FaultOptions& settings = results.settings;
  std::fprintf(out, "# %lld steps of %s, batch %lld, %d ranks; SIGKILL of %s\n", static_cast<long long>(settings.steps),
               settings.model.c_str(), static_cast<long long>(settings.batch), settings.devices,
               kills_text(results).c_str());
  std::fprintf(out, "# restarts: from a checkpoint of every %lld steps; rounds: %d\n",
               static_cast<long long>(settings.checkpoint_every), settings.rounds);
  for (const auto& line : aligned(fault_table(results), {0, 7})) std::fprintf(out, "%s\n", table_line(line).c_str());
  for (const std::string& note : results.torch_notes) std::fprintf(out, "# %s\n", printable(note).c_str());
  std::fprintf(out, "%s\n", fault_verdict(results).c_str());
}

}  // namespace

int run(const FaultOptions& options, const std::string& command_line) {
  require_writable(options.out, 1 << 20);
  require_json_output(options.json);
  note_signals();
  try {
    const FaultResults results = FaultBench(options).run();
    print(results, text_stream(options.json));
    write_output(options.out + "/results.json", to_json(results));
    write_output(options.out + "/results.csv", to_csv(results));
    write_output(options.out + "/index.html", to_html(results, command_line));
    write_json(options.json, to_json(results));
    return all_survive(results) ? 0 : 1;
  } catch (const Interrupted& interrupted) {
    return 128 + interrupted.signal;
  }
}

}  // namespace duet::cli
