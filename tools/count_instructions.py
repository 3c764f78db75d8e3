#!/usr/bin/env python3
"""Counts the instructions of a training step under Valgrind: a regression shows on any machine, however busy.

    tools/count_instructions.py BUILD             counts, and compares with tests/benchmarks/instructions.json
    tools/count_instructions.py BUILD --record    counts, and writes that file and the table next to it

Runs BUILD/cli/duet train on drawn digits with DUET_ISA=avx2 (Valgrind lacks AVX-512) twice, with different numbers of
epochs, so that the difference is steps only. Ends with 1 if the whole step or one of its larger functions takes more
than --percent (default 2) above the record. Counts hold for one compiler: another one is said, and not judged.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RECORD = os.path.join(ROOT, "tests/benchmarks/instructions.json")
TABLE = os.path.join(ROOT, "tests/benchmarks/README.md")
BATCH, STEPS, EPOCHS = 128, 2, (1, 3)
TRAIN = ["train", "--quiet", "--mode", "single", "--data", "synthetic", "--seed", "1234", "--batch", str(BATCH),
         "--train-images", str(BATCH * STEPS), "--test-images", "1"]
WHOLE = "whole step"
JUDGED = 0.01  # share of the step from which a function is judged alone
LINE = re.compile(r"^\s*([\d,]+) \([^)]*\)\s+\S*?:(.+?)(?: \[[^\]]*\])?$")


def count(duet, epochs, folder):
    """Instructions of a run by function, and in all."""
    out = os.path.join(folder, f"callgrind.{epochs}")
    environment = dict(os.environ, DUET_ISA="avx2", OMP_NUM_THREADS="1")
    subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", duet, *TRAIN, "--epochs", str(epochs)],
                   env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    text = subprocess.run(["callgrind_annotate", "--threshold=100", "--auto=no", "--show-percs=yes", out], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    counts = {}
    for line in text.splitlines():
        found = LINE.match(line)
        if found:
            name = re.sub(r" __vector\(\d+\)", " vector", found[2].replace("(anonymous namespace)::", ""))
            name = re.sub(r"^(void|bool) ", "", name.split("(")[0])
            counts[name] = counts.get(name, 0) + int(found[1].replace(",", ""))
        elif "PROGRAM TOTALS" in line:
            counts[WHOLE] = int(line.split()[0].replace(",", ""))
    return counts


def per_step(duet):
    with tempfile.TemporaryDirectory() as folder:
        few, many = (count(duet, epochs, folder) for epochs in EPOCHS)
    steps = STEPS * (EPOCHS[1] - EPOCHS[0])
    counts = {name: (many[name] - few.get(name, 0)) // steps for name in many}
    return {name: n for name, n in sorted(counts.items(), key=lambda item: -item[1]) if n >= JUDGED * counts[WHOLE]}


def built_with(duet):
    """The compiler and the build type, as the first line of duet info says them."""
    text = subprocess.run([duet, "info"], check=True, text=True, stdout=subprocess.PIPE).stdout
    return re.match(r"duet \S+ \((.*)\)", text)[1]


def record(counts, build):
    with open(RECORD, "w", encoding="utf-8") as file:
        json.dump({"build": build, "isa": "avx2", "batch": BATCH, "instructions_per_step": counts}, file, indent=1)
        file.write("\n")
    lines = ["# Instructions of a training step", "",
             f"SimpleCNN, batch {BATCH}, one thread, `DUET_ISA=avx2`, built by {build}; under Valgrind's callgrind, which",
             "lacks AVX-512. Written by `tools/count_instructions.py BUILD --record`; without `--record` it compares.", "",
             "| function | instructions per step | per image | share |", "|---|---:|---:|---:|"]
    for name, n in counts.items():
        lines.append(f"| {name if name == WHOLE else '`' + name + '`'} | {n:,} | {n // BATCH:,} | {100 * n / counts[WHOLE]:.1f} % |")
    lines += ["", "Functions below 1 % are part of the whole only. The difference of two runs, of "
              f"{EPOCHS[0] * STEPS} and {EPOCHS[1] * STEPS} steps; it holds", "the test of one image and the shuffle of each epoch, too."]
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def compare(counts, build, percent):
    with open(RECORD, encoding="utf-8") as file:
        before = json.load(file)
    if before["build"] != build:
        print(f"recorded with {before['build']}, this is {build}: not judged")
    grown = 0
    for name, old in before["instructions_per_step"].items():
        now = counts.get(name, 0)
        change = 100 * (now - old) / old
        too_much = change > percent and before["build"] == build
        grown += too_much
        print(f"{now:>15,} {old:>15,} {change:+7.2f} %{'  GREW' if too_much else ''}  {name}")
    for name in counts:
        if name not in before["instructions_per_step"]:
            print(f"{counts[name]:>15,} {'-':>15}            {name}")
    return 1 if grown else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--percent", type=float, default=2.0)
    options = parser.parse_args()
    duet = os.path.join(options.build, "cli", "duet")
    counts, build = per_step(duet), built_with(duet)
    if options.record:
        os.makedirs(os.path.dirname(RECORD), exist_ok=True)
        record(counts, build)
        print(f"{counts[WHOLE]:,} instructions per step, built by {build}")
        return 0
    return compare(counts, build, options.percent)


if __name__ == "__main__":
    sys.exit(main())
