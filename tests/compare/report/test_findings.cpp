// Sentences about comparisons that never ran, with effects and noise that were put into their rounds.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "compare/overhead.h"
#include "compare/report/evidence.h"
#include "compare/report/report.h"
#include "lib/random.h"
#include "tests/compare/made_up.h"
#include "tests/support/catch2.h"

using namespace duet::cli;

namespace {

/// Twelve rounds of these parts, each of which varies by `noise` (a share of the step) on its own.
void plant(Run& run, const StepParts& parts, double noise, std::uint64_t seed) {
  duet::Philox draws(seed);
  run.rounds_us.clear();
  run.rounds_step_us.clear();
  run.step_us = parts;
  run.samples_per_s = static_cast<double>(run.batch) / parts.sum() * 1e6;
  for (int round = 0; round < 12; ++round) {
    StepParts now = parts;
    for (const PartName& part : kStepParts)
      if (now.*part.member > 0) now.*part.member += noise * parts.sum() * (static_cast<double>(draws.uniform()) - 0.5);
    run.rounds_step_us.push_back(now);
    run.rounds_us.push_back(now.sum());
  }
}

/// single takes 10,000 us; dp and ddp on two devices what they are given.
Results planted(const StepParts& dp, const StepParts& ddp, double noise, std::uint64_t seed = 1) {
  Results results = duet_test::made_up();
  results.runs = {results.runs[0], results.runs[3], results.runs[4]};
  plant(results.runs[0], {.input = 100, .forward = 4000, .loss = 0, .backward = 5700, .update = 200}, noise, 3 * seed);
  plant(results.runs[1], dp, noise, 3 * seed + 1);
  plant(results.runs[2], ddp, noise, 3 * seed + 2);
  compare_with_single(results);
  return results;
}

const StepParts kHalf = {.input = 50, .forward = 2000, .backward = 2850, .update = 100};

StepParts half_and(double StepParts::*part, double us) {
  StepParts parts = kHalf;
  parts.*part += us;
  return parts;
}

}  // namespace

TEST_CASE("findings of a comparison") {
  CHECK(
      duet_test::findings_text(duet_test::made_up()) ==
      R"(At batch 128 on 2 devices, where 2x would be ideal, the speed-up over single is dp 1.90x ±0.02 and ddp 1.60x ±0.01.
dp on 2 devices takes 427 us (359..471) a step more than single's step divided by 2; of it 100 us ±0: 0 kB of gradients are moved and added, 75 us ±1: scatter, replicate, gather, input and update.
ddp on 2 devices takes 2,133 us (2,069..2,187) a step more than single's step divided by 2; of it 1,500 us ±8: waiting for all-reduces.
A step of ddp on 2 devices communicates for 3,000 us, waiting for other ranks included. 50 % of it is hidden behind backward.
4 devices share 2 cores: this measures overhead, not scaling.
dp and ddp ended with the same bits as single on 2 devices (parameters sha256 aaaaaaaaaaaaaaaa...).
ddp on 4 devices does not end with single's bits; step 17 is the first to differ.
)");
  CHECK(answer(duet_test::made_up()) ==
        "2 devices train 1.90 times as fast as one (1.90..1.92), with dp; with ddp 1.60 times (1.59..1.61). One device "
        "on all 2 cores reaches 1.82 times (1.82..1.82).");
}

TEST_CASE("statistics of each device are said, and those of each rank that averages") {
  Results results = duet_test::made_up();
  CHECK_THAT(duet_test::findings_text(results), !duet_test::ContainsSubstring("atch norm"));
  results.runs[2].per_device_statistics = true;
  CHECK_THAT(duet_test::findings_text(results),
             duet_test::ContainsSubstring("averaging sums up gradients alone: batch norm's running") &&
                 !duet_test::ContainsSubstring("--sync-bn"));
  results.runs[3].per_device_statistics = true;
  CHECK_THAT(duet_test::findings_text(results),
             duet_test::ContainsSubstring("averaging sums up gradients alone") &&
                 duet_test::ContainsSubstring("with --sync-bn they have the same bits"));
}

