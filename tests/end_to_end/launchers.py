#!/usr/bin/env python3
"""Runs `duet train --mode ddp` unchanged under another launcher, and compares its parameters with a single device's.

    launchers.py torchrun|mpirun|srun DUET

The launcher is $DUET_TORCHRUN, $DUET_MPIRUN or $DUET_SRUN, else the one in PATH. Where no Slurm cluster answers srun, one
of this machine alone is started. Exits with 77, and says why, where there is no launcher, or no cluster.
"""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import slurm_cluster

RANKS = 2
SKIPPED = 77
TRAIN = ["train", "--quiet", "--data", "synthetic", "--train-images", "333", "--test-images", "200", "--lr", "0.05",
         "--batch", "64", "--epochs", "1"]
COMMANDS = {
    # Debian 12's torchrun, 1.13 under Python 3.11, takes no dashes, and fails on the defaults of --redirects and --tee.
    "torchrun": ["--standalone", "--no_python", f"--nproc_per_node={RANKS}", "--redirects=1", "--tee=1"],
    # Containers often run as root, and on fewer cores than ranks.
    "mpirun": ["--allow-run-as-root", "--oversubscribe", "-np", str(RANKS)],
    "srun": [f"--ntasks={RANKS}", "--nodes=1", "--overcommit"],
}
# Variables of a launcher that started this test: removed.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def run(command, folder):
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment["TMPDIR"] = folder  # without an address, ranks meet there
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=240, check=False)
    print(ran.stdout)
    return ran


def train(command, folder, name, more=()):
    """Returns the record of one training."""
    result = os.path.join(folder, name)
    ran = run([*command, *TRAIN, "--result", result, *more], folder)
    if ran.returncode != 0:
        sys.exit(f"exit code {ran.returncode}: {' '.join(command)}")
    with open(result, encoding="utf-8") as file:
        return json.load(file)


def compare(command, duet, launcher, folder):
    """Trains alone and under the launcher, and looks at what a failure of the ranks becomes."""
    alone = train([duet], folder, "alone")
    ranks = train([*command, duet], folder, "ranks", ["--mode", "ddp"])
    if ranks["devices"] != RANKS:
        sys.exit(f"{ranks['devices']} ranks trained together, expected {RANKS}")
    if ranks["parameters_sha256"] != alone["parameters_sha256"]:
        sys.exit(f"{RANKS} ranks under {launcher} end with other parameters than one device")
    # A rank's error ends the job, and reaches the launcher as a failure.
    if run([*command, duet, *TRAIN, "--mode", "ddp", "--resume", "/no/such/file"], folder).returncode == 0:
        sys.exit(f"a job that failed is a success for {launcher}")


def main(launcher, duet):
    program = os.environ.get(f"DUET_{launcher.upper()}") or shutil.which(launcher)
    if program is None:
        skip(f"{launcher} is not in PATH")
    with tempfile.TemporaryDirectory(prefix="duet-") as folder, contextlib.ExitStack() as stack:
        if launcher == "srun" and slurm_cluster.why_silent(program):
            why = slurm_cluster.why_not()
            if not why:
                here = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-"))
                why = stack.enter_context(slurm_cluster.cluster(here, program))
            if why:
                skip(f"srun is here, but no Slurm cluster answers it ({why})")
        compare([program, *COMMANDS[launcher]], duet, launcher, folder)
    print("1 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main(*sys.argv[1:])
