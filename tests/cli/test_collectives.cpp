// duet bench of collectives: measurements and reports.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "ddp/group/process_group.h"
#include "tests/ddp/ranks.h"
#include "tests/support/catch2.h"

using namespace duet;
using namespace duet::cli;
using namespace duet_test;

namespace {

std::vector<CollectiveRow> rows_of(const CollectiveOptions& options, const std::string& algorithm) {
  std::vector<CollectiveRow> rows;
  run_ranks(Over::shm, options.devices, [&](ProcessGroup& group) {
    measure_collective(options, algorithm, group, {}, [&](const CollectiveRow& row) { rows.push_back(row); });
  });
  return rows;
}

/// Does nothing where a collective should be.
class Idle final : public ddp::ProcessGroup {
 public:
  Idle() : ProcessGroup(0, 2) {}
  const char* backend() const override { return "idle"; }

 protected:
  ddp::Work start(const ddp::Call&) override { return {}; }
  std::unique_ptr<ProcessGroup> connect_subset(const ddp::Subset&) const override { return nullptr; }
};

}  // namespace

TEST_CASE("bus bandwidth is nccl-tests'") {
  CHECK(bus_factor("all_reduce", 4) == 1.5);
  CHECK(bus_factor("broadcast", 4) == 1);
  for (const char* name : {"all_gather", "reduce_scatter", "all_to_all"}) CHECK(bus_factor(name, 4) == 0.75);
}

TEST_CASE("every collective and algorithm is measured and right") {
  CollectiveOptions options{.min_bytes = 8, .max_bytes = 8192, .factor = 32, .iterations = 2, .warm_up = 1};
  options.devices = GENERATE(1, 2, 3);
  for (const char* name : {"all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"}) {
    options.collective = name;
    std::vector<std::string> algorithms = {"library"};
    if (options.collective == "all_reduce")
      algorithms.insert(algorithms.end(), {"naive_ring", "chunked_ring", "recursive_doubling"});
    for (const std::string& algorithm : algorithms) {
      const std::vector<CollectiveRow> rows = rows_of(options, algorithm);
      const bool pieces = options.collective != "all_reduce" && options.collective != "broadcast";
      INFO(name << ", " << algorithm << ", " << options.devices << " ranks");
      REQUIRE(rows.size() == (pieces && options.devices == 3 ? 2 : 3));  // 8 bytes are not enough for three
      CHECK(rows.back().bytes == (pieces && options.devices == 3 ? 8184 : 8192));
      for (const CollectiveRow& row : rows) {
        CHECK(row.wrong == 0);
        CHECK(row.count * 4 == row.bytes);
        CHECK(row.time_us > 0);
        REQUIRE((row.min_us && row.max_us));
        CHECK(*row.min_us > 0);
        CHECK(*row.min_us <= *row.max_us);
        // The mean includes the time between the two calls.
        CHECK(row.time_us >= (*row.min_us + *row.max_us) / 2 * (1 - 1e-9));
        CHECK(row.algorithm_gb_s == duet_test::Approx(static_cast<double>(row.bytes) / row.time_us / 1e3));
        CHECK(row.bus_gb_s == duet_test::Approx(row.algorithm_gb_s * bus_factor(name, options.devices)));
      }
    }
  }
}

TEST_CASE("every collective of every type is right") {
  CollectiveOptions options{.min_bytes = 4096, .max_bytes = 4096, .iterations = 1, .warm_up = 0};
  options.devices = GENERATE(1, 2, 3, 8);
  for (const DType dtype : {DType::f64, DType::i32, DType::i64, DType::u8, DType::f16, DType::bf16}) {
    options.dtype = dtype;
    for (const char* name : {"all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"}) {
      options.collective = name;
      const std::vector<CollectiveRow> rows = rows_of(options, "library");
      INFO(name << " of " << dtype << " among " << options.devices);
      REQUIRE(rows.size() == 1);
      CHECK(rows[0].wrong == 0);
      CHECK(rows[0].bytes == rows[0].count * static_cast<std::int64_t>(size_of(dtype)));
    }
  }
}

TEST_CASE("wrong elements are counted") {
  Idle group;
  std::vector<CollectiveRow> rows;
  const DType dtype = GENERATE(DType::f32, DType::f64, DType::i32, DType::i64, DType::u8, DType::f16, DType::bf16);
  measure_collective({.collective = "all_reduce", .dtype = dtype, .min_bytes = 64, .max_bytes = 64}, "library", group,
                     {}, [&](const CollectiveRow& row) { rows.push_back(row); });
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].wrong == rows[0].count);
  CHECK(rows[0].count == 64 / static_cast<std::int64_t>(size_of(dtype)));
}

TEST_CASE("rows go through JSON") {
  const CollectiveRow row{.backend = "shm",
                          .algorithm = "naive_ring",
                          .ranks = 2,
                          .bytes = 64,
                          .count = 16,
                          .time_us = 1.5,
                          .min_us = 1.25,
                          .max_us = 2.5,
                          .algorithm_gb_s = 0.043,
                          .bus_gb_s = 0.043,
                          .wrong = 3};
  const CollectiveRow read = parse_row(row_json(row));
  CHECK(row_json(read) == row_json(row));
  CHECK(read.wrong == 3);
  CHECK(read.min_us == 1.25);
  CHECK(read.max_us == 2.5);
  CHECK_FALSE(parse_row(row_json({})).max_us);
  CHECK_FALSE(parse_row(row_json({})).wrong);
  CHECK_THROWS_WITH(parse_row("{}"), ContainsSubstring("not a row of duet bench: '{}'"));
  CollectiveOptions options;
  options.collective = "all_reduce";
  options.dtype = DType::bf16;
  CHECK_THAT(rows_json(options, {row}),
             ContainsSubstring("\"collective\": \"all_reduce\"") && ContainsSubstring("\"size_bytes\": 64") &&
                 ContainsSubstring("\"type\": \"bf16\"") && ContainsSubstring("\"device\": \"cpu\""));
}
