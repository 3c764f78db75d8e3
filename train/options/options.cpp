#include "train/options/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/base/threads.h"
#include "lib/error.h"
#include "lib/nn/networks.h"
#include "lib/parse_number.h"
#include "train/options/command_line.h"
#include "train/system/display.h"
#include "train/system/machine.h"

namespace duet::cli {
namespace {

constexpr const char* kAbout =
    "Data-parallel training without Python: trains a network on one device, and on several with DataParallel, with "
    "DistributedDataParallel and by averaging gradients by hand. It reports their speed, and whether their results are "
    "bitwise identical.";

constexpr const char* kJson = "--json";
constexpr const char* kBriefly = "briefly";  // what -h reads, and --help does not
constexpr const char* kHelp = "-h{briefly},--help";
constexpr const char* kAboutHelp = "print help, in short (-h) or in full (--help), and exit";
constexpr std::array kCollectives = {"all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"};

bool is_option(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

/// ", did you mean train?", else ", expected compare, show or train".
std::string instead_of(const std::string& word, const std::vector<std::string>& known) {
  const std::string hint = did_you_mean(word, known);
  return hint.empty() ? ", expected " + listed(known, "or") : hint;
}

void require_known(const std::string& command, const std::vector<std::string>& commands) {
  if (is_option(command) || std::find(commands.begin(), commands.end(), command) != commands.end()) return;
  throw UsageError(concat("unknown command '", command, "'", instead_of(command, commands), " (see duet --help)"));
}

/// The arguments as the parser takes them: `help COMMAND` as `COMMAND --help`, and `--json` without a file as
/// `--json=-`. Throws UsageError with the nearest one for a command that is none of `commands`.
std::vector<std::string> spelled_out(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& commands) {
  std::vector<std::string> words = arguments;
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  if (words.empty()) return words;
  require_known(words[0], commands);
  if (words[0] == "launch") return words;  // its last words are another program's
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] == kJson && (i + 1 == words.size() || is_option(words[i + 1]))) words[i] = concat(kJson, "=-");
  return words;
}

/// The innermost command that was read.
CLI::App& innermost(CLI::App& app) {
  CLI::App* used = &app;
  while (!used->get_subcommands().empty()) used = used->get_subcommands().front();
  return *used;
}

/// Whether -h asked for help, and --help did not.
bool asks_briefly(CLI::App& app) {
  std::vector<std::string> given;
  for (CLI::App* used = &app; used != nullptr;) {
    const auto results = used->get_help_ptr()->results();
    given.insert(given.end(), results.begin(), results.end());
    const auto below = used->get_subcommands();
    used = below.empty() ? nullptr : below.front();
  }
  return !given.empty() && std::all_of(given.begin(), given.end(), [](const auto& word) { return word == kBriefly; });
}

/// ", did you mean --epochs?" after a failed parse that left an option over; empty where no known one is near.
std::string hint_for_unknown_option(CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : innermost(app).get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const std::string& left : app.remaining(true))
    if (is_option(left)) return did_you_mean(left.substr(0, left.find('=')), known);
  return "";
}

/// Adds --json, which means the same in every command (see train/system/files.h). `what` names the contents of the
/// JSON.
void add_json(CLI::App& app, std::string& json, const std::string& what) {
  app.add_option(kJson, json,
                 concat("write ", what,
                        " as JSON to FILE; without FILE, or with -, to stdout (other text then goes to stderr)"))
      ->type_name("[FILE]");
}

/// Adds --config, which parse() reads.
void add_config(CLI::App& app, std::string& file) {
  app.add_option("--config", file,
                 "TOML file with lines KEY = VALUE, each an option of this command without its dashes; flags are true "
                 "or false. The command line wins")
      ->default_str("")
      ->configurable(false);
}

enum class Entries { any, distinct };

/// Adds an option that takes a list with commas between its entries, which all pass `check` and are read by
/// read(entry).
template <class T>
void add_list(CLI::App& app, const char* option, std::vector<T>& values, Entries entries, const Check& check,
              T (*read)(const std::string&), const char* otherwise, const char* about) {
  // Not by CLI11's delimiter, which drops empty entries.
  const auto take = [=, &values](const std::string& list) {
    values.clear();
    for (const std::string& entry : entries_of(list)) {
      const T value = read(entry);
      const bool again = std::find(values.begin(), values.end(), value) != values.end();
      require<UsageError>(entries == Entries::any || !again, option, ": ", entry, " twice");
      values.push_back(value);
    }
  };
  const auto wrong = [check](const std::string& list) {
    std::string error;
    for (const std::string& entry : entries_of(list))
      if (error.empty()) error = check(entry);
    return error;
  };
  const Check each(wrong, check.get_description());
  app.add_option_function<std::string>(option, take, about)->check(each)->default_str(otherwise);
}

