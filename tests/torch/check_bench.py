#!/usr/bin/env python3
"""Runs `duet bench step --vs-torch` under this Python, with few and small steps: check_bench.py DUET [WHY]

WHY: why there is no package duet_torch, and so no row of it. The last line reads "N passed, N failed, N skipped".
"""
import json
import subprocess
import sys

from checks import report

RANKS = 2
# As many ranks, or one with as many threads.
PEERS = {"torch": 1, "torch, tuned": 1, "torch ddp": RANKS, "torch ddp, tuned": RANKS}
OVER_DUET = {"torch ddp over duet": RANKS}
LIBTORCH = {"LibTorch + duet": RANKS, "LibTorch averaged": RANKS}


def is_whole(row):
    """A row of several ranks has times, parts that are within them, and a communication."""
    parts = row["parts_us"]
    good = len(row["round_medians_us"]) == 1 and row["startup_s"] > 0 and parts["forward"] > 0 and parts["backward"] > 0
    if row["devices"] == 1:
        return good and parts["exposed"] == 0 and row["synchronisation_us"] == []
    return good and 0 <= row["moving_us"] <= parts["exposed"] <= row["communication_us"] and len(row["synchronisation_us"]) == 1


def main(duet, no_package=""):
    options = ["--devices", str(RANKS), "--modes", "ddp", "--batch", "16", "--steps", "5", "--repeats", "1"]
    command = [duet, "bench", "step", "--data", "synthetic", "--vs-torch", sys.executable, "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if run.returncode != 0:
        return report({f"exit code {run.returncode}\n{run.stdout}{run.stderr}": False})
    found = json.loads(run.stdout)
    rows = {row["name"]: row for row in found["rows"]}
    notes = [note.startswith("no row torch ddp over duet: ") for note in found["notes"]]
    checks = {f"notes: {found['notes']}": notes == [True] * bool(no_package), f"LibTorch: {found['libtorch']}": found["libtorch"] is not None}
    for name, ranks in (PEERS | LIBTORCH | ({} if no_package else OVER_DUET)).items():
        row = rows.get(name)
        good = row is not None and row["devices"] == ranks and is_whole(row)
        compared = name not in PEERS
        checks[f"{name}: {row}"] = good and compared == ("torch ddp" in row["times_as_fast_as"])
    return report(checks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
