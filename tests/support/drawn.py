#!/usr/bin/env python3
"""Decides which cases of a large test run, for tests that are too long to run whole before every landing.

    drawn.py "NAME=VALUE WORD" ... -- COMMAND...     runs COMMAND with the variables of one argument, and its other words as
                                                     arguments, drawn by the seed; as it is if one of the variables is set
    drawn.py --part-of N -- PROGRAM...                runs the cases of every Nth source of a Catch2 program, drawn by the seed

DUET_TEST_SEED=N draws other cases (default: 0); DUET_TEST_WHOLE=1 runs them all.
"""
import os
import re
import subprocess
import sys

SEED = int(os.environ.get("DUET_TEST_SEED") or 0)
WHOLE = os.environ.get("DUET_TEST_WHOLE") == "1"


def is_drawn(number, parts=3):
    """Whether the case of this number runs. As many seeds in a row as there are parts run every case once."""
    return WHOLE or (number + SEED) % parts == 0


def note():
    """One line for the output of a test."""
    return "drawn whole" if WHOLE else f"drawn by DUET_TEST_SEED={SEED}"


def part_of(parts, command):
    """The command with a filter for every `parts`th source of the program."""
    if WHOLE or parts == 1:
        return command
    # The exit status is the number of tags.
    listing = subprocess.run([*command, "--filenames-as-tags", "--list-tags"], stdout=subprocess.PIPE, text=True, check=False).stdout
    sources = sorted(set(re.findall(r"\[(#[^\]]+)\]", listing)))
    chosen = [source for number, source in enumerate(sources) if is_drawn(number, min(parts, len(sources)))]
    print(f"{' '.join(chosen)} ({note()})", flush=True)
    return [*command, "--filenames-as-tags", ",".join(f"[{source}]~[.]" for source in chosen)]


def main(arguments):
    if arguments[0] == "--part-of":
        return subprocess.run(part_of(int(arguments[1]), arguments[3:]), check=False).returncode
    settings, command = arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]
    if any(pair.split("=")[0] in os.environ for setting in settings for pair in setting.split()):
        settings = [""]
    status = 0
    for number, setting in enumerate(settings):
        if is_drawn(number, len(settings)):
            print(f"{setting} ({note()})", flush=True)
            words = [word for word in setting.split() if "=" not in word]
            variables = dict(word.split("=", 1) for word in setting.split() if "=" in word)
            status = subprocess.run([*command, *words], env={**os.environ, **variables}, check=False).returncode or status
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
