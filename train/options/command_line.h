// What the parts of the command line's parser share.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "train/options/options.h"

namespace duet::cli {

/// Names of the backends of ranks, "auto" among them.
std::vector<std::string> backend_names();
inline constexpr std::array kModes = {Mode::single, Mode::averaging, Mode::dp, Mode::ddp};

/// A training's options; and those of duet train besides.
void add_training(CLI::App& app, Training& training);
void add_train(CLI::App& app, TrainOptions& options);
void add_launch(CLI::App& app, LaunchOptions& options);
/// What an elastic job may lose; `names`: all spellings of an option.
void add_elastic(CLI::App& app, ddp::LaunchOptions& job, std::string (*names)(const std::string&));
/// The option --port-range.
void add_port_range(CLI::App& app, const std::string& names, std::string& ports);

/// Splits a list at every `between`; entries may be empty.
std::vector<std::string> entries_of(const std::string& list, char between = ',');

/// ", did you mean train?": the known name that is nearest to `word` by letters inserted, left out, replaced or swapped
/// with their neighbours, or that begins with it; empty where none is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

/// Lays out the help of a command and of those below it in lines of at most kHelpColumns: all options in groups, or
/// `briefly` the most used ones with the beginning of their texts.
void arrange_help(CLI::App& app, bool briefly);
inline constexpr std::size_t kHelpColumns = 80;

/// Arguments that say what the file of a --config does: "--KEY=VALUE" for each of its lines "KEY = VALUE", which are
/// TOML's. Throws UsageError that names file and key for one that is no option of `app`.
std::vector<std::string> arguments_of_file(const CLI::App& app, const std::string& file);

/// For CLI::Option::check(): why a value is wrong, or nothing.
using Check = CLI::Validator;
Check in_range(double least, double most = std::numeric_limits<double>::max());
/// --help, and so the shells' completion, name the words as values of the option.
Check one_of(const std::vector<std::string>& words);
/// For a --devices that takes one number.
Check one_count();
/// Adds an option that takes the name of one of `values`, and shows its default if that is one of them.
void add_choice(CLI::App& app, const char* option, const std::vector<std::string>& words, const char* otherwise,
                const std::function<void(std::size_t)>& take, const char* about);
template <class T, std::size_t N>
void add_choice(CLI::App& app, const char* option, T& chosen, const std::array<T, N>& values, const char* about) {
  std::vector<std::string> words;
  for (const T value : values) words.emplace_back(name(value));
  const bool shown = std::find(values.begin(), values.end(), chosen) != values.end();
  const auto take = [&chosen, values](std::size_t i) { chosen = values[i]; };
  add_choice(app, option, words, shown ? name(chosen) : "", take, about);
}

}  // namespace duet::cli
