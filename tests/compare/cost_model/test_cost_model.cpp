// The cost model: its terms, its JSON and the fits.
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "compare/cost_model/cost_model.h"
#include "compare/cost_model/fit.h"
#include "lib/error.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"
#include "train/measure/json_fields.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;
using duet_test::Approx;

namespace {

std::string with(const std::string& json, const std::string& from, const std::string& to) {
  std::string text = json;
  REQUIRE(text.find(from) != std::string::npos);
  return text.replace(text.find(from), from.size(), to);
}

std::string to_json(const CostModel& model) { return JsonWriter::json_of(model).dump(); }

CostModel model_from_json(const std::string& text) {
  const Json json = parsed_json(text);
  CostModel model;
  JsonReader io(json);
  fields(io, model);
  return model;
}

}  // namespace

TEST_CASE("a step costs a fixed part and a part per sample, but for what was measured") {
  const StepCost line{.fixed_us = 100, .per_sample_us = 10};
  CHECK(line.us(50) == 600);
  const StepCost measured{.fixed_us = 100, .per_sample_us = 10, .measured = {{8, 200}, {16, 260}, {64, 740}}};
  CHECK(measured.us(8) == 200);
  CHECK(measured.us(16) == 260);
  CHECK(measured.us(12) == 230);
  CHECK(measured.us(40) == 500);
  CHECK(measured.us(4) == 140);  // below them the line
  const StepCost above{.fixed_us = 100, .per_sample_us = 10, .measured = {{64, 800}}};
  CHECK(above.us(100) == 1160);  // what the line rises
  const CostModel model{.step = line, .input_per_sample_us = 1, .update_us = 20};
  CHECK(model.compute_us(64) == 740 - 64 - 20);
  CHECK(CostModel{.update_us = 20}.compute_us(1) == 0);
}

TEST_CASE("the slow-down is interpolated, and beyond the most devices measured it is theirs") {
  const CostModel model{.slowdown = {{.devices = 2, .factor = 1.1}, {.devices = 4, .factor = 1.3}}};
  CHECK(model.slowdown_of(1) == 1);
  CHECK(model.slowdown_of(2) == 1.1);
  CHECK(model.slowdown_of(3) == Approx(1.2));
  CHECK(model.slowdown_of(8) == 1.3);
  CHECK(CostModel{}.slowdown_of(8) == 1);
}

TEST_CASE("a cost model goes to JSON and comes back") {
  CostModel model = duet_test::made_up_model();
  model.step.measured = {{32, 420}, {64, 741}};
  model.dp->overhead.fixed_us = 35;
  const std::string text = to_json(model);
  CHECK(model_from_json(text).step.us(64) == 741);
  for (const char* name : {"fixed_us", "per_sample_us", "communication_us", "break_even_batch"})
    CHECK_THAT(text, ContainsSubstring("\"" + std::string(name) + "\":"));
  CHECK(to_json(model_from_json(text)) == text);
  CHECK(model_from_json(text).break_even_batch == model.break_even_batch);
  model.break_even_batch.reset();
  model.dp.reset();
  model.links[0].cost.bytes_per_us = std::numeric_limits<double>::infinity();
  const CostModel again = model_from_json(to_json(model));
  CHECK(to_json(again) == to_json(model));
  CHECK_FALSE(again.break_even_batch);
  CHECK_FALSE(again.dp);
  CHECK(again.step.us(100) == model.step.us(100));
  CHECK(again.links[0].cost.us(1e9) == again.links[0].cost.latency_us);
}

TEST_CASE("a damaged cost model is refused with field and value") {
  const std::string good = to_json(duet_test::made_up_model());
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> lines = {
      {{"\"fixed_us\"", "\"fixed\""}, "results: field 'model.fixed_us' is missing"},
      {{"\"fixed_us\":100.0", "\"fixed_us\":-1"}, "results: model.fixed_us is -1, expected 0 or more"},
      {{"\"fixed_us\":100.0", "\"fixed_us\":1e300"}, "model.fixed_us is 1e+300"},
      {{"\"fixed_us\":100.0", "\"fixed_us\":null"}, "model.fixed_us is null, expected a number"},
      {{"\"backward_share\":0.5", "\"backward_share\":1.5"}, "model.backward_share is 1.5, expected 0 to 1"},
      {{"\"devices\":2", "\"devices\":1"}, "model.slowdown[0].devices is 1, expected 2"},
      {{"\"devices\":2", "\"devices\":4"}, "model.slowdown[1].devices is 4, expected 5"},
      {{"\"devices\":2", "\"devices\":2.5"}, "model.slowdown[0].devices is 2.5, expected a whole number"},
      {{"\"ready_share\":0.5", "\"ready_share\":\"half\""}, "model.buckets[0].ready_share is \"half\""},
      {{"\"bytes_per_us\":1000.0", "\"bytes_per_us\":0"}, "model.links[0].bytes_per_us is 0, expected"},
      {{"\"ranks\":2", "\"ranks\":1"}, "model.links[0].ranks is 1, expected 2"},
      {{"\"backend\":\"shm\"", "\"backend\":7"}, "model.links[0].backend is 7, expected a text"},
      {{"\"dp\":{", "\"dp\":7,\"other\":{"}, "model.dp is 7, expected an object"},
      {{"\"parameter_bytes\":[", "\"parameter_bytes\":7,\"other\":["}, "model.parameter_bytes is 7, expected a list"}};
  for (const auto& [edit, expected] : lines) {
    INFO(expected);
    CHECK_THROWS_WITH(model_from_json(with(good, edit.first, edit.second)), ContainsSubstring(expected));
    CHECK_THROWS_AS(model_from_json(with(good, edit.first, edit.second)), DataError);
  }
  CHECK_THROWS_AS(model_from_json("{"), DataError);
  CHECK_THROWS_AS(model_from_json("[]"), DataError);
}