TEST_CASE("uses of a parameter that devices added up explain other bits") {
  Results results = duet_test::made_up();
  const auto several =
      duet_test::ContainsSubstring("A parameter is used more than once in a step: each device adds up");
  CHECK_THAT(duet_test::findings_text(results),
             !several && duet_test::ContainsSubstring("does not end with single's bits"));
  for (Run& run : results.runs) run.added_uses = true;
  CHECK_THAT(duet_test::findings_text(results),
             several && !duet_test::ContainsSubstring("does not end with single's bits"));
  CHECK(same_result(results, results.runs[5]) == "several uses added up");
  CHECK(same_result(results, results.runs[4]) == "yes");
}

TEST_CASE("the loss that was put in is named, with its size and interval") {
  const auto said = [](const StepParts& dp, const StepParts& ddp) {
    return duet_test::findings_text(planted(dp, ddp, 0.002));
  };
  const auto contains = [](const std::string& part) { return duet_test::ContainsSubstring(part); };
  for (const auto part : {&StepParts::scatter, &StepParts::replicate, &StepParts::gather}) {
    const std::string text = said(half_and(part, 1000), kHalf);
    CHECK_THAT(text, contains("dp on 2 devices takes 1,0") || contains("dp on 2 devices takes 9"));
    CHECK_THAT(text, contains(": scatter, replicate, gather, input and update."));
    CHECK_THAT(text, !contains("ddp on 2 devices takes"));
  }
  CHECK_THAT(said(kHalf, half_and(&StepParts::communication, 1000)), contains(": waiting for all-reduces."));
  CHECK_THAT(said(kHalf, half_and(&StepParts::update, 1000)), contains(": input, update and the wrapper."));
  StepParts two = half_and(&StepParts::communication, 1000);
  two.forward += 600;
  CHECK_THAT(said(kHalf, two), contains("divided by 2; of it 1,00") && contains(": waiting for all-reduces."));
  // Compute that is slower is put down to devices side by side where copies are as slow, else to nothing.
  const StepParts slow = half_and(&StepParts::backward, 1000);
  CHECK_THAT(said(kHalf, slow), contains("what causes the lost time of ddp on 2 devices"));
  Results results = planted(kHalf, slow, 0.002);
  Run copies = results.runs[2];
  copies.mode = "copies";
  results.runs.push_back(copies);
  CHECK_THAT(duet_test::findings_text(results), contains(": devices slow each other down, without exchange too"));
}

TEST_CASE("no sentence names a cause that the rounds don't show, the screen none that findings withhold") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO(seed);
    StepParts slow = half_and(&StepParts::communication, 10);
    slow.forward += 4000;
    const Results unclear = planted(kHalf, slow, 0.04, seed);
    const std::string text = duet_test::findings_text(unclear), screen = first_screen(unclear, {});
    CHECK_THAT(text, !duet_test::ContainsSubstring("waiting for all-reduces") &&
                         duet_test::ContainsSubstring("what causes the lost time of ddp on 2 devices"));
    CHECK_THAT(screen, !duet_test::ContainsSubstring("waiting for all-reduces"));
    const Results clear = planted(kHalf, half_and(&StepParts::communication, 3000), 0.04, seed);
    CHECK_THAT(duet_test::findings_text(clear), duet_test::ContainsSubstring(": waiting for all-reduces."));
  }
}

TEST_CASE("nothing is concluded or predicted if other programs disturbed most rounds") {
  Results results = planted(kHalf, half_and(&StepParts::communication, 1000), 0.002);
  results.model = duet_test::made_up_model();
  const auto disturb = [&](std::size_t rounds) {
    for (Run& run : results.runs) {
      run.rounds_other_programs.assign(12, 0.01);
      for (std::size_t i = 0; i < rounds; ++i) run.rounds_other_programs[i] = i == 0 ? 0.57 : 0.95;
    }
    compare_with_single(results);
  };
  disturb(6);
  CHECK(answer(results).starts_with("2 devices train 2.0"));
  for (const std::size_t rounds : {7U, 12U}) {
    disturb(rounds);
    CHECK(answer(results) ==
          "Other programs used 57 to 95 % of the cores in most rounds: nothing is concluded. Run the comparison again "
          "when they have finished.");
    const std::string screen = first_screen(results, {});
    for (const char* const said : {"[-", "-]", "Why not", "redicted"})
      CHECK_THAT(screen, !duet_test::ContainsSubstring(said));
    CHECK_THAT(screen, duet_test::ContainsSubstring("dp 2"));
    CHECK(duet_test::findings_text(results).starts_with(answer(results)));
    CHECK(runs_with_overhead(results).empty());
    CHECK_THAT(table(results, {}), !duet_test::ContainsSubstring("±"));
  }
}

