#!/usr/bin/env python3
"""Fails the calls on files that a training with checkpoints makes, one in each run, and looks at what is then there.

    campaign.py PROGRAM LIBRARY [--all] [--only WORD]     LIBRARY is the build of failing_calls.cpp

A run without faults says which calls there are. Then one call fails in each run, by an errno that its manual page lists,
or transfers half of its bytes; or from it on the disk is full, or gone. After each, see judge.py:

- the program has ended within the deadline, by itself, and none of its processes is left;
- every file under the name of a checkpoint is whole, with the bits of its step, and the newest that was finished is there;
- with exit code 0 all that was asked for is there, with the right bits; else the output names the file and the error;
- no temporary file is left, or the next training removes it and goes on to the right bits.

Without --all, one call of each kind fails for each fault, in two of the scenarios. The last line has the counts; the exit code is 0 if nothing
went wrong.
"""
import argparse
import collections
import concurrent.futures
import errno
import os
import shutil
import subprocess
import sys
import tempfile

from judge import Judge, kind_of
from scenarios import scenarios

DEADLINE_S = 120  # for a training of a tenth of a second, on a machine of any load

# Call -> what may become of it.
READ, WRITE = ("EIO", "EINTR", "short", "end"), ("ENOSPC", "EDQUOT", "EIO", "EINTR", "short", "full", "gone")
FAULTS = {
    "open": ("EACCES", "EMFILE", "EINTR", "EIO", "ENOENT"),
    "create": ("EACCES", "ENOSPC", "EROFS", "EINTR", "ENOENT", "full", "gone"),
    "mkostemp": ("EACCES", "ENOSPC", "EROFS"), "mkdtemp": ("EACCES", "ENOSPC"),
    "mkdir": ("EACCES", "ENOSPC", "EROFS"), "opendir": ("EACCES", "EMFILE"),
    "fdopendir": ("ENOMEM",), "readdir": ("EIO", "ENOENT"), "closedir": ("EIO",), "read": READ, "pread": READ,
    "readv": ("EIO",), "write": WRITE, "pwrite": WRITE, "writev": ("ENOSPC", "EIO"),
    "fsync": ("EIO", "ENOSPC", "EINTR", "gone"), "fdatasync": ("EIO", "ENOSPC", "EINTR"),
    "close": ("EIO", "ENOSPC", "EINTR"), "fclose": ("EIO", "ENOSPC"), "ftruncate": ("EIO", "EINTR"),
    "fallocate": ("ENOSPC", "EINTR"), "rename": ("EACCES", "EIO", "ENOSPC", "EROFS", "gone"),
    "link": ("EACCES", "ENOSPC"), "unlink": ("EACCES", "EIO", "EROFS", "gone"), "unlinkat": ("EACCES", "EIO"),
    "remove": ("EACCES", "EIO", "EROFS"), "rmdir": ("EACCES",), "flock": ("ENOLCK", "EINTR", "EIO"),
    "fcntl": ("EMFILE",), "stat": ("EACCES", "EIO"), "lstat": ("EACCES", "EIO"), "fstat": ("EIO",),
    "fstatat": ("EIO",), "statvfs": ("EIO", "EINTR"), "access": ("EACCES",)}

Call = collections.namedtuple("Call", "role name number fault path target")


class Run:
    """One run of a scenario in a folder of its own."""

    def __init__(self, arguments, folder, scenario, plan=""):
        self.folder = folder
        if not os.path.isdir(folder):
            os.makedirs(folder + "/tmp")
            scenario.prepare(folder)
        self.before = set(os.listdir(folder + "/kept")) if os.path.isdir(folder + "/kept") else set()
        log, said = (f"{os.path.dirname(folder)}/{what} of {os.path.basename(folder)}" for what in ("calls", "output"))
        environment = {**os.environ, "TMPDIR": folder + "/tmp", "XDG_CACHE_HOME": folder + "/cache"}
        if plan is not None:  # the sanitizer wants to be the first library, and need not be
            options = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
            environment |= {"LD_PRELOAD": arguments.library, "DUET_FAIL_UNDER": folder, "DUET_FAIL_LOG": log,
                            "DUET_FAIL_PLAN": plan, "ASAN_OPTIONS": options}
        command = [arguments.program, *scenario.command(arguments.program, folder)]
        with open(said, "wb+") as output:
            try:
                self.status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                             env=environment, timeout=DEADLINE_S, check=False).returncode
            except subprocess.TimeoutExpired:
                self.status = None
            output.seek(0)
            self.output = output.read().decode(errors="replace")
        os.remove(said)
        self.calls = []
        if os.path.exists(log):
            with open(log, encoding="utf-8") as lines:
                self.calls = [Call(*line.rstrip("\n").split("\t")) for line in lines]
            os.remove(log)


def cases_of(scenario, calls, everything):
    """(plan, call) for each failure; without `everything`, for one call of each kind."""
    seen = collections.defaultdict(list)
    for call in calls:
        for fault in FAULTS.get(call.name, ("EIO",)):
            number = getattr(errno, fault, fault)
            plan = f"{call.role}:{call.name}:{call.number}:{number}"
            seen[call.role, call.name, kind_of(call.path, scenario.outputs), fault].append((plan, call))
    if everything:
        return [case for cases in seen.values() for case in cases]
    some = [cases for (role, *_), cases in seen.items() if role in scenario.sample]
    return [cases[at % len(cases)] for at, cases in enumerate(some)]


def fail_each(arguments, scenario, scratch):
    """Counts of what became of the failures of a scenario, and texts of those that ended badly."""
    whole = Run(arguments, f"{scratch}/{scenario.name}", scenario)
    assert whole.status == 0, f"{scenario.name}: the undisturbed run failed: {whole.output}"
    judge = Judge(scenario, whole)
    cases = cases_of(scenario, whole.calls, arguments.all)

    def one(at):
        plan, call = cases[at]
        run = Run(arguments, f"{scratch}/{scenario.name}-{at}", scenario, plan)
        verdict = judge(run, plan)
        if not verdict.bad and (verdict.left or at % 8 == 0) and scenario.next:
            after = Run(arguments, run.folder, scenario.next, None)
            verdict = judge.next(verdict, after)
        shutil.rmtree(run.folder, ignore_errors=True)
        text = "; ".join(verdict.bad)
        return verdict.end, f"{scenario.name}, {plan} ({call.name} {call.path}): {text}\n{run.output}" if text else ""

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ends = list(pool.map(one, range(len(cases))))
    counts = collections.Counter(end for end, _ in ends)
    print(f"{scenario.name}: {len(whole.calls)} calls, {len(cases)} failures: " +
          ", ".join(f"{count} {end}" for end, count in sorted(counts.items())), flush=True)
    return counts, [f"{scenario.name}: {text}" for text in judge.bad] + [text for _, text in ends if text]


def main(arguments):
    total, bad = collections.Counter(), []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = os.path.realpath(scratch)
        for scenario in scenarios(arguments.program, scratch):
            if arguments.only not in scenario.name or not (arguments.all or scenario.sample):
                continue
            counts, texts = fail_each(arguments, scenario, scratch)
            total += counts
            bad += texts
            for text in texts:
                print(text, flush=True)
    print(f"{sum(total.values())} failing calls: " + ", ".join(f"{n} {end}" for end, n in sorted(total.items())) +
          f", {len(bad)} wrong")
    return 1 if bad or not total else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    sys.exit(main(parser.parse_args()))
