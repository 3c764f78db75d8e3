#!/usr/bin/env python3
"""Decides which cases of a large test run, for tests that are too long to run whole before every landing.

    drawn.py "NAME=VALUE WORD" ... -- COMMAND...     runs COMMAND with the variables of one argument, and its other words as
                                                     arguments, drawn by the seed; as it is if one of the variables is set

DUET_TEST_SEED=N draws other cases (default: 0); DUET_TEST_WHOLE=1 runs them all.
"""
import os
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


def main(arguments):
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