TEST_CASE("a row that other programs disturbed is left out, and only a comparison without others concludes nothing") {
  Results results = planted(kHalf, kHalf, 0.002);
  for (Run& run : results.runs) run.rounds_other_programs.assign(12, 0.01);
  results.runs[1].rounds_other_programs.assign(12, 0.4);
  compare_with_single(results);
  CHECK_FALSE(load_of(results));
  CHECK_FALSE(results.runs[1].speedup_low);
  CHECK_THAT(answer(results), duet_test::ContainsSubstring("), with ddp."));
  CHECK_THAT(first_screen(results, {}), duet_test::ContainsSubstring("the cores: most timings of dp 2."));
  results.runs[2].rounds_other_programs.assign(12, 0.4);
  compare_with_single(results);
  CHECK(answer(results).starts_with("Other programs used 40 % of the cores in most rounds: "));
  for (Run& run : results.runs) run.rounds_other_programs.assign(12, run.mode == "single" ? 0.4 : 0.01);
  compare_with_single(results);
  CHECK(load_of(results));
}

TEST_CASE("a row's speed-up is the ratio of the steps that stand beside it, also of disturbed rounds") {
  Results results = planted(kHalf, half_and(&StepParts::communication, 1000), 0.02);
  for (std::size_t i = 0; i < 12; ++i)  // the machine slows down, and another program disturbs ddp once
    for (Run& run : results.runs) run.rounds_us[i] *= 1 + 0.1 * static_cast<double>(i);
  results.runs[2].rounds_other_programs = {0, 0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  results.runs[2].rounds_us[1] *= 3;
  compare_with_single(results);
  for (const Run& run : results.runs) {
    CHECK(step_us(results.runs[0]) / step_us(run) == duet_test::Approx(*run.speedup));
    CHECK(results.runs[0].step_us.sum() / run.step_us.sum() == duet_test::Approx(*run.speedup));
    if (run.speedup_low)
      CHECK_FALSE(Interval{*run.speedup, *run.speedup_low, *run.speedup_high}.excludes(*run.speedup));
  }
}

TEST_CASE("a mode is called as fast as another only if their ratio's interval is within 5 %") {
  const StepParts slow = half_and(&StepParts::communication, 1000);
  CHECK_THAT(answer(planted(slow, slow, 0.3)),
             !duet_test::ContainsSubstring(" as with ") &&
                 duet_test::ContainsSubstring(", which could not be told apart from "));
}

TEST_CASE("a speed-up whose interval holds 1 is withheld, and is no headline") {
  StepParts same = kHalf;
  for (const PartName& part : kStepParts) same.*part.member *= 2;
  const Results results = planted(same, same, 0.05);
  const std::string text = duet_test::findings_text(results);
  CHECK(text.find("the speed-up over single") == std::string::npos);
  CHECK_THAT(text, duet_test::ContainsSubstring("the speed-up of dp on 2 devices (") &&
                       duet_test::ContainsSubstring("the speed-up of ddp on 2 devices ("));
  CHECK_THAT(answer(results), duet_test::ContainsSubstring("No gain over one device was measured: "));
}

TEST_CASE("the headline says what to use, and by how much") {
  const auto begins = [](const Results& results, const std::string& text) {
    INFO(answer(results));
    CHECK(answer(results).starts_with(text));
  };
  const StepParts slow = half_and(&StepParts::communication, 1000), slower = half_and(&StepParts::gather, 9000);
  begins(planted(slow, kHalf, 0.002), "2 devices train 2.00 times as fast as one (");
  CHECK_THAT(answer(planted(slow, kHalf, 0.002)), duet_test::ContainsSubstring("), with ddp; with dp 1.67 times (1.6"));
  CHECK_THAT(answer(planted(slow, slow, 0.02)), duet_test::ContainsSubstring("), with dp as with ddp.") ||
                                                    duet_test::ContainsSubstring("), with ddp as with dp."));
  begins(planted(slower, slower, 0.002), "One device is faster than 2: 2 devices are at these times its speed: ");
  Results with_threads = planted(slow, slow, 0.002);
  with_threads.runs.push_back(with_threads.runs[0]);
  Run& threads = with_threads.runs.back();
  threads.threads_per_device = 2;
  plant(threads, kHalf, 0.002, 99);
  compare_with_single(with_threads);
  begins(with_threads, "2 devices train 1.67 times as fast as one (");
  CHECK_THAT(answer(with_threads), duet_test::ContainsSubstring(". One device on all 2 cores reaches 2.0"));
  plant(threads, slow, 0.02, 99);
  compare_with_single(with_threads);
  CHECK_THAT(answer(with_threads), duet_test::ContainsSubstring(". One device on all 2 cores is as fast."));
}

TEST_CASE("where copies gain, and the rounds of dp and ddp are too uneven, nothing is concluded") {
  StepParts same = kHalf;
  for (const PartName& part : kStepParts) same.*part.member *= 1.85;
  Results results = planted(same, same, 0.4);
  Run copies = results.runs[1];
  copies.mode = "copies";
  copies.parameters_sha256.clear();
  plant(copies, kHalf, 0.002, 5);
  results.runs.push_back(copies);
  compare_with_single(results);
  REQUIRE(*results.runs[1].speedup_low < 1);
  REQUIRE(*results.runs[2].speedup_low < 1);
  CHECK_THAT(answer(results), duet_test::ContainsSubstring("Nothing can be concluded, as the rounds differ too much") &&
                                  duet_test::ContainsSubstring("copies that exchange nothing are at (1.") &&
                                  !duet_test::ContainsSubstring("No gain"));
}

TEST_CASE("rounds in which other programs had cores are left out and counted, unless few others remain") {
  Results results = planted(kHalf, kHalf, 0.002);
  Run& dp = results.runs[1];
  dp.rounds_other_programs.assign(12, 0.01);
  for (const std::size_t round : {3U, 7U}) {
    dp.rounds_us[round] = 10000;  // single's: another program had one of the two cores
    dp.rounds_other_programs[round] = 0.5;
  }
  compare_with_single(results);
  CHECK(dp.disturbed_rounds() == 2);
  CHECK(speed_ratios(dp, results.runs[0]).size() == 10);
  CHECK(*dp.speedup_low > 1.9);
  const std::string shown = first_screen(results, {});
  CHECK_THAT(shown, duet_test::ContainsSubstring("Left out, as other programs used the cores: 2 of 36 timings."));
  dp.rounds_other_programs.assign(12, 0.5);
  dp.rounds_other_programs[0] = dp.rounds_other_programs[1] = 0.01;
  compare_with_single(results);
  CHECK(dp.disturbed_rounds() == 0);
  CHECK(speed_ratios(dp, results.runs[0]).size() == 12);
}

TEST_CASE("no gain is the headline only where no mode and no number of devices has one") {
  StepParts some = kHalf, same = kHalf;
  for (const PartName& part : kStepParts) some.*part.member *= 1.5, same.*part.member *= 2;
  Results results = planted(same, some, 0.002);
  Run &dp = results.runs[1], &ddp = results.runs[2];
  const auto begins = [&](const std::string& text) {
    compare_with_single(results);
    INFO(answer(results));
    CHECK(answer(results).starts_with(text));
  };
  SECTION("of another mode, though the median of this one is better") {
    for (std::size_t i = 0; i < dp.rounds_us.size(); ++i) dp.rounds_us[i] = i < 7 ? 6000 : 20000;
    compare_with_single(results);
    REQUIRE(*dp.speedup > *ddp.speedup);
    begins(
        "2 devices train 1.33 times as fast as one (1.33..1.34), with ddp; with dp no gain was measured (0.50..1.67).");
    dp.rounds_us.assign(12, 20000);
    begins("2 devices train 1.33 times as fast as one (1.33..1.34), with ddp; with dp 0.50 times (0.50..0.50).");
    ddp.rounds_us = results.runs[0].rounds_us;
    begins(
        "No gain over one device was measured: 2 devices are at these times its speed: ddp (1.00..1.00) and dp "
        "(0.50..");
  }
  SECTION("on fewer devices") {
    results.machine.cores = 4;
    results.runs.push_back(ddp);
    results.runs.back().devices = 4;
    plant(results.runs.back(), same, 0.05, 5);
    begins("2 devices train 1.33 times as fast as one (");
  }
}

TEST_CASE("a speed-up above what devices or cores can give is marked, and is neither sentence nor headline") {
  StepParts quarter = kHalf;
  for (const PartName& part : kStepParts) quarter.*part.member /= 2;
  Results results = planted(quarter, kHalf, 0.002);
  CHECK(above_limit(results, results.runs[1]) == "above the cores");
  results.machine.cores = 8;
  CHECK(above_limit(results, results.runs[1]) == "above ideal");
  CHECK(above_limit(results, results.runs[2]).empty());
  CHECK(table_row(results, results.runs[1])[5].ends_with(" !"));
  const std::string text = duet_test::findings_text(results);
  CHECK_THAT(text, duet_test::ContainsSubstring("dp on 2 devices reads 4.0") &&
                       duet_test::ContainsSubstring("above ideal: marked with !"));
  CHECK_THAT(text, duet_test::ContainsSubstring("the speed-up over single is ddp 2.0"));
  CHECK(answer(results).starts_with("2 devices train 2.0"));
  CHECK_THAT(answer(results), duet_test::ContainsSubstring("), with ddp."));
}

TEST_CASE("backends are named and compared") {
  Results results = planted(kHalf, kHalf, 0.002);
  results.runs[2].backend = "shm";
  Run gloo = results.runs[2];
  gloo.backend = "gloo";
  plant(gloo, half_and(&StepParts::communication, 1000), 0.002, 77);
  results.runs.push_back(gloo);
  compare_with_single(results);
  const std::string text = duet_test::findings_text(results);
  CHECK_THAT(text, duet_test::ContainsSubstring("ddp over shm 2.00x ±0.0") &&
                       duet_test::ContainsSubstring("ddp over gloo 1.67x ±0.0") &&
                       duet_test::ContainsSubstring("ddp over shm on 2 devices is 1.20x ±0.0"));
  CHECK_THAT(text, duet_test::ContainsSubstring(" as fast as ddp over gloo.\n"));
}

TEST_CASE("what other programs had is said above 2 %") {
  Results results = planted(kHalf, kHalf, 0.002);
  CHECK(duet_test::findings_text(results).find("Other programs") == std::string::npos);
  results.runs[0].other_programs_share = 0.031;
  results.runs[2].other_programs_share = 0.42;
  CHECK_THAT(duet_test::findings_text(results),
             duet_test::ContainsSubstring("Other programs used 3 to 42 % of the cores in 2 of 3 rows."));
}

TEST_CASE("the ceiling is said with the speed-ups, and has a column") {
  Results results = planted(kHalf, half_and(&StepParts::communication, 1000), 0.002);
  Run copies = results.runs[1];
  copies.mode = "copies";
  copies.parameters_sha256.clear();
  results.runs.push_back(copies);
  compare_with_single(results);
  CHECK_THAT(duet_test::findings_text(results),
             duet_test::ContainsSubstring("and 2 copies that exchange nothing reach 2.0"));
  CHECK(table_columns(results)[7] == "of copies");
  CHECK(table_row(results, results.runs[2])[7] == "83 %");
  CHECK(table_row(results, results.runs[3])[7] == "-");
  CHECK(table_row(results, results.runs[3]).back() == "-");
}

TEST_CASE("without rounds nothing is concluded from speeds, without single nothing is compared") {
  Results results = duet_test::made_up();
  const auto says = [&](const std::string& text) {
    return duet_test::findings_text(results).find(text) != std::string::npos;
  };
  SECTION("no rounds") {
    for (Run& run : results.runs) {
      run.rounds_us.clear();
      run.rounds_step_us.clear();
    }
    compare_with_single(results);
    CHECK(results.runs[3].speedup);
    CHECK_FALSE(results.runs[3].speedup_low);
    CHECK(says("Nothing is concluded from these speeds"));
    CHECK(says("the same bits"));
    CHECK(answer(results).starts_with("Nothing is concluded"));
  }
  SECTION("too few rounds") {
    for (Run& run : results.runs) {
      run.rounds_us.resize(2);
      run.rounds_step_us.resize(2);
    }
    compare_with_single(results);
    CHECK(answer(results).starts_with("Nothing is concluded"));
  }
  SECTION("without single") {
    results.runs.erase(results.runs.begin(), results.runs.begin() + 2);
    compare_with_single(results);
    CHECK_FALSE(says("same bits"));
  }
  CHECK_FALSE(says("the speed-up over single"));
  CHECK_FALSE(says("more than single's step"));
}
