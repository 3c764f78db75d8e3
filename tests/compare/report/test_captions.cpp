// What stands around the pictures.
#include <cstddef>
#include <string>
#include <vector>

#include "compare/report/report.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Of a word of the page; empty where it is not there.
std::string meaning(const Results& results, const std::string& wanted) {
  const std::string page = to_html(results, "", 1), begin = "<dt>" + wanted + "</dt><dd>";
  const std::size_t at = page.find(begin);
  return at == std::string::npos ? "" : page.substr(at + begin.size(), page.find("</dd>", at) - at - begin.size());
}

}  // namespace

TEST_CASE("a caption speaks of longer times on more devices only where every epoch was longer") {
  Results results = duet_test::made_up();
  CHECK(says(epoch_chart(results).caption, "ddp takes longer on 4 devices than on 2, where 4 devices share 2 cores."));
  Results threaded = results;
  threaded.machine.cores = 4;
  for (Run& run : threaded.runs) run.threads_per_device *= 2;
  CHECK(says(epoch_chart(threaded).caption, "than on 2, where 8 threads of 4 devices share 4 cores."));
  CHECK(crowded(threaded) ==
        std::vector<std::string>{"8 threads of 4 devices share 4 cores: this measures overhead, not scaling."});
  CHECK(says(epoch_chart(results).caption, "Thick bars"));
  results.runs[5].epoch_s = {4.9, 6, 7};  // one as fast as those on 2 devices
  CHECK_FALSE(says(epoch_chart(results).caption, "takes longer"));
  for (Run& run : results.runs)
    if (!run.epoch_s.empty()) run.epoch_s.resize(1);
  CHECK_FALSE(says(epoch_chart(results).caption, "Thick bars"));
  results.runs.erase(results.runs.begin(), results.runs.begin() + 2);
  CHECK_FALSE(says(epoch_chart(results).caption, "dashed"));
}

TEST_CASE("captions name what is not in a picture only where something is missing") {
  Results results = duet_test::made_up();
  CHECK(says(parts_chart(results).caption, "hidden behind backward is not in it"));
  CHECK(says(parts_chart(results).caption, "no trace of one clock"));
  CHECK_FALSE(says(parts_chart(results).caption, "Waiting is"));
  for (Run& run : results.runs) {
    run.communication_us = run.step_us.communication;
    run.step_waiting_us.emplace();
  }
  CHECK_FALSE(says(parts_chart(results).caption, "hidden"));
  CHECK_FALSE(says(parts_chart(results).caption, "no trace of one clock"));
  CHECK(says(parts_chart(results).caption, "Waiting is"));
  CHECK(loss_chart(results).caption ==
        "Runs that learn the same bits lie on one line. averaging trains every rank on its own part of the data.");
  for (Run& run : results.runs) run.parameters_sha256 = run.mode;
  results.runs.erase(results.runs.begin() + 1, results.runs.begin() + 3);
  CHECK(loss_chart(results).caption.empty());
}

TEST_CASE("the page explains the words that occur in it, and no others") {
  Results results = duet_test::made_up();
  CHECK(says(meaning(results, "averaging"), "one parameter after the other"));
  CHECK(says(meaning(results, "single, all cores"), "a thread for each core"));
  CHECK_FALSE(meaning(results, "update").empty());
  CHECK(meaning(results, "scatter").empty());  // of 0 us in all runs
  CHECK(meaning(results, "waiting").empty());
  results.runs[3].step_us.scatter = results.runs[3].step_us.replicate = results.runs[3].step_us.gather = 10;
  results.runs[3].step_waiting_us.emplace();
  for (const char* const word : {"scatter", "replicate", "gather", "waiting"})
    CHECK_FALSE(meaning(results, word).empty());
  results.runs.erase(results.runs.begin() + 2);
  CHECK(meaning(results, "averaging").empty());
  const std::string page = to_html(results, "", 1);
  CHECK(says(page, "<dt>scatter</dt><dd>dp gives each device its part of the batch</dd>"));
}

TEST_CASE("the page holds the tutorials' lines of averaging, and memory per process") {
  Results results = duet_test::made_up();
  CHECK_FALSE(says(to_html(results, "", 1), "Total execution time"));
  results.runs[2].execution_s = 12.34;
  results.runs[3].execution_s = 10;  // dp: the tutorial has none
  const std::string page = to_html(results, "", 1);
  CHECK(says(page, "<pre>Total execution time for 2 CPU devices: 12.3 seconds</pre>"));
  CHECK(says(page, "<td>2\u00a0x\u00a0120\u00a0MB</td>"));
  CHECK(says(page, "8.00\u00a0s (7.92..8.08)"));
}
