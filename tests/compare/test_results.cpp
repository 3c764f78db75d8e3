#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "compare/results.h"
#include "lib/error.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;
using duet_test::Approx;

TEST_CASE("results.json has the names that other programs read") {
  const std::string text = to_json(duet_test::made_up());
  std::istringstream names(R"(
      duet machine cpu cores isa gpus memory_gb kernel settings network parameters batch epochs lr optimizer
      momentum weight_decay seed precision data train_images graph partial runs mode device devices
      threads_per_device workers backend ok error startup_s epoch_s samples_per_s speedup efficiency
      waiting_share communication_us parameters_sha256 first_differing_step step_us median_step input scatter
      replicate forward gather loss backward communication update train_loss test_accuracy peak_memory_mb
      physical_devices device_memory_mb moved_bytes_per_step per_device_statistics library_sums added_uses
      lost_ranks rounds_us rounds_step_us rank_step_us speedup_low speedup_high ceiling_efficiency cpu_share
      other_programs_share scaling model)");
  for (std::string name; names >> name;) {
    INFO(name);
    CHECK_THAT(text, duet_test::ContainsSubstring("\"" + name + "\":"));
  }
}

TEST_CASE("results.json keeps the order of its names and the form of its values") {
  Results results = duet_test::made_up();
  results.runs[0].rounds_us = results.runs[0].train_loss = {1.0 / 3, std::nan("")};
  results.runs[0].rounds_step_us.clear();
  results.runs[0].lost_ranks = {{.rank = 1, .step = 7, .recovery_s = 0.25}};
  results.runs[0].step_us = {};
  results.model = duet_test::made_up_model();
  const std::string text = to_json(results);
  CHECK_THAT(text, duet_test::ContainsSubstring(R"(
 "settings": {
  "network": "simple_cnn",
  "parameters": 0,
  "batch": 128,
  "scaling": "strong",
  "epochs": 1,
  "lr": 0.01,
  "optimizer": "sgd",
  "momentum": 0.5,
  "weight_decay": null,
  "seed": 1234,
  "precision": "fp32",
  "data": "MNIST",
  "train_images": 60000,
  "blocks": 0
 },
 "partial": false,
)"));
  CHECK(
      to_json(results.runs[0]) ==
      R"({"mode":"single","device":"cpu","devices":1,"physical_devices":1,"precision":"fp32","threads_per_device":1,"ok":true,"error":"","startup_s":0.25,"epoch_s":[7.92,8.0,8.08],"samples_per_s":7500.0,"speedup":1.0,"efficiency":1.0,"waiting_share":0.0,"communication_us":0.0,"parameters_sha256":")" +
          std::string(64, 'a') +
          R"(","first_differing_step":null,"step_us":{"input":0.0,"scatter":0.0,"replicate":0.0,"forward":0.0,"gather":0.0,"loss":0.0,"backward":0.0,"communication":0.0,"update":0.0},"median_step":[],"train_loss":[0.3333333333333333,null],"test_accuracy":[0.9712],"peak_memory_mb":[120.5],"device_memory_mb":[],"moved_bytes_per_step":[],"graph":false,"workers":"process","backend":"","communication_waiting_us":null,"communication_moving_us":null,"waiting_interval_us":[],"moving_interval_us":[],"step_waiting_us":null,"rank_waiting_us":[],"eager_parts":false,"execution_s":0.0,"rounds_us":[0.3333333333333333,null],"rounds_step_us":[],"rounds_waiting_us":[],"rank_step_us":[],"speedup_low":null,"speedup_high":null,"ceiling_efficiency":null,"cpu_share":null,"other_programs_share":0.01,"rounds_other_programs":[],"synchronisation_us":[],"batch":128,"per_device_statistics":false,"library_sums":false,"added_uses":false,"blocks":0,"lost_ranks":[{"rank":1,"step":7,"recovery_s":0.25}]})"
          "\n");
  CHECK_THAT(text,
             duet_test::ContainsSubstring(
                 "\"links\": [\n   {\n    \"backend\": \"shm\",\n    \"ranks\": 2,\n    \"latency_us\": 10.0,\n    "
                 "\"bytes_per_us\": 1000.0,\n    \"averaging\": {\n"));
}

