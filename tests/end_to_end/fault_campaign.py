#!/usr/bin/env python3
"""Strikes ranks of `duet launch` with SIGKILL and SIGSTOP at named points of a training, and counts the errors.

    fault_campaign.py PROGRAM [--strikes N] [--seed S]
                                 PROGRAM is the program duet; see lib/base/fault_point.h

Without --strikes: every named point. Every injection is run twice. Without restarts the job must end with exit code 1, name rank and cause, and do so within
2 s of the strike (of the limit for stopped ranks). With a restart it must end with the bits of an undisturbed run. After
each run no process of it may be left.

With --strikes N: see random_strikes.py. The last line has the counts; the exit code is 0 if nothing went wrong.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import random_strikes

POINTS = ("init", "forward", "backward", "all_reduce", "update", "rename", "end")
# Which passing of the point is struck; forward: the first step, the others: about the ninth.
TIMES = {"init": 1, "forward": 1, "rename": 2, "end": 1}
SIGNALS = {9: "was killed by signal 9 (SIGKILL)", 19: "was stopped by a signal for more than 500 ms"}
HANG_S = 60
END_S = 2.0
TRAINING = ("--mode ddp --data synthetic --train-images 333 --test-images 200 --batch 64 --epochs 3").split()


def processes_with(text):
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                count += text.encode() in file.read() and int(pid) != os.getpid()
        except OSError:
            pass
    return count


def launch(program, folder, ranks, restarts, fault):
    """Exit code (None: a hang), output of stderr, hash of the parameters, and seconds from the strike to the end, and
    whether there was one."""
    os.makedirs(folder)
    result = os.path.join(folder, "result")
    command = [program, "launch", "-n", str(ranks), "--max-restarts", str(restarts), "--stop-limit", "0.5", "--",
               program, "train", *TRAINING, "--result", result, "--checkpoint", os.path.join(folder, "kept")]
    child = subprocess.Popen(command, env={**os.environ, "DUET_FAULT": fault}, text=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    struck, lines, hangs = None, [], []
    timer = threading.Timer(HANG_S, lambda: (hangs.append(fault), child.kill()))
    timer.start()
    for line in child.stderr:
        lines.append(line)
        if " is struck at " in line:
            struck = time.monotonic()
    child.wait()
    ended = time.monotonic()
    timer.cancel()
    digest = ""
    if os.path.exists(result):
        with open(result, encoding="utf-8") as file:
            digest = json.load(file).get("parameters_sha256", "")
    return None if hangs else child.returncode, "".join(lines), digest, ended - (struck or ended), struck is not None


def main(program):
    count = {"injections": 0, "hangs": 0, "orphans": 0, "wrong results": 0, "wrong reports": 0, "late ends": 0}
    slowest = {9: 0.0, 19: 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in (2, 3, 4):
            expected = launch(program, f"{scratch}/whole{ranks}", ranks, 0, "")[2]
            assert expected, "the undisturbed run failed"
            for point in POINTS:
                for signal, words in SIGNALS.items():
                    rank = 0 if point == "rename" else (POINTS.index(point) + ranks) % ranks
                    fault = f"{point}:{rank}:{TIMES.get(point, 9)}:{signal}"
                    for restarts in (0, 1):
                        folder = f"{scratch}/{ranks}-{point}-{signal}-{restarts}"
                        code, text, digest, seconds, struck = launch(program, folder, ranks, restarts, fault)
                        count["injections"] += struck
                        count["hangs"] += code is None
                        count["orphans"] += processes_with(folder)
                        good = code == 1 - restarts and f"rank {rank} {words}" in text and struck
                        count["wrong reports"] += not good
                        if restarts:
                            count["wrong results"] += digest != expected
                        else:
                            slowest[signal] = max(slowest[signal], seconds)
                            count["late ends"] += seconds > END_S + (0.5 if signal == 19 else 0)
                        if not good:
                            print(f"{ranks} ranks, {fault}, {restarts} restarts: exit code {code}\n{text}")
    print(f"per phase: {count['injections'] // len(POINTS)} of {', '.join(POINTS)}; 2, 3 and 4 ranks")
    print(f"slowest end after SIGKILL {slowest[9]:.2f} s, after SIGSTOP with a limit of 0.5 s {slowest[19]:.2f} s")
    print(", ".join(f"{name} {number}" for name, number in count.items()))
    return 0 if sum(count.values()) == count["injections"] == len(POINTS) * 3 * 2 * 2 else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--strikes", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.strikes:
        sys.exit(random_strikes.main(options.program, options.strikes, options.seed))
    sys.exit(main(options.program))