TEST_CASE("step costs are fitted with relative errors") {
  const auto exact = fit_step_cost({{16, 260}, {32, 420}, {64, 740}});
  REQUIRE(exact.value);
  CHECK(exact.value->fixed_us == Approx(100));
  CHECK(exact.value->per_sample_us == Approx(10));
  CHECK(exact.value->worst_error_share < 1e-9);
  CHECK(exact.note.empty());
  // numpy.linalg.lstsq of [1/y, x/y] to ones.
  const auto noisy = fit_step_cost({{16, 300}, {32, 400}, {64, 800}, {128, 1300}});
  CHECK(noisy.value->fixed_us == Approx(140.2998637));
  CHECK(noisy.value->per_sample_us == Approx(9.24011813));
  CHECK(noisy.value->worst_error_share == Approx(0.0899591));
}

TEST_CASE("coefficients below 0 are clamped, and the note says so") {
  const auto fixed = fit_step_cost({{10, 10}, {20, 30}, {40, 70}});
  REQUIRE(fixed.value);
  CHECK(fixed.value->fixed_us == 0);
  CHECK(fixed.value->per_sample_us > 1);
  CHECK_THAT(fixed.note, ContainsSubstring("fixed_us came out as -") && ContainsSubstring("clamped to 0"));
  const auto falling = fit_transfer({{1000, 30}, {2000, 20}, {4000, 10}});
  REQUIRE(falling.value);
  CHECK(std::isinf(falling.value->bytes_per_us));
  CHECK(falling.value->latency_us > 10);
  CHECK(falling.value->us(1e9) == falling.value->latency_us);
  CHECK_THAT(falling.note, ContainsSubstring("us per byte came out as -") && ContainsSubstring("clamped to 0"));
}

TEST_CASE("a fit refuses too few points and nonsense, with the reason") {
  CHECK_FALSE(fit_step_cost({{16, 260}, {16, 261}, {32, 420}}).value);
  CHECK(fit_step_cost({{16, 260}, {16, 261}, {32, 420}}).note == "times at 2 different batches, expected 3 or more");
  CHECK(fit_step_cost({{16, 0}, {32, 420}, {64, 740}}).note ==
        "a time of 0 us at 16 batches, expected positive numbers");
  CHECK_FALSE(fit_step_cost({{16, std::nan("")}, {32, 420}, {64, 740}}).value);
  CHECK(fit_transfer({{1000, 10}}).note == "times at 1 different sizes, expected 2 or more");
  const auto line = fit_transfer({{1000, 12}, {100000, 210}});
  REQUIRE(line.value);
  CHECK(line.value->latency_us == Approx(10));
  CHECK(line.value->bytes_per_us == Approx(500));
}

TEST_CASE("an overhead is a fixed part and a part per row, none of them negative") {
  const auto both = fit_overhead({{32, 42}, {64, 74}});
  CHECK(both.fixed_us == Approx(10));
  CHECK(both.per_sample_us == Approx(1));
  CHECK(both.us(128) == Approx(138));
  const auto shrinking = fit_overhead({{32, 40}, {64, 20}});
  CHECK(shrinking.fixed_us == Approx(30));
  CHECK(shrinking.per_sample_us == 0);
  const auto of_rows = fit_overhead({{32, 10}, {64, 50}});
  CHECK(of_rows.fixed_us == 0);
  CHECK(of_rows.per_sample_us == Approx(60.0 / 96));
  CHECK(fit_overhead({{32, 40}}).us(1000) == 40);
  CHECK(fit_overhead({{32, -40}, {64, -80}}).us(128) == 0);
  CHECK(fit_overhead({}).us(128) == 0);
}

TEST_CASE("the spread of steps does not count a few that were interrupted") {
  // Quartiles 97.5 and 102.5 around 100.
  const std::vector<double> steps = {90, 95, 97.5, 97.5, 100, 100, 102.5, 102.5, 105, 1e6};
  CHECK(fit_spread(steps) == Approx(5 / 1.349 / 100));
  CHECK(fit_spread(std::vector<double>(8, 100)) == 0);
  CHECK(fit_spread({100, 200}) == 0);
  CHECK(fit_spread({1, 2, 3, 4, 5, 6, 7, -8}) == 0);
}

TEST_CASE("buckets are ready at the median share of backward") {
  const auto buckets = fit_buckets({1000, 500}, {{100, {40, 100}}, {200, {100, 210}}, {100, {60, 99}}});
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].bytes == 1000);
  CHECK(buckets[0].ready_share == Approx(0.5));
  CHECK(buckets[1].ready_share == 1);
  CHECK(fit_buckets({1}, {{100, {120}}}).at(0).ready_share == 1);  // after backward's end
  CHECK(fit_buckets({1000, 500}, {{100, {40}}}).empty());
  CHECK(fit_buckets({}, {}).empty());
}
