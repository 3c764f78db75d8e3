#include "cli/options/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>

#include "cli/options/command_line.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::cli {
namespace {

constexpr const char* kAbout =
    "duet: data-parallel training without Python. Trains one small network alone, by the tutorial's own gradient "
    "averaging, by DataParallel and by DistributedDataParallel, and reports how fast each was and whether all ended "
    "with the same bits.";

constexpr std::array kModes = {Mode::single, Mode::averaging, Mode::dp, Mode::ddp};
constexpr std::array kPrecisions = {Precision::fp32, Precision::tf32, Precision::bf16};

/// Adds an option that takes a list of different entries with commas between them, which pass `check` and are read by
/// read(entry). Given twice, the last list counts.
template <class T>
void add_list(CLI::App& app, const char* option, std::vector<T>& values, const Check& check,
              T (*read)(const std::string&), const char* otherwise, const char* about) {
  const auto take = [=, &values](const std::vector<std::string>& entries) {
    values.clear();
    for (const std::string& entry : entries) {
      const T value = read(entry);
      require<UsageError>(std::find(values.begin(), values.end(), value) == values.end(), option, ": ", entry,
                          " twice");
      values.push_back(value);
    }
  };
  app.add_option_function<std::vector<std::string>>(option, take, about)
      ->delimiter(',')
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)  // entries of one list; TakeLast would take one entry
      ->trigger_on_parse()
      ->check(check)
      ->default_str(otherwise);
}

void add_modes(CLI::App& app, std::vector<Mode>& modes, const char* otherwise, const char* about) {
  const auto read = [](const std::string& word) {
    return *std::find_if(kModes.begin(), kModes.end(), [&](Mode mode) { return word == name(mode); });
  };
  add_list<Mode>(app, "--modes", modes, one_of({"single", "averaging", "dp", "ddp"}), read, otherwise, about);
}

void add_device_counts(CLI::App& app, std::vector<int>& devices, const char* otherwise) {
  const auto whole = [](const std::string& text) {
    return parse_number<int>(text) ? std::string() : concat("'", text, "' is not a whole number");
  };
  const auto read = [](const std::string& text) { return *parse_number<int>(text); };
  add_list<int>(app, "--devices", devices, whole, read, otherwise, "numbers of devices, separated by commas");
}

/// The backend of commands that take one.
void add_backend(CLI::App& app, Training& training) {
  app.add_option(
         "--backend", training.backend,
         "what carries the ranks' collectives in averaging and ddp: shm (memory that one host's ranks share), tcp, "
         "gloo (TCP as well), nccl (ranks with a GPU each), memory (--workers thread), or auto: nccl for GPUs, "
         "else shm where it can be had, else tcp")
      ->check(one_of(kBackends));
}

/// CLI11 itself takes -1 for 2^64 - 1, and what is too large for the largest.
std::string seed_error(const std::string& text) {
  errno = 0;
  std::strtoull(text.c_str(), nullptr, 0);
  if (errno != ERANGE && text.find('-') == std::string::npos) return "";
  return concat("is ", text, ", expected 0 to ", std::numeric_limits<std::uint64_t>::max());
}

