// duet predict, from the results of a comparison that never ran.
#include <string>
#include <vector>

#include "compare/results.h"
#include "tests/compare/made_up.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "train/system/files.h"

using namespace duet::cli;
using duet_test::ContainsSubstring;

TEST_CASE("predict prints measured and computed rows, and draws them") {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/results.json", page = folder.path() + "/a.html";
  duet::cli::Results results = duet_test::made_up();
  duet::cli::write_output(file, to_json(results));
  const auto without = duet_test::duet({"predict", file});
  CHECK(without.status == 1);
  CHECK_THAT(without.err, ContainsSubstring(file + ": results: model is null; duet compare with a time budget"));
  CHECK_THAT(duet_test::duet({"predict", "--links", file}).err, ContainsSubstring(file + ": results: model is null"));
  duet::cli::write_output(file, "no JSON");
  CHECK(duet_test::duet({"predict", file}).err ==
        "duet: " + file + ": not JSON, expected the results.json of duet compare\n");
  CHECK_THAT(duet_test::duet({"predict", file + ".no"}).err, ContainsSubstring("cannot read " + file + ".no: No such"));
  results.model = duet_test::made_up_model();
  duet::cli::write_output(file, to_json(results));
  const auto refuted = duet_test::duet({"predict", file, "--devices", "1..8"});
  CHECK_THAT(refuted.out, ContainsSubstring("\nwarning: nothing is predicted: the model's step of ") &&
                              ContainsSubstring("measured (model ") && !ContainsSubstring("computed\n"));
  results.model = duet_test::fitting_model();
  duet::cli::write_output(file, to_json(results));
  const auto ran =
      duet_test::duet({"predict", file, "--devices", "1..8", "--hosts", "1,16", "--link", "10gbe", "--out", page});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out,
             ContainsSubstring("shm, measured among 2 ranks within a host; between hosts Ethernet, 10 Gbit/s"));
  CHECK(ran.out.starts_with("step: measured on Example <CPU> (1 thread)\n"));
  CHECK_THAT(ran.out, ContainsSubstring("measured (model "));
  CHECK(duet_test::duet({"predict", folder.path()}).out == duet_test::duet({"predict", file}).out);
  CHECK_THAT(duet_test::duet({"predict", file, "--link", "nvlink4"}).err,
             ContainsSubstring("--link is nvlink4, which joins GPUs, but the comparison ran on CPU devices: name a"));
  CHECK_THAT(ran.out, ContainsSubstring("ddp            128     16    128"));
  CHECK_THAT(ran.out, ContainsSubstring("computed\n"));
  CHECK_THAT(read_file(page), ContainsSubstring("duet predict") && ContainsSubstring("<td>computed</td>"));
  const auto json =
      duet_test::duet({"predict", file, "--json", "--gbit", "1", "--latency-us", "50", "--algorithm", "tree"});
  CHECK(json.out.starts_with("{"));
  CHECK_THAT(json.err, ContainsSubstring("link: a link of 1.00 Gbit/s, 50 us a message, tree"));
  CHECK_THAT(duet_test::duet({"predict", file, "--batch", "4"}).out,
             ContainsSubstring("A batch of 4 has no sample for each of more devices"));
  results.model->dp.reset();
  results.model_notes = {"copies on 4 devices, which share 2 cores, are left out"};
  duet::cli::write_output(file, to_json(results));
  CHECK_THAT(duet_test::duet({"predict", file}).out,
             ContainsSubstring("No rows of dp: the model lacks") &&
                 ContainsSubstring("\nOf the model: copies on 4 devices, which share 2 cores, are left out.\n"));
  const auto links = duet_test::duet({"predict", "--links", file});
  CHECK_THAT(links.out, ContainsSubstring("nvlink4") && ContainsSubstring("IEEE 802.3ae") &&
                            ContainsSubstring("all-reduces measured among 2 ranks"));
}
