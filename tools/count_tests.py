#!/usr/bin/env python3
"""Sums the "N passed, N failed, N skipped" lines of all test programs in a Meson test log.

    count_tests.py LOG [TIMES JOB]     appends "JOB<tab>suite: test<tab>seconds" for every test to the file TIMES

A program without such a line (a script, or one that crashed) counts as one test. Prints what failed and why, how long the
suites took (in seconds of their tests, several of which run at once; the longest first), the skips
with their reasons on one line, then "N passed, N failed"; exits with 1 when something failed, or when nothing ran at all.
"""
import collections
import json
import re
import sys

COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
SKIP = re.compile(r"^skipped: (.*)$", re.M)
# What says why: Catch2's account of a failed case, a sanitizer's report, a Python traceback.
REASON = re.compile(r"FAILED:|^(==\d+==)?(ERROR|WARNING): |runtime error:|Traceback|fatal error|due to ", re.M)
LINES = 40


def why(text):
    """Up to LINES lines around each reason in a test's output; its last lines where none is found."""
    lines = text.strip().splitlines()
    near = {n for i, line in enumerate(lines) if REASON.search(line) for n in range(max(0, i - 8), min(len(lines), i + 12))}
    chosen = sorted(near)[:LINES] or range(max(0, len(lines) - LINES), len(lines))
    return [f"  | {lines[n]}" for n in chosen]


def write_times(tests, path, job):
    with open(path, "a", encoding="utf-8") as times:
        for test in tests:
            times.write(f"{job}\t{test['name'].split(':', 1)[-1]}\t{test['duration']:.0f}\n")


def main(path, *times):
    passed = failed = 0
    skips = []
    with open(path, encoding="utf-8") as log:
        tests = [json.loads(line) for line in log]
    if times:
        write_times(tests, *times)
    for test in tests:
        text = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
        good = test["result"] in ("OK", "EXPECTEDFAIL", "SKIP")
        reasons = SKIP.findall(text)
        counts = COUNTS.findall(text)
        if counts:
            passed += int(counts[-1][0])
            failed += int(counts[-1][1])
            # A program can also fail after its last test: a leak, a race, a crash on the way out.
            failed += not good and int(counts[-1][1]) == 0
        elif test["result"] == "SKIP":
            reasons = reasons or [test["name"]]
        else:
            passed += good
            failed += not good
        skips += reasons
        if not good:
            print(f"failed: {test['name']} ({test['result']}, {test['duration']:.0f} s)", *why(text), sep="\n")
    times = collections.Counter()
    for test in tests:
        times[test["name"].split(" / ")[0].split(":")[-1].split("+")[0]] += test["duration"]
    print("seconds: " + ", ".join(f"{suite} {seconds:.0f}" for suite, seconds in times.most_common() if seconds >= 1))
    if skips:
        unique = sorted(set(skips))
        print(f"{len(skips)} skipped: " + "; ".join(f"{reason} ({skips.count(reason)})" for reason in unique))
    else:
        print("0 skipped")
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