/// Options of a training step, in every command that trains.
void add_step(CLI::App& app, Training& training) {
  app.add_option("--model", training.model, "network: simple_cnn, or linear (one 784 to 10 layer)")
      ->check(one_of({"simple_cnn", "linear"}));
  add_choice(app, "--device", training.device, std::array{DeviceKind::cpu, DeviceKind::cuda},
             "kind of device: cpu or cuda; where --devices outnumber the GPUs they are logical ones that share them");
  add_choice(
      app, "--precision", training.precision, kPrecisions,
      "arithmetic of convolutions and linear layers: fp32; on cuda also tf32, or bf16, which is no faster than tf32 "
      "today; sums are fp32 in all");
  app.add_flag("--deterministic", training.deterministic,
               "cuda: the same convolution algorithms in every run; otherwise the fastest are found by timing them");
  app.add_option(
         "--graph", training.graph,
         "cuda: steps recorded as CUDA graphs and replayed, on or off; auto: in modes single and dp, and where ranks "
         "(ddp) are connected by nccl")
      ->check(one_of({"auto", "on", "off"}));
  app.add_option(
         "--graph-steps", training.graph_steps,
         "cuda: steps that one graph holds, as far as they are alike and no loss is due between them; 0: up to 8, "
         "as many as fit between two readings of the loss")
      ->check(in_range(0, 1024));
  app.add_option(
         "--workers", training.workers,
         "what a rank of averaging and ddp is: a process, or a thread (with all ranks in one process, and the same "
         "bits; CPU devices)")
      ->check(one_of({"process", "thread"}));
  app.add_option("--threads-per-device", training.threads_per_device,
                 "threads of one CPU device, each pinned to a core")
      ->check(in_range(1, 1024));
  app.add_option(
      "--data", training.data,
      "folder with the four MNIST files (.gz or not), in it or in its sub-folder mnist; 'synthetic' for drawn "
      "digits. Default: $DUET_DATA, ./data, ~/.cache/duet, else drawn digits");
  app.add_option("--batch", training.batch, "images of a global batch, whatever the number of devices")
      ->check(in_range(1));
  app.add_option("--lr", training.lr, "learning rate");
  app.add_option("--momentum", training.momentum, "momentum of SGD, 0 to below 1");
  app.add_option("--seed", training.seed, "seed of weights, order of images and dropout")->check(seed_error);
  add_choice(
      app, "--compat", {"torch"}, "", [&](std::size_t) { training.compat_torch = true; },
      "'torch': PyTorch's own draws, sampler order and 1/W scaling in place of duet's rules (then 1, 2 and 4 "
      "devices no longer end with the same bits)");
  app.add_flag("--check-finite", training.check_finite,
               "end with an error that names step, operator and parameter when an image, a parameter, a result or a "
               "gradient is infinite or not a number; a step then takes about a third longer");
  app.add_flag("--quiet", training.quiet, "no progress line, no colours");
}

/// What whole trainings need besides.
void add_training(CLI::App& app, Training& training) {
  add_step(app, training);
  app.add_option("--optimizer", training.optimizer, "sgd, adam or adamw, with the rules of torch.optim")
      ->check(one_of({"sgd", "adam", "adamw"}));
  app.add_option("--weight-decay", training.weight_decay, "of the optimizer; default: 0, of adamw 0.01")
      ->check(in_range(0));
  app.add_flag("--download", training.download, "fetch MNIST into ~/.cache/duet if it is not found");
  app.add_option("--epochs", training.epochs, "passes over the training images")->check(in_range(1));
  app.add_option("--train-images", training.train_images, "use the first N training images; 0 for all")
      ->check(in_range(0));
  app.add_option("--test-images", training.test_images, "use the first N test images; 0 for all")->check(in_range(0));
  app.add_flag("--verbose", training.verbose,
               "train: every rank also prints which launcher's variables its rank was read from");
}

/// Of an option that is given twice, the last counts: scripts put theirs first and let the user's follow.
void take_last(CLI::App& app) { app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast); }

