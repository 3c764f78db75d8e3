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
#include "cli/system/machine.h"
#include "lib/backend/backend.h"
#include "lib/base/thread_pool.h"
#include "lib/error.h"
#include "lib/nn/networks.h"
#include "lib/parse_number.h"

namespace duet::cli {
namespace {

constexpr const char* kAbout =
    "duet: data-parallel training without Python. Trains one small network alone, by the tutorial's own gradient "
    "averaging, by DataParallel and by DistributedDataParallel, and reports how fast each was and whether all ended "
    "with the same bits.";

/// As add_list(), of different entries, which are read by read(entry).
template <class T>
void add_distinct(CLI::App& app, const char* option, std::vector<T>& values, const Check& check,
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
  add_list(app, option, check, take, otherwise, about);
}

void add_modes(CLI::App& app, std::vector<Mode>& modes, const char* otherwise, const char* about) {
  const auto read = [](const std::string& word) {
    return *std::find_if(kModes.begin(), kModes.end(), [&](Mode mode) { return word == name(mode); });
  };
  add_distinct<Mode>(app, "--modes", modes, one_of({"single", "averaging", "dp", "ddp"}), read, otherwise, about);
}

void add_device_counts(CLI::App& app, std::vector<int>& devices) {
  const auto whole = [](const std::string& text) {
    return parse_number<int>(text) ? std::string() : concat("'", text, "' is not a whole number");
  };
  const auto read = [](const std::string& text) { return *parse_number<int>(text); };
  add_distinct<int>(app, "--devices", devices, whole, read, "1,2,4,8 up to the cores or GPUs",
                    "numbers of devices, separated by commas");
}

void add_batches(CLI::App& app, std::vector<std::int64_t>& batches) {
  const auto whole = [](const std::string& text) {
    const auto rows = parse_number<std::int64_t>(text);
    if (!rows) return concat("'", text, "' is not a whole number");
    return *rows >= 1 ? std::string() : concat("is ", text, ", expected 1 or more");
  };
  const auto read = [](const std::string& text) { return *parse_number<std::int64_t>(text); };
  add_distinct<std::int64_t>(app, "--batch", batches, whole, read, "128",
                             "images of a batch, of networks for colour images 32 by default; several, separated by "
                             "commas, are compared one after the other, each in "
                             "a folder of its own, and share the time budget");
}

/// Of an option that is given twice, the last counts: scripts put theirs first and let the user's follow.
void take_last(CLI::App& app) { app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast); }

void add_compare(CLI::App& app, CompareOptions& options) {
  add_modes(app, options.modes, "single,averaging,dp,ddp", "what to compare, separated by commas");
  add_device_counts(app, options.devices);
  const auto same = [](const std::string& backend) { return backend; };
  add_distinct<std::string>(
      app, "--backend", options.backends, one_of(kBackends), same, "auto",
      "what carries the ranks' collectives in averaging and ddp: see duet train --help; of several, separated "
      "by commas, each gets rows of ddp, and averaging runs over the first");
  add_batches(app, options.batches);
  add_scaling(app, options.scaling);
  add_training(app, options);
  app.add_option(
         "--time-budget", options.time_budget_s,
         "seconds for rounds that time all cells against each other after they have learnt; fewer are used once "
         "every speed-up is known to 1 %; 0: no rounds, and so no intervals")
      ->check(in_range(0, 1e6));
  const auto refuse = [](const std::string&) { throw CLI::ValidationError("--repeats was replaced by --time-budget"); };
  app.add_option_function<std::string>("--repeats", refuse)->group("");
  app.add_option("--out", options.out,
                 "folder for index.html, results.json and results.csv; of several batches with a folder batch-N of "
                 "these for each");
  app.add_flag("--wide", options.wide, "print all rows, columns and sentences in place of the first screen");
  app.add_flag("--tutorial", options.tutorial,
               "print the tutorials' line for every number of devices of averaging, too");
  app.add_option(
      "--vs-torch", options.vs_torch,
      "a Python that has PyTorch, and torchvision for its networks; its step of the same network, as it comes and "
      "tuned "
      "(channels_last), runs in the same rounds, and so do LibTorch's from C++ with duet's DistributedDataParallel or "
      "averaged gradients, where duet was built with LibTorch, and PyTorch's ddp over the backend duet, where that "
      "Python has duet_torch");
  add_json(app, options.json, "the same as results.json");
}

/// Of what is no collective, and of the words of former versions.
[[noreturn]] void refuse_bench(const std::string& what) {
  require<UsageError>(what != "step", "duet bench step is a part of duet compare now: --vs-torch PYTHON");
  require<UsageError>(what != "overhead",
                      "duet bench overhead is a benchmark of the tests now: tests/benchmarks/bare_loop "
                      "(docs/performance.md)");
  const std::string hint = did_you_mean(what, {kCollectives.begin(), kCollectives.end()});
  throw UsageError(concat("duet bench: unknown '", what, "'", hint.empty() ? ", expected a collective" : hint));
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
  CollectiveOptions collective;
  InfoOptions info;

 private:
  CLI::App* add(const char* name, const char* about) { return app.add_subcommand(name, about); }
};

CommandLine::CommandLine()
    : compare_app(add("compare", "train in all modes on several devices; table and report")),
      predict_app(add("predict", "other numbers of devices and links, from a comparison's cost model")),
      train_app(add("train", "train once, in one mode")),
      launch_app(add("launch", "start N ranks of a program: duet launch -n N -- PROGRAM ARGS")),
      bench_app(add("bench", "time collectives among processes")),
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
  add_collectives(*bench_app, collective);
  add_json(*info_app, info.json, "the same");
}