TEST_CASE("fields that older files have not may be missing") {
  std::string text = to_json(duet_test::made_up().runs[0]);
  for (const std::string field : {",\"rounds_other_programs\":[]", ",\"added_uses\":false", ",\"blocks\":0"})
    text.erase(text.find(field), field.size());
  CHECK(run_from_json(text).mode == "single");
}

TEST_CASE("a machine of an older file has neither sockets nor caches") {
  Results results = duet_test::made_up();
  results.machine.sockets = 2;
  results.machine.caches = {"L1d 48K x 4"};
  std::string text = to_json(results);
  CHECK(results_from_json(text).machine.caches == results.machine.caches);
  const std::size_t begin = text.find(",\n  \"sockets\""), end = text.find("\n },", begin);
  REQUIRE(end != std::string::npos);
  text.erase(begin, end - begin);
  CHECK(results_from_json(text).machine.sockets == 0);
}

TEST_CASE("runs go to JSON and come back") {
  Results results = duet_test::made_up();
  results.runs[0].train_loss[0] = std::nan("");
  results.runs[6].error = "bad byte \xff";
  results.runs[3].graph = true;
  results.runs[3].workers = "thread";
  results.runs[3].backend = "shm";
  results.runs[3].batch = 256;
  results.runs[3].median_step = {{"cpu:1", "forward", 0.5, 20.25}};
  std::vector<Run> again;
  for (const Run& run : results.runs) {
    again.push_back(run_from_json(to_json(run)));
    CHECK(to_json(again.back()) == to_json(run));
  }
  CHECK(std::isnan(again[0].train_loss[0]));
  CHECK(again[5].first_differing_step == 17);
  CHECK_FALSE(again[0].first_differing_step);
  CHECK_FALSE(again[0].graph);
  const Run& run = again[3];
  CHECK(run.mode == "dp");
  CHECK(run.graph);
  CHECK(run.workers == "thread");
  CHECK(run.backend == "shm");
  CHECK(run.batch == 256);
  CHECK(run.step_us.sum() == results.runs[3].step_us.sum());
  CHECK(run.rounds_us == results.runs[3].rounds_us);
  REQUIRE(run.rounds_step_us.size() == 9);
  CHECK(run.rounds_step_us[8].sum() == results.runs[3].rounds_step_us[8].sum());
  CHECK(run.speedup_low == results.runs[3].speedup_low);
  CHECK_FALSE(run.cpu_share);
  REQUIRE(run.median_step.size() == 1);
  CHECK(run.median_step[0].lane == "cpu:1");
  CHECK(run.median_step[0].end_us == 20.25);
}

TEST_CASE("results.json is read back as it was written") {
  Results results = duet_test::made_up();
  CHECK(to_json(results_from_json(to_json(results))) == to_json(results));
  CHECK_FALSE(results_from_json(to_json(results)).model);
  results.model = duet_test::made_up_model();
  results.settings.weight_decay = 0.01;
  results.partial = true;
  const Results again = results_from_json(to_json(results));
  CHECK(to_json(again) == to_json(results));
  CHECK(again.model->step.per_sample_us == 10);
  CHECK_FALSE(again.weak);
  results.weak = true;
  CHECK(to_json(results_from_json(to_json(results))) == to_json(results));
}

