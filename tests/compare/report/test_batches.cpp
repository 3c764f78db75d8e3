// Comparisons of several batches that never ran.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "compare/report/report.h"
#include "lib/error.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;
using duet_test::ContainsSubstring;

namespace {

/// The speed-up over single on two devices, with an interval of 0.1 to each side.
void set_speedup(Run& run, double speedup) {
  run.speedup = speedup;
  run.speedup_low = speedup - 0.1;
  run.speedup_high = speedup + 0.1;
}

/// The made-up comparison, whose runs of dp and ddp on 2 devices reach these speed-ups.
Results compared(std::int64_t batch, double dp, double ddp) {
  Results results = duet_test::made_up();
  results.settings.batch = batch;
  for (Run& run : results.runs) run.batch = batch;
  set_speedup(results.runs[3], dp);
  set_speedup(results.runs[4], ddp);
  return results;
}

std::vector<Results> three() { return {compared(512, 1.8, 1.9), compared(32, 0.7, 0.8), compared(128, 1.05, 1.6)}; }

std::string text_of(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

}  // namespace

TEST_CASE("each batch has its part of the time budget and a folder") {
  const auto options =
      std::get<CompareOptions>(parse({"compare", "--batch", "128,32", "--time-budget", "30", "--out", "a b"}));
  const std::vector<CompareOptions> each = options_of_batches(options);
  REQUIRE(each.size() == 2);
  CHECK(each[0].batch == 128);
  CHECK(each[1].batch == 32);
  CHECK(each[1].batches == std::vector<std::int64_t>{32});
  CHECK(each[1].time_budget_s == 15);
  CHECK(each[1].out == "a b/batch-32");
  const std::vector<CompareOptions> one = options_of_batches(std::get<CompareOptions>(parse({"compare"})));
  REQUIRE(one.size() == 1);
  CHECK(one[0].out == "out");
  CHECK(one[0].time_budget_s == 45);
}

TEST_CASE("the table of batches has a row for each, sorted, and a column per mode on the most devices of their own") {
  const TerminalStyle plain{};
  CHECK(batch_table(three(), plain) ==
        "Speed-up over single on 2 devices\n"
        " batch    averaging           dp          ddp\n"
        "    32  1.60x ±0.01  0.70x ±0.10  0.80x ±0.10\n"
        "   128  1.60x ±0.01  1.05x ±0.10  1.60x ±0.10\n"
        "   512  1.60x ±0.01  1.80x ±0.10  1.90x ±0.10\n");
  std::vector<Results> batches = three();
  batches[0].runs[3].ok = false;
  set_speedup(batches[1].runs[4], 3);
  for (Results& results : batches) results.weak = true;
  const std::string table = batch_table(batches, plain);
  CHECK_THAT(table, ContainsSubstring("on 2 devices, in samples a second (weak scaling: a batch of each device)\n"));
  CHECK_THAT(table, ContainsSubstring("            -    1.90x ±0.10\n"));
  CHECK_THAT(table, ContainsSubstring("3.00x ±0.10 !\n"));
  for (Results& results : batches) results.runs.erase(results.runs.begin(), results.runs.begin() + 2);
  for (Results& results : batches) compare_with_single(results);
  CHECK(batch_table(batches, plain).empty());
  CHECK(batch_chart(batches).empty());
}

TEST_CASE("devices that share cores are in the table of batches only where all do") {
  std::vector<Results> batches = three();
  CHECK(batch_table(batches, {}).starts_with("Speed-up over single on 2 devices\n"));
  for (Results& results : batches) results.machine.cores = 1;
  CHECK(batch_table(batches, {}).starts_with("Speed-up over single on 4 devices\n"));
}

TEST_CASE("a mode is faster or slower at the batches whose intervals exclude 1") {
  CHECK(text_of(batch_findings(three())) ==
        "averaging on 2 devices is faster than single at batch 32, 128 and 512.\n"
        "dp on 2 devices is faster than single at batch 512, slower at batch 32; no difference was measured at batch "
        "128.\n"
        "ddp on 2 devices is faster than single at batch 128 and 512, slower at batch 32.\n");
  std::vector<Results> batches = {compared(32, 1, 0.5), compared(64, 1.05, 0.6)};
  CHECK_THAT(text_of(batch_findings(batches)),
             ContainsSubstring("dp on 2 devices: no difference from single was measured at batch 32 and 64.") &&
                 ContainsSubstring("ddp on 2 devices is slower than single at batch 32 and 64."));
  for (Results& results : batches)
    for (Run& run : results.runs) run.speedup_low.reset();
  CHECK(batch_findings(batches).empty());
}

TEST_CASE("the picture of batches has a line per mode and number of devices") {
  const std::string picture = to_json({batch_chart(three())});
  CHECK_THAT(picture,
             ContainsSubstring("\"dp 2\"") && ContainsSubstring("\"ddp 2\"") && ContainsSubstring("\"ddp 4\""));
  CHECK_THAT(picture, ContainsSubstring("\"single\"") && ContainsSubstring("batch 512"));
  CHECK_THAT(picture, ContainsSubstring("dp on 2, batch 32: 0.70x ±0.10"));
  CHECK(batch_chart(three()).caption ==
        "How many times single's samples a second, for every mode and number of devices above 1; the batch is "
        "logarithmic. Thick bars are 95 % intervals.");
}

TEST_CASE("the page of batches links to each batch's page") {
  const std::string page = batches_page(three(), false, "duet compare --batch 512,32,128");
  for (const std::string batch : {"32", "128", "512"})
    CHECK_THAT(page, ContainsSubstring("<a href=\"batch-" + batch + "/index.html\">batch " + batch + "</a>: "));
  CHECK_THAT(page, ContainsSubstring("<h1>Batches of 32, 128 and 512 compared</h1>"));
  CHECK_THAT(page, ContainsSubstring("<td>0.70x ±0.10</td>"));
  CHECK_THAT(page, ContainsSubstring("duet compare --batch 512,32,128") && !ContainsSubstring("partial"));
  CHECK_THAT(batches_page(three(), true, ""), ContainsSubstring("partial: interrupted"));
}

TEST_CASE("the JSON of batches holds that of each, and is refused where one is expected") {
  const std::vector<Results> batches = three();
  const std::string text = batches_json(batches, false);
  const auto json = nlohmann::ordered_json::parse(text);
  REQUIRE(json["batches"].size() == 3);
  CHECK(json["partial"] == false);
  for (std::size_t i = 0; i < 3; ++i) CHECK(json["batches"][i].dump(1) + "\n" == to_json(batches[i]));
  CHECK_THROWS_WITH(results_from_json(text),
                    ContainsSubstring("results of several batches, expected those of one: batch-512/results.json, "
                                      "batch-32/results.json or batch-128/results.json"));
  CHECK_THROWS_AS(results_from_json(R"({"batches": 1})"), DataError);
  CHECK_THROWS_AS(results_from_json(R"({"batches": [1]})"), DataError);
}