std::string same(const std::string& entry) { return entry; }

Mode mode_of(const std::string& word) {
  return *std::find_if(kModes.begin(), kModes.end(), [&](Mode mode) { return word == name(mode); });
}

/// "1,2,4", or "1..8" for 1, 2, 4 and 8: doubled from the first on, and the last. Throws UsageError.
std::vector<int> counts(const char* option, const std::string& text) {
  const std::size_t dots = text.find("..");
  std::vector<int> out;
  const auto number = [&](const std::string& word) {
    const auto value = parse_number<int>(word);
    require<UsageError>(value && *value >= 1 && *value <= kMaxDevices, option, " is ", text,
                        ", expected numbers from 1 to ", kMaxDevices, ", as 1,2,4 or 1..8");
    return *value;
  };
  if (dots == std::string::npos) {
    for (const std::string& word : entries_of(text)) out.push_back(number(word));
  } else {
    const int first = number(text.substr(0, dots)), last = number(text.substr(dots + 2));
    require<UsageError>(first <= last, option, " is ", text, ", expected the smaller number first");
    for (int count = first; count < last; count *= 2) out.push_back(count);
    out.push_back(last);
  }
  std::sort(out.begin(), out.end());
  require<UsageError>(std::adjacent_find(out.begin(), out.end()) == out.end(), option, " is ", text,
                      ", expected every number once");
  return out;
}

/// Adds an option that takes numbers of devices or hosts, which mean the same in every command.
void add_counts(CLI::App& app, const char* option, std::vector<int>& values, const char* otherwise, const char* about) {
  const auto read = [option, &values](const std::string& text) { values = counts(option, text); };
  app.add_option_function<std::string>(option, read, about)->default_str(otherwise);
}

void add_scaling(CLI::App& app, std::string& scaling) {
  app.add_option("--scaling", scaling,
                 "divide a batch among the devices (strong), or give each device a whole one (weak)")
      ->check(one_of({"strong", "weak"}));
}

/// Lets the last value of an option that is given twice count: scripts put theirs first and let the user's follow.
void take_last(CLI::App& app) { app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast); }

void add_compare(CLI::App& app, CompareOptions& options) {
  add_list<Mode>(app, "--modes", options.modes, Entries::distinct, one_of({"single", "averaging", "dp", "ddp"}),
                 mode_of, "single,averaging,dp,ddp", "modes to compare, separated by commas");
  add_counts(app, "--devices", options.devices, "1,2,4,8 up to the cores or GPUs",
             "numbers of devices, separated by commas, or 1..8 for 1, 2, 4 and 8");
  add_list<std::string>(app, "--backend", options.backends, Entries::distinct, one_of(backend_names()), same, "auto",
                        "transport of collectives in averaging and ddp; several, separated by commas, each get rows of "
                        "ddp, and averaging uses the first");
  app.add_option("--batch", options.batch, "number of images in a batch; networks for colour images default to 32")
      ->check([](const std::string& text) {
        return text.find(',') == std::string::npos
                   ? in_range(1)(text)
                   : concat("is ", text, ", expected one number; run duet compare for each, then duet show A B");
      });
  add_scaling(app, options.scaling);
  add_training(app, options);
  app.add_option(
         "--time-budget", options.time_budget_s,
         "seconds for rounds that time all modes against each other; they end earlier if every speed-up is known "
         "to 1 %. 0: no rounds, and so no intervals")
      ->check(in_range(0, 1e6));
  app.add_option("--out", options.out, "directory for index.html, results.json and results.csv");
  app.add_option("--share", options.share,
                 "new or empty directory with results to send to others, without the names of user and host");
  app.add_flag("--wide", options.wide, "print all rows, columns and sentences, not only one screen");
  app.add_flag("--tutorial", options.tutorial,
               "also print averaging's total time on each number of devices, as PyTorch's tutorials do");
  app.add_option("--vs-torch", options.vs_torch,
                 "Python interpreter with PyTorch (and torchvision) to time in the same rounds, as well as LibTorch if "
                 "duet was built with it");
  add_json(app, options.json, "results.json");
}

