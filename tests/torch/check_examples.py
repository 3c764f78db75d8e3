#!/usr/bin/env python3
"""Runs the examples of LibTorch: check_examples.py DUET MNIST TRAIN_DDP SOURCES

DUET: the program; MNIST, TRAIN_DDP: the built examples; SOURCES: their folder. The last line reads "N passed, N failed, N
skipped".
"""
import difflib
import os
import re
import subprocess
import sys

from checks import report

WRAPPER_LINES = 13


def losses(*command):
    """The test losses that a command prints."""
    run = subprocess.run([*command, "synthetic", "512"], capture_output=True, text=True, timeout=240, check=False)
    found = [float(loss) for loss in re.findall(r"^epoch \d: test loss ([\d.]+)$", run.stdout, re.M)]
    return found if run.returncode == 0 else f"exit code {run.returncode}\n{run.stdout}{run.stderr}"


def code(folder, name):
    """Without the opening comment."""
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return [line for line in file.read().splitlines() if not line.startswith("//")]


def main(duet, mnist, train_ddp, sources):
    # The seeds are fixed; dropout differs between one rank and two, the mean gradient hardly.
    single, ranks = losses(mnist), losses(duet, "launch", "-n", "2", train_ddp)
    lines = list(difflib.unified_diff(code(sources, "mnist.cpp"), code(sources, "train_ddp.cpp"), lineterm="", n=0))
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("---", "+++")]
    checks = {
        f"a single device: {single}": len(single) == 2 and not isinstance(single, str) and single[1] < single[0] < 2.4,
        f"2 ranks: {ranks}": len(ranks) == 2 and not isinstance(ranks, str) and ranks[1] < ranks[0] < 2.4,
        "more than the wrapper's lines differ:\n" + "\n".join(changed): len(changed) <= WRAPPER_LINES,
    }
    return report(checks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