void add_train(CLI::App& app, TrainOptions& options) {
  add_choice(app, "--mode", options.mode, kModes, "single, averaging (the tutorial's loop), dp or ddp");
  app.add_option("--devices", options.devices, "number of devices (single: 1)");
  add_backend(app, options);
  add_training(app, options);
  app.add_option("--timeout", options.timeout_s,
                 "ddp: seconds that one collective may take before it fails and names the ranks that it waits for; "
                 "never less than ten times the median of a rank's last 15 steps. Default: the launcher's, 300")
      ->check(in_range(0, 8e5))
      ->default_str("");
  app.add_option("--replicas", options.replicas,
                 "dp: persistent (every device keeps the parameters and updates its own; CPU devices share "
                 "them), or per_forward (copied from the first device in every step, as PyTorch does)")
      ->check(one_of({"per_forward", "persistent"}));
  app.add_option("--loss", options.loss, "dp: loss of the gathered output, or in_replica")
      ->check(one_of({"gathered", "in_replica"}));
  app.add_option("--sum", options.sum,
                 "dp on distinct GPUs: gradients added up by tree, in the order of every other mode, or by nccl, in an "
                 "order of its own (then results agree with other numbers of devices only to rounding)")
      ->check(one_of({"tree", "nccl"}));
  app.add_option("--update", options.update,
                 "ddp: replicated (every rank sums all gradients and updates the whole model), or sharded (within the "
                 "update each rank sums and updates a part and gives it to the others, with the same bits; for ranks "
                 "on CPU devices that share memory)")
      ->check(one_of({"replicated", "sharded"}));
  app.add_option("--checkpoint", options.checkpoint,
                 "folder; a checkpoint is written there after every epoch. A job that duet launch "
                 "has restarted goes on from its own newest one. Default: the folder of --resume, if that is one");
  app.add_option("--resume", options.resume,
                 "checkpoint file, or folder with checkpoints (the newest is taken), to go on from");
  app.add_option("--result", options.result, "file for this run's record, JSON, as in results.json");
  app.add_option("--fingerprints", options.fingerprints, "file for one hash of all parameters per step (slow)");
  app.add_option(
         "--compare-every", options.compare_every,
         "ddp: compare hashes of all ranks' parameters in every K-th step, besides every epoch's end; 0: do not")
      ->check(in_range(0));
  app.add_option("--trace", options.trace,
                 "file for a trace of every step of all ranks and replicas, for ui.perfetto.dev or chrome://tracing");
  app.add_option("--step-times", options.step_times,
                 "file for the time of every step but the first, in us, a line each");
  app.add_option("--progress", options.progress, "file that always holds one line: where the training stands");
  // Of duet compare for its cells; in no group, and so not in the help.
  app.add_option("--bursts", options.bursts)->group("");
  app.add_flag("--untrained", options.untrained)->group("");
  app.add_flag_function("--copies", [&](std::int64_t) { options.mode = Mode::copies; })->group("");
}

void add_compare(CLI::App& app, CompareOptions& options) {
  add_modes(app, options.modes, "single,averaging,dp,ddp", "what to compare, separated by commas");
  add_device_counts(app, options.devices, "1,2,4");
  const auto same = [](const std::string& backend) { return backend; };
  add_list<std::string>(
      app, "--backend", options.backends, one_of(kBackends), same, "auto",
      "what carries the ranks' collectives in averaging and ddp: see duet train --help; of several, separated "
      "by commas, each gets rows of ddp, and averaging runs over the first");
  add_training(app, options);
  app.add_option(
         "--time-budget", options.time_budget_s,
         "seconds for rounds that time all cells against each other after they have learnt; fewer are used once "
         "every speed-up is known to 1 %; 0: no rounds, and so no intervals")
      ->check(in_range(0, 1e6));
  const auto refuse = [](const std::string&) { throw CLI::ValidationError("--repeats was replaced by --time-budget"); };
  app.add_option_function<std::string>("--repeats", refuse)->group("");
  app.add_option("--out", options.out, "folder for index.html, results.json and results.csv");
  add_json(app, options.json, "the same as results.json");
}

void add_bench(CLI::App& app, BenchOptions& options, std::string& what) {
  app.add_option("what", what,
                 "step: whole training steps of every mode, where ranks share memory also with the sharded update, and "
                 "on CPUs every operator against the measured peak; overhead: what tape, modules and loader cost, "
                 "against the same kernels called in a bare loop (one device; --lr and --momentum apply)");
  add_modes(app, options.modes, "single,dp,ddp", "modes to time, separated by commas");
  add_device_counts(app, options.devices, "1,2");
  add_backend(app, options);
  app.add_option("--steps", options.steps, "steps timed in every round")->check(in_range(5));
  app.add_option("--repeats", options.repeats, "rounds: how often every mode is timed")->check(in_range(1));
  app.add_option(
      "--vs-torch", options.vs_torch,
      "step: a Python that has PyTorch; its step of the same network, as it comes and tuned, runs in the same "
      "rounds");
  add_json(app, options.json, "step: everything measured");
  add_step(app, options);
}

void require_bench(const std::string& what) {
  if (what == "step" || what == "overhead") return;
  std::vector<std::string> known = {"step", "overhead"};
  known.insert(known.end(), kCollectives.begin(), kCollectives.end());
  const std::string hint = did_you_mean(what, known);
  throw UsageError(
      concat("duet bench: unknown '", what, "'", hint.empty() ? ", expected step, overhead or a collective" : hint));
}