void add_show(CLI::App& app, ShowOptions& options) {
  app.add_option("a", options.a, "comparison to print again: the directory of duet compare, or its results.json")
      ->type_name("FILE");
  app.add_option("b", options.b,
                 "second comparison: prints both side by side, and how many times as fast each mode is here as in the "
                 "first, with a 95 % interval")
      ->type_name("FILE");
  app.add_flag("--wide", options.wide, "print all rows, columns and sentences of one comparison, not only one screen");
  app.add_flag("--tutorial", options.tutorial, "also print averaging's total times, as PyTorch's tutorials do");
  app.add_option("--svg", options.svg, "file for the picture of one comparison's speed-ups, as SVG");
  app.add_flag("--parts", options.parts,
               "print the parts of a step of one comparison, or of a file that duet train --result has written");
  add_json(app, options.json, "the comparison of two results");
}

void add_predict(CLI::App& app, PredictOptions& options) {
  app.add_option("results", options.results, "results.json of a comparison with a cost model, or its directory")
      ->type_name("FILE");
  add_counts(app, "--devices", options.devices, "1..8",
             "numbers of devices per host, separated by commas, or 1..8 for 1, 2, 4 and 8");
  add_counts(app, "--hosts", options.hosts, "1",
             "numbers of hosts, separated by commas, or 1..8; each host has the largest number of devices given");
  app.add_option("--link", options.link,
                 "link between hosts, or between devices of a single host; --links lists the names. Default: this "
                 "machine's link as measured")
      ->check(one_of(link_names()));
  app.add_option("--latency-us", options.latency_us, "latency of a custom link: microseconds per message")
      ->check(in_range(0));
  app.add_option("--gbit", options.gbit,
                 "bandwidth of a custom link: 10^9 bits of payload per second in each direction")
      ->check(in_range(1e-6));
  app.add_option("--algorithm", options.algorithm, "algorithm of all-reduces over the link; default: the link's own")
      ->check(one_of({"ring", "tree", "recursive_doubling", "direct"}));
  add_list<Mode>(app, "--mode", options.modes, Entries::distinct, one_of({"ddp", "dp", "averaging"}), mode_of,
                 "all that were measured", "modes to predict, separated by commas");
  app.add_option("--batch", options.batch, "number of samples in a batch; 0: as measured")->check(in_range(0, 1e15));
  add_scaling(app, options.scaling);
  add_json(app, options.json, "the table");
  app.add_option("--out", options.out, "file for a page with charts, NAME.html");
  app.add_flag("--links", options.links,
               "print the named links and those measured in FILE, with figures and sources, and exit");
}

constexpr std::array kDTypes = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u8};

void add_collective(CLI::App& app, CollectiveOptions& options, bool all_reduce) {
  std::vector<std::string> algorithms = {"library"};
  if (all_reduce) algorithms.insert(algorithms.end(), {"naive_ring", "chunked_ring", "recursive_doubling"});
  app.add_option("--devices", options.devices, "number of ranks")->check(one_count());
  add_choice(app, "--device", options.device, std::array{DeviceKind::cpu, DeviceKind::cuda},
             "memory of the buffers: the host's (cpu), or a GPU for each rank, shared if there are too few (cuda)");
  add_choice(app, "--dtype", options.dtype, kDTypes, "type of the elements");
  app.add_option("--workers", options.workers, "run each rank as a process, or as a thread of one process")
      ->check(one_of({"process", "thread"}));
  add_list<std::string>(app, "--backend", options.backends, Entries::any, one_of(backend_names()), same, "auto",
                        "transport of the collective, or several to compare, separated by commas; auto takes the best. "
                        "mpi needs mpirun, nccl needs --device cuda, and memory needs --workers thread");
  add_list<std::string>(app, "--algorithm", options.algorithms, Entries::any, one_of(algorithms), same, "library",
                        "algorithm of the collective, or several to compare, separated by commas: the backend's own "
                        "(library), or for all_reduce also one made of messages");
  const auto size = [&](const char* name, std::int64_t& bytes, const char* text) {
    app.add_option(name, bytes, text)->transform(CLI::AsSizeValue(false));
  };
  size("-b,--min-bytes", options.min_bytes,
       "smallest size: bytes of a rank's longer buffer; K, M and G are powers of 1024");
  size("-e,--max-bytes", options.max_bytes, "largest size, in the same units");
  app.add_option("-f,--factor", options.factor, "factor from one size to the next")->check(in_range(2));
  app.add_option("-n,--iterations", options.iterations, "number of timed calls per size")->check(in_range(1));
  app.add_option("-w,--warm-up", options.warm_up, "number of calls before the timed ones")->check(in_range(0));
  app.add_option("-c,--check", options.check, "count wrong elements of one more call (1), or don't (0)")
      ->check(in_range(0, 1));
  add_json(app, options.json, "all rows");
}

