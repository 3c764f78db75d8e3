// Parts of the command line's parser.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cli/options/options.h"

namespace CLI {
class App;
}

namespace duet::cli {

inline const std::vector<std::string> kBackends = {"auto", "shm", "tcp", "gloo", "nccl", "memory"};
inline constexpr std::array kCollectives = {"all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"};

inline constexpr std::array kModes = {Mode::single, Mode::averaging, Mode::dp, Mode::ddp};

/// --port-range; --scaling; and a training's.
void add_port_range(CLI::App& app, const std::string& names, std::string& ports);
void add_scaling(CLI::App& app, std::string& scaling);
void add_training(CLI::App& app, Training& training);
void add_train(CLI::App& app, TrainOptions& options);
/// Adds a subcommand for every collective to duet bench; the one that is used names itself in `options`.
void add_collectives(CLI::App& bench, CollectiveOptions& options);
void add_launch(CLI::App& app, LaunchOptions& options);
void add_predict(CLI::App& app, PredictOptions& options);
/// Adds --json, which means the same in every command: see cli/system/output.h. `what` it is that JSON holds.
void add_json(CLI::App& app, std::string& json, const std::string& what);

/// For CLI::Option::check(): why a value is wrong, or nothing.
using Check = std::function<std::string(const std::string&)>;
Check in_range(double least, double most = std::numeric_limits<double>::max());
Check one_of(std::vector<std::string> words);
/// Adds an option that takes one of `words`, shown with its default, and calls take(its index).
void add_choice(CLI::App& app, const char* option, const std::vector<std::string>& words, const char* otherwise,
                const std::function<void(std::size_t)>& take, const char* about);
/// Of a list with commas between its entries, which may be empty.
std::vector<std::string> entries_of(const std::string& list);
/// Adds an option that takes a list with commas between its entries, which all pass `check`, and calls take(entries).
void add_list(CLI::App& app, const char* option, const Check& check,
              const std::function<void(const std::vector<std::string>&)>& take, const char* otherwise,
              const char* about);
/// Adds an option that takes the name of one of `values`.
template <class T, std::size_t N>
void add_choice(CLI::App& app, const char* option, T& chosen, const std::array<T, N>& values, const char* about) {
  std::vector<std::string> words;
  for (const T value : values) words.emplace_back(name(value));
  const auto take = [&chosen, values](std::size_t i) { chosen = values[i]; };
  add_choice(app, option, words, name(chosen), take, about);
}

/// The arguments as the parser takes them: `help COMMAND` as `COMMAND --help`, and `--json` without a file as
/// `--json=-`. Throws UsageError with the nearest one for a command that is none of `commands`.
std::vector<std::string> spelled_out(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& commands);

/// ", did you mean train?": the known name that is nearest to `word` by letters inserted, left out, replaced or swapped
/// with their neighbours, or that begins with it; empty where none is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

/// ", did you mean --epochs?" after a failed parse that left an option over; empty where no known one is near.
std::string hint_for_unknown_option(CLI::App& app);

}  // namespace duet::cli