/// The parser with all commands, and what it reads into.
struct CommandLine {
  CommandLine();
  /// Throws UsageError with one line.
  std::optional<Printed> read(const std::vector<std::string>& arguments);
  /// What was read, typed and checked. Throws UsageError.
  Command command();

  CLI::App app{kAbout, "duet"};
  CLI::App *compare_app, *predict_app, *train_app, *launch_app, *bench_app, *info_app;
  CompareOptions compare;
  PredictOptions predict;
  TrainOptions train;
  LaunchOptions launch;
  BenchOptions bench;
  CollectiveOptions collective;
  InfoOptions info;
  std::string what;  // bench: step or overhead

 private:
  CLI::App* add(const char* name, const char* about) { return app.add_subcommand(name, about); }
};

CommandLine::CommandLine()
    : compare_app(add("compare", "train in all modes on several devices; table and report")),
      predict_app(add("predict", "other numbers of devices and links, from a comparison's cost model")),
      train_app(add("train", "train once, in one mode")),
      launch_app(add("launch", "start N ranks of a program: duet launch -n N -- PROGRAM ARGS")),
      bench_app(add("bench", "time whole steps, or collectives among processes")),
      info_app(add("info", "devices, cores, instruction sets, versions, what was built in")) {
  app.set_version_flag("--version", "duet " DUET_VERSION);
  app.require_subcommand(1);
  app.footer("duet help COMMAND, or duet COMMAND --help, describes a command.");
  for (CLI::App* const one : {compare_app, predict_app, train_app, bench_app}) take_last(*one);
  for (CLI::App* const one : {compare_app, predict_app, train_app, bench_app, launch_app})
    one->option_defaults()->always_capture_default();
  compare.epochs = 1;
  add_compare(*compare_app, compare);
  add_predict(*predict_app, predict);
  add_train(*train_app, train);
  add_launch(*launch_app, launch);
  add_bench(*bench_app, bench, what);
  add_collectives(*bench_app, collective);
  add_json(*info_app, info.json, "the same");
}

std::optional<Printed> CommandLine::read(const std::vector<std::string>& arguments) {
  try {
    std::vector<std::string> reversed =
        spelled_out(arguments, {"compare", "predict", "train", "launch", "bench", "info"});
    std::reverse(reversed.begin(), reversed.end());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return Printed{app.help()};
  } catch (const CLI::CallForVersion& version) {
    return Printed{std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    if (*bench_app && collective.collective.empty() && !what.empty()) require_bench(what);
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    if (const std::size_t range = line.find(": is "); range != std::string::npos) line.erase(range, 1);  // in_range()
    const auto used = app.get_subcommands();
    throw UsageError(concat(line, hint_for_unknown_option(app), " (see duet ",
                            used.empty() ? "" : used.front()->get_name() + " ", "--help)"));
  }
  return {};
}

/// An option that would have no effect.
void require_momentum_of_sgd(CLI::App& app, const Training& training) {
  require<UsageError>(training.optimizer == "sgd" || app.get_option("--momentum")->count() == 0,
                      "--momentum is for --optimizer sgd, not ", training.optimizer);
}

Command CommandLine::command() {
  if (*info_app) return info;
  if (*predict_app) {
    check(predict);
    return predict;
  }
  if (*launch_app) {
    check(launch);
    return launch;
  }
  if (*train_app) {
    require_momentum_of_sgd(*train_app, train);
    check(train);
    return train;
  }
  if (*bench_app && !collective.collective.empty()) {
    check(collective);
    return collective;
  }
  if (*bench_app) {
    require_bench(what);
    bench.overhead = what == "overhead";
    check(bench);
    return bench;
  }
  require_momentum_of_sgd(*compare_app, compare);
  for (auto backend = compare.backends.rbegin(); backend != compare.backends.rend(); ++backend) {  // the first stays
    compare.backend = *backend;
    check(compare);
  }
  return compare;
}

}  // namespace

Command parse(const std::vector<std::string>& arguments) {
  CommandLine line;
  if (const std::optional<Printed> printed = line.read(arguments)) return *printed;
  return line.command();
}

}  // namespace duet::cli