void add_collectives(CLI::App& bench, CollectiveOptions& options) {
  for (const char* name : kCollectives) {
    CLI::App* app = bench.add_subcommand(name, concat("Time ", name, " among ranks, in the columns of nccl-tests"));
    app->set_help_flag(kHelp, kAboutHelp);
    app->callback([&options, name] { options.collective = name; });
    add_collective(*app, options, name == std::string("all_reduce"));
  }
}

[[noreturn]] void refuse_bench(const std::string& what) {
  throw UsageError(concat("duet bench: ", what.empty() ? "no benchmark" : concat("unknown '", what, "'"),
                          instead_of(what, {kCollectives.begin(), kCollectives.end()})));
}

/// The parser with all commands, and what it reads into.
struct CommandLine {
  CommandLine();
  /// Throws UsageError with one line.
  std::optional<Printed> read(const std::vector<std::string>& arguments);
  /// What was read, typed and checked. Throws UsageError.
  Command command();

  CLI::App app{kAbout, "duet"};
  std::string config;  // file of --config

  CLI::App *compare_app, *show_app, *predict_app, *train_app, *launch_app, *bench_app, *info_app;
  CompareOptions compare;
  ShowOptions show;
  PredictOptions predict;
  TrainOptions train;
  LaunchOptions launch;
  CollectiveOptions collective;
  InfoOptions info;

 private:
  CLI::App* add(const char* name, const char* about) {
    CLI::App* const below = app.add_subcommand(name, about);
    below->set_help_flag(kHelp, kAboutHelp);
    return below;
  }
};

CommandLine::CommandLine()
    : compare_app(add("compare", "Train in all modes, compare them and write a report")),
      show_app(add("show", "Print a comparison's results, or two side by side")),
      predict_app(add("predict", "Predict other numbers of devices and links")),
      train_app(add("train", "Train once, in one mode")),
      launch_app(add("launch", "Start N ranks: duet launch -n N -- PROGRAM ARGS")),
      bench_app(add("bench", "Time collectives among processes")),
      info_app(add("info", "Print devices, instruction sets and library versions")) {
  app.set_help_flag(kHelp, kAboutHelp);
  app.set_version_flag("--version", "duet " DUET_VERSION);
  app.require_subcommand(1);
  app.footer("duet COMMAND -h describes a command, duet COMMAND --help (or duet help COMMAND) all of its options.");
  for (CLI::App* const one : {compare_app, show_app, predict_app, train_app, launch_app, bench_app}) take_last(*one);
  for (CLI::App* const one : {compare_app, predict_app, train_app, bench_app, launch_app})
    one->option_defaults()->always_capture_default();
  compare.epochs = 1;
  add_compare(*compare_app, compare);
  add_show(*show_app, show);
  add_predict(*predict_app, predict);
  add_train(*train_app, train);
  add_launch(*launch_app, launch);
  add_collectives(*bench_app, collective);
  bench_app->footer("duet bench COLLECTIVE --help lists all options.");  // its own, which collectives don't inherit
  add_json(*info_app, info.json, "the same facts");
  for (CLI::App* const one : {compare_app, predict_app, train_app, launch_app}) add_config(*one, config);
  for (CLI::App* const one : bench_app->get_subcommands({})) add_config(*one, config);
}

std::optional<Printed> CommandLine::read(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1 && arguments[0] == "bench" && !arguments[1].starts_with('-') &&
      std::find(kCollectives.begin(), kCollectives.end(), arguments[1]) == kCollectives.end())
    refuse_bench(arguments[1]);
  try {
    if (arguments.empty()) throw CLI::CallForHelp();
    std::vector<std::string> reversed =
        spelled_out(arguments, {"compare", "show", "predict", "train", "launch", "bench", "info"});
    std::reverse(reversed.begin(), reversed.end());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    arrange_help(app, asks_briefly(app));  // here alone: every rank parses, and none prints help
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
  if (!options.data.empty()) return;
  if (app.get_option("--train-images")->count() == 0) options.train_images = kSteps * options.batch;
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

template <class Options>
Options checked(const Options& options) {
  check(options);
  return options;
}

Command CommandLine::command() {
  if (*info_app) return info;
  if (*show_app) return checked(show);
  if (*predict_app) return checked(predict);
  if (*launch_app) return checked(launch);
  if (*train_app) {
    require_momentum_of_sgd(*train_app, train);
    take_colour_defaults(*train_app, train);
    return checked(train);
  }
  if (*bench_app) {
    if (collective.collective.empty()) refuse_bench("");
    return checked(collective);
  }
  require_momentum_of_sgd(*compare_app, compare);
  take_colour_defaults(*compare_app, compare);
  compare.config = config;
  if (compare_app->get_option("--devices")->count() == 0)
    compare.devices = default_devices(compare, compare.scaling == "weak" ? kMaxDevices : compare.batch);
  if (compare.blocks == 0 && compare.device == DeviceKind::cpu && compare.compat == Compat::duet)
    compare.blocks = blocks_for(compare.devices);
  for (auto backend = compare.backends.rbegin(); backend != compare.backends.rend(); ++backend) {  // the first stays
    compare.backend = *backend;
    check(compare);
  }
  return compare;
}

}  // namespace