TEST_CASE("a damaged results.json is refused with the field's name") {
  Results results = duet_test::made_up();
  results.model = duet_test::made_up_model();
  const std::string good = to_json(results);
  for (const std::string field :
       {"machine", "cores", "settings", "batch", "precision", "runs", "mode", "model", "partial"}) {
    INFO(field);
    std::string text = good;
    text.replace(text.find("\"" + field + "\""), field.size() + 2, "\"other\"");
    CHECK_THROWS_WITH(results_from_json(text), duet_test::ContainsSubstring("field '" + field + "' is missing"));
  }
  std::string text = good;
  text.replace(text.find("\"fp32\""), 6, "\"fp8\"");
  CHECK_THROWS_WITH(results_from_json(text), duet_test::ContainsSubstring("'precision' is \"fp8\", expected fp32"));
  text = good;
  text.replace(text.find("\"cores\": 2"), 10, "\"cores\": []");
  CHECK_THROWS_WITH(results_from_json(text), duet_test::ContainsSubstring("field 'cores' is []"));
  text = good;
  text.replace(text.find("\"strong\""), 8, "\"none\"");
  CHECK_THROWS_WITH(results_from_json(text),
                    duet_test::ContainsSubstring("'scaling' is \"none\", expected strong or weak"));
  text = good;
  text.replace(text.rfind("\"batch\": 128"), 12, "\"batch\": 0");
  CHECK_THROWS_WITH(results_from_json(text), duet_test::ContainsSubstring("field 'batch' is 0, expected 1 or more"));
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> lines = {
      {{"\"cores\": 2", "\"cores\": 0"}, "field 'cores' is 0, expected 1 or more"},
      {{"\"cores\": 2", "\"cores\": 2.5"}, "field 'cores' is 2.5, expected a whole number"},
      {{"\"cores\": 2", "\"cores\": true"}, "field 'cores' is true, expected a whole number"},
      {{"\"cores\": 2", "\"cores\": 3000000000"}, "field 'cores' is 3000000000, expected a whole number"},
      {{"\"memory_gb\": 8.5", "\"memory_gb\": false"}, "field 'memory_gb' is false, expected a number"},
      {{"\"partial\": false", "\"partial\": 0"}, "field 'partial' is 0, expected true or false"},
      {{"\"gpus\": []", "\"gpus\": [7]"}, "field 'gpus' holds 7, expected texts"},
      {{"\"model_notes\": []", "\"model_notes\": {}"}, "field 'model_notes' is {}, expected a list"},
      {{"\"batch_sweep\": []", "\"batch_sweep\": null"}, "field 'batch_sweep' is null, expected a list"},
      {{"\"devices\": 2", "\"devices\": -2"}, "field 'devices' is -2, expected 1 or more"},
      {{"\"devices\": 2", "\"devices\": 2000"}, "field 'devices' is 2000, expected at most 1024"},
      {{"\"mode\": \"dp\"", "\"mode\": \"dq\""},
       "field 'mode' is \"dq\", expected single, averaging, dp, ddp or copies"},
      {{"\"mode\": \"dp\"", "\"mode\": \"torchdp\""}, "field 'mode' is \"torchdp\", expected single, averaging"},
      {{"\"device\": \"cpu\"", "\"device\": \"gpu\""}, "field 'device' is \"gpu\", expected cpu or cuda"},
      {{"\"batch\": 128", "\"batch\": 9000000000000000000"}, "field 'batch' is 9000000000000000000, expected at most"},
      {{"\"ranks\": 2", "\"ranks\": 2147483647"}, "model.links[0].ranks is 2.14748e+09, expected 2 to 1024"},
      {{"\"backend\": \"shm\"", "\"backend\": \"\\u001b[2J\""}, "model.links[0].backend is \"\\u001b[2J\", expected"}};
  for (const auto& [edit, expected] : lines) {
    INFO(expected);
    text = good;
    REQUIRE(text.find(edit.first) != std::string::npos);
    text.replace(text.find(edit.first), edit.first.size(), edit.second);
    CHECK_THROWS_WITH(results_from_json(text), duet_test::ContainsSubstring(expected));
  }
  // Walking so many lists in each other would take more than the stack.
  const std::string deep(1 << 20, '[');
  for (const std::string end : {"", "]"}) {
    text = good;
    const std::string ends = end.empty() ? "" : std::string(deep.size(), ']');
    text.replace(text.find("\"gpus\": []"), 10, "\"gpus\": " + deep + ends);
    CHECK_THROWS_WITH(results_from_json(text), duet_test::ContainsSubstring("nesting is more than 32 deep"));
  }
  text = good;
  text.replace(text.find("\"gpus\": []"), 10, "\"gpus\": \"" + std::string(1000, 'x') + "\"");
  CHECK_THROWS_WITH(results_from_json(text), duet_test::ContainsSubstring("xxx..., expected a list"));
  CHECK_THROWS_AS(results_from_json("{"), DataError);
  CHECK_THROWS_AS(results_from_json("[]"), DataError);
}

