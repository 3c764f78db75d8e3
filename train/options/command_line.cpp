#include "train/options/command_line.h"

#include <algorithm>
#include <boost/algorithm/string/split.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/connect.h"
#include "lib/error.h"
#include "train/system/display.h"
#include "train/system/files.h"

namespace duet::cli {
namespace {

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

/// Groups of options in --help, in their order; other options are in the first, or of a command with few in "Options".
struct Group {
  const char* name;
  std::vector<std::string> options;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"Options", {}},
      {"Common", {}},
      {"Data", {"data", "download", "train-images", "test-images", "loader-workers", "skip-broken"}},
      {"Network", {"model", "input", "image-size", "classes", "stem", "sync-bn"}},
      {"Ranks", {"backend",   "algorithm",    "workers",       "threads-per-device",
                 "replicas",  "loss",         "compare-every", "timeout",
                 "nnodes",    "node-rank",    "rdzv-endpoint", "rdzv-backend",
                 "rdzv-id",   "rdzv-timeout", "master-addr",   "master-port",
                 "interface", "port-range",   "standalone",    "max-restarts",
                 "grace",     "stop-limit",   "hosts",         "link",
                 "links",     "latency-us",   "gbit",          "elastic",
                 "min-ranks", "spares",       "max-failures",  "replace-timeout"}},
      {"GPU", {"deterministic", "graph", "graph-steps"}},
      {"Files",
       {"checkpoint", "checkpoint-every", "resume", "result", "fingerprints", "step-times", "trace", "progress", "out",
        "share", "json", "log-dir", "redirects", "tee"}}};
  return all;
}

/// What -h lists of a command with many options.
const std::vector<std::string> kMostUsed = {
    "help",       "mode",          "modes", "devices", "model",  "data",      "epochs",  "batch",        "lr",
    "checkpoint", "resume",        "out",   "nproc",   "nnodes", "node-rank", "elastic", "max-restarts", "log-dir",
    "backend",    "rdzv-endpoint", "hosts", "link",    "wide",   "parts",     "svg",     "min-bytes",    "max-bytes"};

/// The text of one_of() in the name of an option's type: TEXT:{a,b}.
constexpr const char* kWordsBegin = ":{";

/// Shows options in lines that fit, by their names without underscores, and the values that they can have.
class Help final : public CLI::Formatter {
 public:
  explicit Help(bool briefly) : briefly_(briefly) { label("POSITIONALS", "Positionals"); }  // as CLI11 before 2.5 does
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* app) const override {
    return entry(app->get_name(), app->get_description());
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string shown;
    for (const std::string& name : entries_of(CLI::Formatter::make_option_name(option, is_positional)))
      if (name.find('_') == std::string::npos) shown += (shown.empty() ? "" : ",") + name.substr(0, name.find('{'));
    return shown;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    const std::size_t words = text.find(kWordsBegin);
    return words == std::string::npos ? text : text.erase(words, text.find('}', words) + 1 - words);
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string type = option->get_type_name(), text = option->get_description();
    if (briefly_) return text.substr(0, std::min(text.find(';'), text.find(". ")));
    const std::size_t begin = type.find(kWordsBegin), words = begin + 2;
    if (begin == std::string::npos) return text;
    return concat(text, ". Values: ", listed(entries_of(type.substr(words, type.find('}') - words)), "or"));
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = make_description(app) + make_usage(app, name) + make_positionals(app);
    for (const Group& group : groups()) {
      const auto options = app->get_options(
          [&](const CLI::Option* option) { return option->get_group() == group.name && option->nonpositional(); });
      if (!options.empty()) text += make_group(group.name, false, options);
    }
    const bool lists_commands = !app->get_subcommands({}).empty();
    const std::string end = briefly_ && !lists_commands ? name + " --help lists all options.\n" : make_footer(app);
    return text + make_subcommands(app, mode) + "\n" + end;
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped_text(app->get_description(), kHelpColumns);
  }
  std::string make_footer(const CLI::App* app) const override { return wrapped_text(app->get_footer(), kHelpColumns); }

 private:
  static std::string entry(const std::string& name, const std::string& about) {
    constexpr std::size_t kColumn = 24;
    const std::string text = wrapped_text(about, kHelpColumns, kColumn), head = "  " + name;
    return width(head) + 2 > kColumn ? concat(head, "\n", text) : flush_left(head, kColumn) + text.substr(kColumn);
  }

  bool briefly_;
};

}  // namespace

