// The options of duet predict.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "cli/options/command_line.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::cli {
namespace {

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

void add_counts(CLI::App& app, const char* option, std::vector<int>& values, const char* otherwise, const char* about) {
  app.add_option_function<std::string>(
         option, [option, &values](const std::string& text) { values = counts(option, text); }, about)
      ->default_str(otherwise);
}

std::vector<Mode> modes(const std::string& text) {
  std::vector<Mode> out;
  for (const std::string& word : entries_of(text)) {
    const auto named = [&](Mode mode) { return word == name(mode); };
    const auto all = {Mode::ddp, Mode::dp, Mode::averaging};
    const auto found = std::find_if(all.begin(), all.end(), named);
    require<UsageError>(found != all.end(), "--mode: unknown '", word, "', expected ddp, dp or averaging");
    require<UsageError>(std::find(out.begin(), out.end(), *found) == out.end(), "--mode: ", word, " twice");
    out.push_back(*found);
  }
  return out;
}

}  // namespace

void add_scaling(CLI::App& app, std::string& scaling) {
  app.add_option("--scaling", scaling, "strong: that batch is divided among the devices; weak: each has one")
      ->check(one_of({"strong", "weak"}));
}

void add_predict(CLI::App& app, PredictOptions& options) {
  app.add_option("results", options.results, "results.json of a comparison that has fitted a model")->type_name("FILE");
  add_counts(app, "--devices", options.devices, "1..8",
             "devices of one host: numbers separated by commas, or 1..8 for 1, 2, 4 and 8");
  add_counts(app, "--hosts", options.hosts, "1", "hosts, each with the most of these devices: as --devices");
  app.add_option("--link", options.link,
                 "what connects the hosts, where there are several, else the devices: a name of --links; default: "
                 "this machine's link as measured");
  app.add_option("--latency-us", options.latency_us, "of a link without a name: microseconds of one message")
      ->check(in_range(0));
  app.add_option("--gbit", options.gbit, "of a link without a name: 10^9 bits of payload a second, in each direction")
      ->check(in_range(1e-6));
  app.add_option("--algorithm", options.algorithm,
                 "of the all-reduces over that link: ring, tree, recursive_doubling or direct; default: the link's own")
      ->check(one_of({"ring", "tree", "recursive_doubling", "direct"}));
  app.add_option_function<std::string>(
         "--mode", [&](const std::string& text) { options.modes = modes(text); },
         "ddp, dp or averaging; several, separated by commas")
      ->default_str("all that were measured");
  app.add_option("--batch", options.batch, "rows of a batch; 0: as measured")->check(in_range(0, 1e15));
  add_scaling(app, options.scaling);
  add_json(app, options.json, "the table");
  app.add_option("--out", options.out, "file for a page with pictures: .html");
  app.add_flag("--links", options.links,
               "print the links that have names and those that FILE has measured, with figures and sources, and end");
}

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

}  // namespace duet::cli
