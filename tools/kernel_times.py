#!/usr/bin/env python3
"""Prints the kernels of one recorded training step, in order, from a log of Nsight Compute.

    ncu --graph-profiling node --csv --page raw --metrics gpu__time_duration.sum duet train ... >LOG
    kernel_times.py LOG

A step begins with the gather of its images and contains the update; the last complete one is printed, a line of
microseconds and the kernel's name for each node, and their sum.
"""
import csv
import re
import sys

TIME = "gpu__time_duration.sum"
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}
FIRST, UPDATE = "gather", "sgd"


def kernels(path):
    """(name, microseconds) of every kernel in the log, in order."""
    with open(path, encoding="utf-8", errors="replace") as log:
        lines = [line for line in log if line.startswith('"')]
    rows = csv.DictReader(lines)
    units = next(rows, None)
    if not units or TIME not in units:
        raise ValueError("no table of Nsight Compute with " + TIME)
    factor = MICROSECONDS[units[TIME]]
    return [(row["Kernel Name"], float(row[TIME].replace(",", "")) * factor) for row in rows]


def last_step(all_kernels):
    steps, current = [], None
    for name, time in all_kernels:
        if FIRST in name:
            if current:
                steps.append(current)
            current = []
        if current is not None:
            current.append((name, time))
    complete = [step for step in steps if any(UPDATE in name for name, _ in step)]
    if not complete:
        raise ValueError(f"no complete step among {len(all_kernels)} kernels")
    return complete[-1]


def short(name):
    """A kernel's name without its parameters."""
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", name)[:100]


def main(path):
    try:
        step = last_step(kernels(path))
    except (ValueError, KeyError, OSError) as error:
        print(f"kernel_times: {path}: {error}", file=sys.stderr)
        return 1
    for name, time in step:
        print(f"{time:9.2f}  {short(name)}")
    print(f"{sum(time for _, time in step):9.2f}  us in {len(step)} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