void arrange_help(CLI::App& app, bool briefly) {
  constexpr std::size_t kFew = 4;
  app.formatter(std::make_shared<Help>(briefly));
  const auto options = app.get_options(
      [](const CLI::Option* option) { return !option->get_group().empty() && option->nonpositional(); });
  for (CLI::Option* const option : options) {
    const char* name = options.size() > kFew ? "Common" : "Options";
    for (const Group& group : groups())
      for (const std::string& own : group.options)
        if (options.size() > kFew && option->check_lname(own)) name = group.name;
    const auto names = option->get_lnames();
    const bool most_used =
        std::find_first_of(names.begin(), names.end(), kMostUsed.begin(), kMostUsed.end()) != names.end();
    if (briefly && options.size() > kFew) name = most_used ? "Options" : "";
    option->group(name);
  }
  for (CLI::App* const below : app.get_subcommands({})) {
    below->group("Subcommands");
    arrange_help(*below, briefly);
  }
}

std::vector<std::string> arguments_of_file(const CLI::App& app, const std::string& file) {
  std::istringstream lines(with_prefix([] { return "--config: "; }, [&] { return read_file(file); }));
  std::vector<std::string> known, arguments;
  for (const CLI::Option* option : app.get_options({}))
    if (option->get_configurable() && !option->get_group().empty())
      for (const std::string& name : option->get_lnames()) known.push_back(name);
  const auto items = with_prefix([&] { return file + ": "; }, [&] { return CLI::ConfigTOML().from_config(lines); });
  for (const CLI::ConfigItem& item : items) {
    require<UsageError>(item.parents.empty(), file, ": section [", CLI::detail::join(item.parents, "."),
                        "], expected lines KEY = VALUE alone");
    require<UsageError>(std::find(known.begin(), known.end(), item.name) != known.end(), file, ": unknown key '",
                        item.name, "'", did_you_mean(item.name, known));
    const std::string name = "--" + item.name, value = CLI::detail::join(item.inputs, ",");
    const bool flag = app.get_option(name)->get_expected_min() == 0;
    require<UsageError>(!flag || value == "true" || value == "false", file, ": ", item.name, " is ", value,
                        ", expected true or false");
    if (value.empty())
      arguments.insert(arguments.end(), {name, value});  // CLI11 reads --KEY= as an option without its value
    else
      arguments.push_back(concat(name, "=", value));
  }
  return arguments;
}

std::vector<std::string> arranged_options() {
  std::vector<std::string> names = kMostUsed;
  for (const Group& group : groups()) names.insert(names.end(), group.options.begin(), group.options.end());
  return names;
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

std::vector<std::string> backend_names() {
  std::vector<std::string> names = {"auto"};
  for (const ddp::Backend& backend : ddp::kBackends)
    if (std::string_view(backend.name) != "solo") names.emplace_back(backend.name);
  return names;
}

std::vector<std::string> entries_of(const std::string& list, char between) {
  std::vector<std::string> entries;
  return boost::split(entries, list, [between](char letter) { return letter == between; });
}

Check in_range(double least, double most) {
  const auto why = [=](const std::string& text) -> std::string {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value);                      // 0 for an empty text
    if (!text.empty() && (!number || (value >= least && value <= most))) return "";  // other text: CLI11's error
    const bool open = most == std::numeric_limits<double>::max();
    return concat("is ", text.empty() ? "''" : text, ", expected ", least, open ? " or more" : concat(" to ", most));
  };
  return {why, ""};
}

Check one_count() {
  const auto why = [](const std::string& text) {
    const bool several = text.find(',') != std::string::npos || text.find("..") != std::string::npos;
    return several ? concat("is ", text, ", expected one number; duet compare and duet predict take several")
                   : in_range(1, kMaxDevices)(text);
  };
  return {why, ""};
}

Check one_of(const std::vector<std::string>& words) {
  const auto why = [words](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return concat("unknown '", text, "', expected ", listed(words, "or"));
  };
  return {why, concat("{", CLI::detail::join(words, ","), "}")};
}

void add_choice(CLI::App& app, const char* option, const std::vector<std::string>& words, const char* otherwise,
                const std::function<void(std::size_t)>& take, const char* about) {
  const auto read = [words, take](const std::string& text) {
    take(static_cast<std::size_t>(std::find(words.begin(), words.end(), text) - words.begin()));
  };
  app.add_option_function<std::string>(option, read, about)->check(one_of(words))->default_str(otherwise);
}

}  // namespace duet::cli
