#!/usr/bin/env python3
"""Compiles sources each by itself, without precompiled headers and unity builds: each includes what it uses.

    compile_alone.py FOLDER PARTS     sets up a build in FOLDER and checks one of PARTS parts of all sources, which
                                      DUET_TEST_SEED draws

Only the syntax is checked, with warnings as errors. The last line reads "N passed, N failed".
"""
import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from drawn import is_drawn


def number_of(path):
    return int(hashlib.sha256(path.encode()).hexdigest(), 16)


def check(command, folder):
    words = [word for word in shlex.split(command) if not word.startswith("-O")]
    del words[words.index("-o"):words.index("-o") + 2]
    return subprocess.run([*words, "-O0", "-fsyntax-only"], cwd=folder, check=False, capture_output=True, text=True)


def main(folder, parts):
    if not os.path.exists(f"{folder}/build.ninja"):
        subprocess.run(["meson", "setup", folder, "-Dunity=off", "-Db_pch=false", "-Dwerror=true", "-Dcuda=disabled"], check=True,
                       stdout=subprocess.DEVNULL)
    with open(f"{folder}/compile_commands.json", encoding="utf-8") as file:
        commands = {entry["file"]: entry["command"] for entry in json.load(file) if entry["file"].endswith(".cpp")}
    drawn = [path for path in sorted(commands) if path.startswith("..") and is_drawn(number_of(path), parts)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, run in zip(drawn, pool.map(lambda path: check(commands[path], folder), drawn)):
            if run.returncode:
                failed += 1
                print(f"failed: {path}\n{run.stderr}", flush=True)
    print(f"{len(drawn) - failed} passed, {failed} failed")
    return 1 if failed or not drawn else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
