#include "cli/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "cli/system/number_text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kJson = "--json";

bool is_option(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

void require_known(const std::string& command, const std::vector<std::string>& commands) {
  if (is_option(command) || std::find(commands.begin(), commands.end(), command) != commands.end()) return;
  const std::string hint = did_you_mean(command, commands);
  throw UsageError(concat("unknown command '", command, "'",
                          hint.empty() ? ", expected " + listed(commands, "or") : hint, " (see duet --help)"));
}

/// Edits from one word to the other: the optimal string alignment distance.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> edits(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) edits[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) edits[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
    }
  return edits[a.size()][b.size()];
}

}  // namespace

void add_json(CLI::App& app, std::string& json, const std::string& what) {
  app.add_option(
         kJson, json,
         what +
             " as JSON, in FILE; without FILE, or with -, on the standard output, and all other text on standard error")
      ->type_name("[FILE]");
}

Check in_range(double least, double most) {
  return [=](const std::string& text) -> std::string {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value);                      // 0 for an empty text
    if (!text.empty() && (!number || (value >= least && value <= most))) return "";  // other text: CLI11's error
    const bool open = most == std::numeric_limits<double>::max();
    return concat("is ", text.empty() ? "''" : text, ", expected ", least, open ? " or more" : concat(" to ", most));
  };
}

Check one_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return concat("unknown '", text, "', expected ", listed(words, "or"));
  };
}

void add_choice(CLI::App& app, const char* option, const std::vector<std::string>& words, const char* otherwise,
                const std::function<void(std::size_t)>& take, const char* about) {
  const auto read = [words, take](const std::string& text) {
    take(static_cast<std::size_t>(std::find(words.begin(), words.end(), text) - words.begin()));
  };
  app.add_option_function<std::string>(option, read, about)->check(one_of(words))->default_str(otherwise);
}

std::vector<std::string> entries_of(const std::string& list) {
  std::vector<std::string> entries(1);
  for (const char letter : list) {
    if (letter == ',')
      entries.emplace_back();
    else
      entries.back() += letter;
  }
  return entries;
}

void add_list(CLI::App& app, const char* option, const Check& check,
              const std::function<void(const std::vector<std::string>&)>& take, const char* otherwise,
              const char* about) {
  // Not by CLI11's delimiter, which drops empty entries.
  const auto read = [take](const std::string& list) { take(entries_of(list)); };
  const auto wrong = [check](const std::string& list) {
    std::string error;
    for (const std::string& entry : entries_of(list))
      if (error.empty()) error = check(entry);
    return error;
  };
  app.add_option_function<std::string>(option, read, about)->check(wrong)->default_str(otherwise);
}

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

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, word.size() / 4) + 1;  // further than this is another word
  for (const std::string& name : known) {
    const bool begins = word.size() >= 3 && name.starts_with(word);
    const std::size_t edits = begins ? 1 : distance(word, name);
    if (edits >= least) continue;
    least = edits;
    nearest = name;
  }
  return nearest.empty() ? "" : ", did you mean " + nearest + "?";
}

std::string hint_for_unknown_option(CLI::App& app) {
  CLI::App* used = &app;
  while (!used->get_subcommands().empty()) used = used->get_subcommands().front();
  std::vector<std::string> known;
  for (const CLI::Option* option : used->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const std::string& left : app.remaining(true))
    if (is_option(left)) return did_you_mean(left.substr(0, left.find('=')), known);
  return "";
}

}  // namespace duet::cli
