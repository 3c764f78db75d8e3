#include "cli/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/options/suggest.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

constexpr const char* kJson = "--json";

bool is_option(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

void require_known(const std::string& command, const std::vector<std::string>& commands) {
  if (is_option(command) || std::find(commands.begin(), commands.end(), command) != commands.end()) return;
  const std::string hint = did_you_mean(command, commands);
  std::string list;
  for (std::size_t i = 0; i < commands.size(); ++i)
    list += (i == 0 ? ", expected " : i + 1 == commands.size() ? " or " : ", ") + commands[i];
  throw UsageError(concat("unknown command '", command, "'", hint.empty() ? list : hint, " (see duet --help)"));
}

}  // namespace

void add_json(CLI::App& app, std::string& json, const std::string& what) {
  app.add_option(
         kJson, json,
         what +
             " as JSON, in FILE; without FILE, or with -, on the standard output, and all other text on standard error")
      ->type_name("[FILE]");
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
  if (words[0] == "launch") return words;  // whose last words are another program's
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] == kJson && (i + 1 == words.size() || is_option(words[i + 1]))) words[i] = concat(kJson, "=-");
  return words;
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
