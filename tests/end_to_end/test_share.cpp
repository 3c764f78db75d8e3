// duet compare --share and duet show: two runs of one machine side by side, and files that cannot be shown.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/results.h"
#include "tests/compare/made_up.h"
#include "tests/end_to_end/program.h"
#include "tests/support/catch2.h"
#include "train/system/files.h"

using namespace duet::cli;
using duet_test::ContainsSubstring;
using duet_test::with;

namespace {

duet_test::Ran compared(const TemporaryFolder& folder, const std::string& share, const std::string& batch) {
  const duet_test::Arguments compare = {"compare", "--modes", "single,dp", "--devices", "1,2", "--time-budget", "1"};
  return duet_test::duet(
      with(with(compare, duet_test::kSmallLinear),
           {"--batch", batch, "--out", folder.path() + "/out", "--share", folder.path() + "/" + share}));
}

}  // namespace

TEST_CASE("two comparisons are shared and shown side by side") {
  const TemporaryFolder folder;
  const std::string a = folder.path() + "/a", b = folder.path() + "/b";
  for (const char* const share : {"a", "b"}) {
    const auto ran = compared(folder, share, "64");
    INFO(ran.out << ran.err);
    REQUIRE(ran.status == 0);
    CHECK_THAT(ran.out, ContainsSubstring("to send: " + folder.path() + "/" + share));
  }
  CHECK(duet_test::files_in(a) == std::vector<std::string>{"command.txt", "index.html", "info.json", "results.json"});
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  for (const std::string& name : duet_test::files_in(a)) {
    INFO(name);
    CHECK_THAT(read_file(a + "/" + name), !ContainsSubstring(folder.path()) && !ContainsSubstring(host.data()));
  }
  CHECK(read_file(a + "/command.txt") ==
        "duet compare --modes single,dp --devices 1,2 --time-budget 1 --data synthetic --train-images 333 "
        "--test-images 20 "
        "--batch 64 --model linear --batch 64 --out out --share a\n");

  const auto both = duet_test::duet({"show", a, b + "/results.json"});
  INFO(both.out << both.err);
  REQUIRE(both.status == 0);
  for (const char* const part : {"  A: duet ", "  B: duet ", "\n  single ", "\n  dp 2 ", "batch 64", "B/A"})
    CHECK_THAT(both.out, ContainsSubstring(part));
  CHECK_THAT(both.out, !ContainsSubstring("Not comparable") && !ContainsSubstring("\x1b"));
  const auto json = duet_test::duet({"show", a, b, "--json"});
  CHECK(nlohmann::json::parse(json.out).at("rows").size() >= 3);
  CHECK(json.err == both.out);
  const auto one = duet_test::duet({"show", a});
  CHECK_THAT(one.out, ContainsSubstring("mode ") && ContainsSubstring(" dp 2 ") &&
                          ContainsSubstring("report " + a + "/index.html"));

  const auto again = compared(folder, "a", "64");
  CHECK(again.status == 1);
  CHECK(again.err == "duet: --share " + a + ": holds command.txt, expected a new or an empty folder\n");
}

TEST_CASE("what is no result of a comparison is refused with the field and its value") {
  const TemporaryFolder folder;
  const std::string good = folder.path() + "/good.json", bad = folder.path() + "/bad.json";
  const std::string text = to_json(duet_test::made_up());
  write_output(good, text);
  const auto refused = [&](const std::string& damaged, const std::string& expected) {
    write_output(bad, damaged);
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"show", bad}, {"show", good, bad}, {"show", bad, good, "--json"}}) {
      const auto ran = duet_test::duet(arguments);
      INFO(ran.out << ran.err);
      CHECK(ran.status == 1);
      CHECK(ran.out.empty());
      CHECK_THAT(ran.err, ContainsSubstring("duet: " + bad + ": " + expected));
      CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
    }
  };
  const auto with = [&](const std::string& part, const std::string& other) {
    std::string damaged = text;
    REQUIRE(damaged.find(part) != std::string::npos);
    return damaged.replace(damaged.find(part), part.size(), other);
  };
  refused("", "not JSON, expected the results.json of duet compare");
  refused(text.substr(0, text.size() / 2), "not JSON");
  refused("[]", "results: field 'duet' is missing");
  refused(with("\"settings\"", "\"setting\""), "results: field 'settings' is missing");
  refused(with("\"cores\": 2", "\"cores\": \"two\""), "results: field 'cores' is \"two\", expected a whole number");
  refused(with("\"runs\": [", "\"runs\": 7, \"more\": ["), "results: field 'runs' is 7, expected a list");
  refused(with("\"speedup\": 1.0", "\"speedup\": -1.0"), "results: field 'speedup' is -1, expected 0 or more");
  refused(with("\"precision\": \"fp32\"", "\"precision\": \"fp8\""), "results: field 'precision' is \"fp8\"");
  CHECK(duet_test::duet({"show", folder.path()}).err ==
        "duet: cannot read " + folder.path() + "/results.json: No such file or directory (errno 2)\n");
  CHECK(duet_test::duet({"show"}).status == 2);
  // What is shown of a file has no control characters.
  write_output(bad, with("Example <CPU>", "\\u001b[2JCPU"));
  const auto shown = duet_test::duet({"show", bad, good});
  CHECK(shown.status == 0);
  CHECK_THAT(shown.out, ContainsSubstring("\\x1b[2JCPU") && !ContainsSubstring("\x1b"));
}