TEST_CASE("damaged results are refused with the field's name") {
  CHECK_THROWS_AS(run_from_json("{"), DataError);
  const Run run = duet_test::made_up().runs[5];
  const auto damaged = [&](const std::string& part, const std::string& other) {
    std::string text = to_json(run);
    return text.replace(text.find(part), part.size(), other);
  };
  CHECK_THROWS_WITH(run_from_json(damaged("\"mode\"", "\"moda\"")),
                    duet_test::ContainsSubstring("field 'mode' is missing"));
  CHECK_THROWS_WITH(run_from_json(damaged("\"devices\":4", "\"devices\":\"\"")),
                    duet_test::ContainsSubstring("field 'devices' is \"\""));
  CHECK_THROWS_WITH(run_from_json(damaged("\"update\":", "\"other\":")),
                    duet_test::ContainsSubstring("field 'update' is missing"));
  CHECK_THROWS_WITH(run_from_json(damaged("2.25,", "true,")),
                    duet_test::ContainsSubstring("field 'train_loss' holds true"));
}

TEST_CASE("speed-up is against single with as many threads; no efficiency without cores") {
  const Results results = duet_test::made_up();
  CHECK(*results.runs[0].speedup == 1);
  CHECK(*results.runs[3].speedup == Approx(8 / 4.2).epsilon(0.01));
  CHECK(*results.runs[3].efficiency == Approx(4 / 4.2).epsilon(0.01));
  CHECK(*results.runs[1].efficiency == Approx(4 / 4.4).epsilon(0.01));
  CHECK(*results.runs[5].speedup == Approx(8 / 6.0).epsilon(0.01));
  CHECK_FALSE(results.runs[5].efficiency);
  CHECK_FALSE(results.runs[6].speedup);
  Results alone = results;
  alone.runs.erase(alone.runs.begin(), alone.runs.begin() + 2);
  compare_with_single(alone);
  CHECK_FALSE(alone.runs[1].speedup);
  CHECK_FALSE(alone.runs[1].efficiency);
  CHECK(base_of(alone) == nullptr);
  CHECK(base_note(alone).empty());
}

TEST_CASE("without single, speed-ups are over averaging on one device, and that is said") {
  Results results = duet_test::made_up();
  CHECK(base_of(results) == &results.runs[0]);
  CHECK(base_note(results).empty());
  const double of_single = *results.runs[3].speedup;
  // As duet compare --modes averaging,dp has them: single's row is averaging's.
  results.runs[0].mode = "averaging";
  std::erase_if(results.runs, [](const Run& run) { return run.mode == "single"; });
  compare_with_single(results);
  REQUIRE(base_of(results) == &results.runs[0]);
  CHECK(*results.runs[0].speedup == 1);
  const auto dp =
      std::find_if(results.runs.begin(), results.runs.end(), [](const Run& run) { return run.mode == "dp"; });
  CHECK(*dp->speedup == of_single);
  const std::string note = "Speed-ups are over averaging on 1 device, as single was not compared.";
  CHECK(base_note(results) == note);
  CHECK_THAT(first_screen(results, {}),
             duet_test::ContainsSubstring(note) && duet_test::ContainsSubstring("averaging 1"));
  CHECK_THAT(table(results, {}), duet_test::ContainsSubstring(note));
  CHECK_THAT(to_html(results, "", 0),
             duet_test::ContainsSubstring(note) && duet_test::ContainsSubstring("Speed-up over averaging on 1 device"));
}

