#!/usr/bin/env python3
"""Runs `duet compare --vs-torch` under this Python, for a short time: check_peers.py DUET [WHY]

WHY: why there is no package duet_torch, and so no row of it. The last line reads "N passed, N failed, N skipped".
"""
import json
import subprocess
import sys
import tempfile

from checks import report

RANKS = 2
# As many ranks, or one with as many threads.
PEERS = {"torch": 1, "torch tuned": 1, "torch ddp": RANKS, "torch ddp tuned": RANKS}
OVER_DUET = {"torch ddp over duet": RANKS}
LIBTORCH = {"LibTorch + duet": RANKS, "LibTorch averaged": RANKS}


def is_whole(run):
    """A row of several ranks has times, parts that are within them, and a communication."""
    parts, rounds = run["step_us"], len(run["rounds_us"])
    good = rounds > 0 and run["startup_s"] > 0 and parts["forward"] > 0 and parts["backward"] > 0
    good = good and run["efficiency"] is None and run["speedup"] > 0 and run["parameters_sha256"] == ""
    if run["devices"] == 1:
        return good and parts["communication"] == 0 and run["synchronisation_us"] == []
    waiting = run["step_waiting_us"]["communication"]
    return good and 0 <= waiting <= parts["communication"] and run["communication_us"] > 0 and len(run["synchronisation_us"]) == rounds


def main(duet, no_package=""):
    with tempfile.TemporaryDirectory() as folder:
        options = ["--devices", str(RANKS), "--modes", "single,ddp", "--batch", "16", "--train-images", "160", "--test-images", "20"]
        command = [duet, "compare", "--data", "synthetic", "--time-budget", "10", "--out", folder, *options]
        run = subprocess.run([*command, "--vs-torch", sys.executable], capture_output=True, text=True, timeout=280, check=False)
        if run.returncode != 0:
            return report({f"exit code {run.returncode}\n{run.stdout}{run.stderr}": False})
        with open(folder + "/results.json", encoding="utf-8") as file:
            found = json.load(file)
    runs = {one["mode"]: one for one in found["runs"] if one["devices"] * one["threads_per_device"] == RANKS}
    notes = [note.split(":")[0].split(" is ")[0] for note in found["torch_notes"]]
    wanted = ["torch", "LibTorch"] + ["no row torch ddp over duet"] * bool(no_package)
    said = any(text in run.stdout for text in ("PyTorch's best on as many cores, ", "nothing is concluded"))  # a busy machine
    checks = {f"notes: {found['torch_notes']}": notes == wanted, f"{run.stdout}": said}
    for name, ranks in (PEERS | LIBTORCH | ({} if no_package else OVER_DUET)).items():
        one = runs.get(name)
        checks[f"{name}: {one}"] = one is not None and one["devices"] == ranks and is_whole(one)
    return report(checks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
