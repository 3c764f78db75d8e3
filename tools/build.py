#!/usr/bin/env python3
"""Runs a build or its tests, and shows how far it is and how much time is left.

    tools/build.py NAME LOG COMMAND...     NAME starts each line; everything that COMMAND prints goes into the file LOG

COMMAND is ninja, `meson test`, or a program that runs ninja and prints its lines ("[12/99] Compiling ..."). On a terminal
one bar is written over and over; otherwise a line is printed at least every 10 s. Exits with COMMAND's status. If the
build fails, prints the errors in its output.
"""
import os
import re
import subprocess
import sys
import threading
import time

STEP = re.compile(r" *(\[) *(\d+)/(\d+)\] | *()(\d+)/(\d+) ")  # ninja's or meson's, at the start of a line
EVERY = 9.0  # seconds between lines
LINES, WIDTH = 40, 24


class Progress:
    """Prints the state of a build from a thread of its own, also while the command prints nothing."""

    def __init__(self, name):
        self.name = name
        self.start("building")
        self.terminal = sys.stdout.isatty()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def start(self, what):
        self.what, self.since, self.done, self.total = what, time.monotonic(), 0, 0

    def run(self):
        while not self.ended.wait(0.5 if self.terminal else EVERY):
            spent = time.monotonic() - self.since
            done, total = self.done, self.total
            left = f", about {max(1, round(spent * (total - done) / done))} s left" if done else ""
            if self.terminal:
                bar = "#" * (WIDTH * done // max(total, 1))
                print(f"\r{self.name}: {self.what} [{bar:<{WIDTH}}] {done}/{total}  {spent:.0f} s{left}\033[K", end="", flush=True)
            else:
                print(f"{self.name}: {self.what}, {done} of {total or '?'} done, {spent:.0f} s{left}", flush=True)

    def say(self, text):
        clear = "\r\033[K" if self.terminal else ""
        print(f"{clear}{self.name}: {text}", flush=True)

    def end(self):
        self.ended.set()
        self.thread.join()
        if self.terminal:
            print("\r\033[K", end="", flush=True)


def errors_in(log):
    """From the first error on, or the last lines if none is found."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    wrong = [number for number, line in enumerate(lines) if re.search(r"\berror\b|FAILED|ERROR", line)]
    return lines[wrong[0]:wrong[0] + LINES] if wrong else lines[-LINES:]


def main(name, log, command):
    progress = Progress(name)
    try:
        with open(log, "w", encoding="utf-8") as out, subprocess.Popen(
                command, env={**os.environ, "NINJA_STATUS": "[%f/%t] "}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace") as process:
            for line in process.stdout:
                out.write(line)
                if step := STEP.match(line):
                    if step[1] is None and progress.what == "building":
                        if progress.total:
                            progress.say(f"built in {time.monotonic() - progress.since:.0f} s")
                        progress.start("testing")
                    progress.done, progress.total = int(step[2] or step[5]), int(step[3] or step[6])
    finally:
        progress.end()
    if process.returncode and progress.what == "building":
        print(f"{name}: the build failed; its output is in {log}", *errors_in(log), sep="\n", file=sys.stderr)
    elif progress.total:
        progress.say(f"{'tested' if progress.what == 'testing' else 'built'} in {time.monotonic() - progress.since:.0f} s")
    return process.returncode


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