TEST_CASE("a speed-up is the median over rounds of the ratio in the same round, with its interval") {
  Results results = duet_test::made_up();
  Run &single = results.runs[0], &dp = results.runs[3];
  // A slow minute lies on some rounds of both: each run's own median would give another ratio.
  single.rounds_us = {100, 100, 300, 300, 100, 300, 300, 300, 100};
  dp.rounds_us = {50, 51, 150, 151, 49, 149, 150, 149, 50};
  compare_with_single(results);
  CHECK(*dp.speedup == 2);
  CHECK(dp.speedup_low.value() == Approx(1.987).epsilon(0.001));
  CHECK(dp.speedup_high.value() == Approx(2.0134).epsilon(0.001));
  CHECK_FALSE(single.speedup_low);
  Run copies = dp;
  copies.mode = "copies";
  for (double& us : copies.rounds_us) us *= 0.9;
  results.runs.push_back(copies);
  compare_with_single(results);
  CHECK(results.runs[3].ceiling_efficiency.value() == Approx(0.9));
  CHECK_FALSE(results.runs[0].ceiling_efficiency);
  CHECK_FALSE(results.runs.back().ceiling_efficiency);
  CHECK_FALSE(results.runs[5].ceiling_efficiency);  // on 4 devices, without copies
  results.runs[3].rounds_us.resize(2);
  compare_with_single(results);
  CHECK(results.runs[3].speedup);
  CHECK_FALSE(results.runs[3].speedup_low);
}

TEST_CASE("a speed-up of few rounds that differ much lies above 0, and is printed with both ends") {
  Results results = duet_test::made_up();
  Run& dp = results.runs[3];
  results.runs[0].rounds_us = {100, 100, 100};
  dp.rounds_us = {50, 60, 300};
  compare_with_single(results);
  // The logarithms' mean less and plus 4.303 times their deviation over the root of 3.
  CHECK(dp.speedup_low.value() == Approx(0.08940).epsilon(0.001));
  CHECK(dp.speedup_high.value() == Approx(11.999).epsilon(0.001));
  CHECK(speedup_text(dp) == "1.67x (0.09..12.00)");
  CHECK(table_row(results, dp)[5] == "1.67x (0.09..12.00)");
}

TEST_CASE("a run of which nothing was timed has no speed-up") {
  Results results = duet_test::made_up();
  results.runs[3].epoch_s.clear();
  results.runs[3].samples_per_s = 0;
  compare_with_single(results);
  CHECK_FALSE(results.runs[3].speedup);
  CHECK_FALSE(results.runs[3].efficiency);
  CHECK(results.runs[4].speedup);
}

TEST_CASE("results.csv has a line per run and as many fields in each") {
  const std::string text = to_csv(duet_test::made_up());
  std::size_t lines = 0, commas = 0, expected = 0;
  bool quoted = false;
  for (char c : text) {
    quoted = quoted != (c == '"');
    commas += c == ',' && !quoted;
    if (c != '\n') continue;
    if (++lines == 1) expected = commas;
    CHECK(commas == expected);
    commas = 0;
  }
  CHECK(lines == 8);
  CHECK_THAT(text, duet_test::ContainsSubstring(",batch,per_device_statistics,library_sums,added_uses,blocks\n"));
  CHECK_THAT(text, duet_test::ContainsSubstring("\"replica 3 on cpu:3: out of memory\""));
}