void check(const PredictOptions& options) {
  if (options.links) return;
  require<UsageError>(!options.results.empty(), "duet predict: no results.json given");
  require<UsageError>(options.link.empty() || !(options.latency_us || options.gbit), "--link is ", options.link,
                      ", but --latency-us and --gbit describe another");
  require<UsageError>(!options.latency_us || options.gbit, "--latency-us without --gbit");
  require<UsageError>(options.algorithm.empty() || !options.link.empty() || options.gbit,
                      "--algorithm is for a link that --link or --gbit names");
  const int devices = options.devices.back(), hosts = options.hosts.back();
  require<UsageError>(devices * hosts <= kMaxDevices, devices, " devices on each of ", hosts, " hosts are ",
                      devices * hosts, ", expected at most ", kMaxDevices);
  require<UsageError>(hosts == 1 || !options.link.empty() || options.gbit, "--hosts is ", hosts,
                      ", but no --link or --gbit is given for what connects them");
  require<UsageError>(options.out.empty() || options.out.ends_with(".html"), "--out is ", options.out,
                      ", expected a name that ends with .html");
}

void check(const ShowOptions& options) {
  require<UsageError>(!options.a.empty(), "duet show: no folder or results.json given");
  require<UsageError>(options.json.empty() || !options.b.empty(),
                      "--json is for two results; of one results.json is JSON already");
  const char* const of_one = options.wide           ? "--wide"
                             : options.tutorial     ? "--tutorial"
                             : !options.svg.empty() ? "--svg"
                                                    : "--parts";
  const bool one_only = options.wide || options.tutorial || options.parts || !options.svg.empty();
  require<UsageError>(options.b.empty() || !one_only, of_one, " is for one result, not for two");
  const bool alone = options.parts || !options.svg.empty();
  require<UsageError>(!alone || !(options.wide || options.tutorial || (options.parts && !options.svg.empty())), of_one,
                      " is given with ", options.parts ? "--parts" : "--svg", ", expected one of them");
}

void check(const CollectiveOptions& options) {
  for (const std::string& backend : options.backends) {
    require<UsageError>(backend != "nccl" || options.device == DeviceKind::cuda, "--backend nccl is for --device cuda");
    require<UsageError>(backend != "memory" || options.workers == "thread", "--backend memory is for --workers thread");
    require<UsageError>(backend != "mpi" || options.workers == "process", "--backend mpi is for --workers process");
  }
  const bool floats_of_host = options.dtype == DType::f32 && options.device == DeviceKind::cpu;
  require<UsageError>(floats_of_host || options.algorithms == std::vector<std::string>{"library"},
                      "--algorithm: other than library is for f32 in the host's memory, not for ", options.dtype,
                      " with --device ", duet::name(options.device));
  const auto bytes_of_one = static_cast<std::int64_t>(size_of(options.dtype));
  require<UsageError>(options.min_bytes >= bytes_of_one, "--min-bytes is ", options.min_bytes, ", expected ",
                      bytes_of_one, " or more");
  require<UsageError>(options.max_bytes >= options.min_bytes, "--max-bytes is ", options.max_bytes,
                      ", smaller than --min-bytes, ", options.min_bytes);
}

Command parse(const std::vector<std::string>& arguments) {
  CommandLine line;
  if (const std::optional<Printed> printed = line.read(arguments)) return *printed;
  if (line.config.empty()) return line.command();
  // CLI11 2.1 reads such a file for the program only, not for its commands, and names no file in its errors.
  const auto words = arguments.begin() + (*line.bench_app ? 2 : 1);
  std::vector<std::string> all(arguments.begin(), words);
  const std::vector<std::string> given = arguments_of_file(innermost(line.app), line.config);
  all.insert(all.end(), given.begin(), given.end());
  with_prefix([&] { return line.config + ": "; }, [&] { CommandLine().read(all); });
  all.insert(all.end(), words, arguments.end());  // the last of two counts
  CommandLine both;
  both.read(all);
  return both.command();
}

}  // namespace duet::cli