std::optional<Printed> CommandLine::read(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1 && arguments[0] == "bench" && !arguments[1].starts_with('-') &&
      std::find(kCollectives.begin(), kCollectives.end(), arguments[1]) == kCollectives.end())
    refuse_bench(arguments[1]);
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

/// Shared objects are not looked into for their defaults.
bool is_for_colour(const Training& training) {
  if (is_script_file(training.model)) return script_input(training)[0] == 3;
  return !is_network_file(training.model) && nn::find_network(training.model).channels == 3;
}

/// A step of a network for colour images takes a hundred times as long as one of MNIST's.
void take_colour_defaults(CLI::App& app, Training& training) {
  constexpr std::int64_t kBatch = 32;
  if (is_for_colour(training) && app.get_option("--batch")->count() == 0) training.batch = kBatch;
}

void take_colour_defaults(CLI::App& app, CompareOptions& options) {
  constexpr std::int64_t kSteps = 10, kTestImages = 100;
  if (!is_for_colour(options)) return;
  take_colour_defaults(app, static_cast<Training&>(options));
  if (app.get_option("--batch")->count() == 0) options.batches = {options.batch};
  if (!options.data.empty()) return;
  const std::int64_t largest = *std::max_element(options.batches.begin(), options.batches.end());
  if (app.get_option("--train-images")->count() == 0) options.train_images = kSteps * largest;
  if (app.get_option("--test-images")->count() == 0) options.test_images = kTestImages;
}

/// 1, 2, 4 and 8, as far as each has cores of its own (or a GPU) and one of `rows` rows.
std::vector<int> default_devices(const Training& training, std::int64_t rows) {
  const bool gpus = training.device == DeviceKind::cuda && why_unavailable(DeviceKind::cuda).empty();
  const std::int64_t own =
      gpus ? backend(DeviceKind::cuda).device_count() : usable_cores() / training.threads_per_device;
  std::vector<int> devices = {1};
  for (const int more : {2, 4, 8})
    if (more <= std::min(own, rows)) devices.push_back(more);
  return devices;
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
    take_colour_defaults(*train_app, train);
    check(train);
    return train;
  }
  if (*bench_app) {
    if (collective.collective.empty()) refuse_bench("");
    check(collective);
    return collective;
  }
  require_momentum_of_sgd(*compare_app, compare);
  take_colour_defaults(*compare_app, compare);
  compare.batch = compare.batches.front();
  const std::int64_t rows = *std::min_element(compare.batches.begin(), compare.batches.end());
  if (compare_app->get_option("--devices")->count() == 0)
    compare.devices = default_devices(compare, compare.scaling == "weak" ? kMaxDevices : rows);
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
