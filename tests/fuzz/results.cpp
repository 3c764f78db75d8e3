// results.json, untrusted input of duet predict and duet show: an invalid file is refused with a one-line error, and
// what is one gives steps that take a time, and lines that a terminal shows as they are. Three of four changes are of
// one value of the file, as others leave hardly any JSON.
#include "compare/results.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "compare/report/report.h"
#include "compare/report/scaling.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "tests/fuzz/input.h"
#include "train/measure/json_fields.h"
#include "train/system/display.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_fuzz;

namespace {

ScalingPlan plan_of(std::uint8_t choice) {
  switch (choice % 4) {
    case 0: return {.devices = {1, 2, 4, 8}};
    case 1: return {.devices = {2, 64}, .hosts = {1, 16}, .link = named_link("100gbe").link, .batch = 4096};
    case 2: return {.modes = {Mode::dp, Mode::ddp, Mode::averaging}, .devices = {1, 3}, .batch = 7, .weak = true};
    default: return {.devices = {1, 2}, .link = Link{.hop = {.latency_us = 500, .bytes_per_us = 12.5}}, .weak = true};
  }
}

/// Whether `action` ends without one of duet's errors, whose texts name what is wrong.
template <class Action>
bool refused(Action&& action) {
  try {
    action();
    return false;
  } catch (const DataError& error) {
    const std::string text = error.what();
    expect(text.size() < 400 && (text.starts_with("results: ") || text.starts_with("not JSON")),
           "a line that says why");
    return true;
  } catch (const UsageError&) {
    return true;
  }
}

/// Prints the results as duet show does.
void show(Results results) {
  const auto is_plain = [](const std::string& text) {
    return std::none_of(text.begin(), text.end(), [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f; });
  };
  change_texts(results, [](const std::string& text) { return printable(text); });
  Results other = results;
  other.settings.batch = 7;
  if (!other.runs.empty()) other.runs.erase(other.runs.begin());
  std::istringstream lines(side_by_side(results, other, kScreenColumns, {}));
  for (std::string line; std::getline(lines, line);)
    expect(is_plain(line) && width(line) <= kScreenColumns, "a line of the screen");
  expect(!side_by_side_json(results, other).empty() && is_plain(first_screen(results, {.out = ""})), "a screen");
}

void add_values(Json& value, std::vector<Json*>& all) {
  all.push_back(&value);
  if (value.is_structured())
    for (Json& item : value) add_values(item, all);
}

/// With one value replaced by another, or by one of those that are not expected there.
std::string with_other_value(const std::string& text, unsigned seed) {
  static const Json others = Json::parse(
      R"([null, true, 0, 1, 2, -1, 0.5, 1e-300, 1e15, 1e300, 1024, 2147483647, 9223372036854775807, 1.8e19, "", "cuda",
          "copies", [], {}, [[1]]])");
  Json json = parsed_json(text);
  if (json.is_discarded()) return text;
  std::minstd_rand draws(seed);
  std::vector<Json*> all;
  add_values(json, all);
  const Json other = draws() % 4 == 0 ? *all[draws() % all.size()] : others[draws() % others.size()];
  *all[draws() % all.size()] = other;
  return json.dump();
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  std::string text(data + std::min<std::size_t>(size, 1), data + size);
  if (size == 0 || seed % 4 == 0 || !accepted([&] { text = with_other_value(text, seed); }) || text.size() >= most)
    return LLVMFuzzerMutate(data, size, most);
  std::copy(text.begin(), text.end(), data + 1);
  return text.size() + 1;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const ScalingPlan plan = plan_of(input.take<std::uint8_t>());
  const std::string text = input.rest();
  Results results;
  if (refused([&] { results = results_from_json(text); })) return 0;
  const std::string written = to_json(results);
  expect(to_json(results_from_json(written)) == written, "results that are written as they were read");
  show(results);
  std::vector<ScalingRow> rows;
  if (refused([&] { rows = scaling_rows(results, plan); })) return 0;
  for (const ScalingRow& row : rows)
    expect(row.step_us > 0 && row.batch > 0 && row.speedup > 0 && std::isfinite(row.step_us) &&
               std::isfinite(row.speedup) && std::isfinite(row.error()),
           "a time and a speed-up");
  expect(!to_json(rows).empty() && efficiency_chart(rows).empty() == bounds_chart(rows).empty(),
         "pictures of the rows");
  return 0;
}
