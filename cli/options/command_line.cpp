#include "cli/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/algorithm/string/split.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/system/display.h"
#include "ddp/connect.h"
#include "lib/error.h"

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

}  // namespace

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

}  // namespace duet::cli
