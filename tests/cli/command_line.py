#!/usr/bin/env python3
"""Runs the program: duet show, --config, --quiet, ranks that aren't started, and options that change the parameters.

    command_line.py DUET
"""
import os
import subprocess
import sys
import tempfile

SMALL = ("--data", "synthetic", "--train-images", "256", "--test-images", "20", "--model", "linear")
COMPARED = ("compare", "--quiet", *SMALL, "--modes", "single,averaging,dp", "--devices", "1..2", "--time-budget", "1")


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def run(self, *arguments):
        return subprocess.run([self.path, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=100)

    def said(self, *arguments):
        result = self.run(*arguments)
        assert result.returncode == 0, result
        return result.stdout


def check_show(duet):
    """duet show prints again what duet compare printed"""
    for options in ((), ("--tutorial",)):
        printed = duet.said(*COMPARED, *options)
        for place in ("out", "out/results.json"):
            assert duet.said("show", place, *options) == printed, (place, options, printed)
    wide = duet.said(*COMPARED, "--wide")
    assert wide.split("\n", 3)[3] == duet.said("show", "out", "--wide"), wide  # but for machine, network and data
    os.rename(os.path.join(duet.folder, "out/results.json"), os.path.join(duet.folder, "alone.json"))
    assert "report" not in duet.said("show", "alone.json")


def check_show_refuses(duet):
    """a results.json without the fields of a comparison is refused in one line"""
    for text, said in (("{}", "field 'duet' is missing"), ('{"batches": [{}]}', "field 'duet' is missing"), ("[", "not JSON")):
        with open(os.path.join(duet.folder, "bad.json"), "w", encoding="utf-8") as file:
            file.write(text)
        result = duet.run("show", "bad.json")
        assert result.returncode == 1 and not result.stdout, result
        assert result.stderr.startswith("duet: bad.json: ") and said in result.stderr, result
        assert result.stderr.count("\n") == 1, result


def check_config(duet):
    """a training by --config is that of the same options"""
    with open(os.path.join(duet.folder, "run.toml"), "w", encoding="utf-8") as file:
        file.write('mode = "dp"\ndevices = 2\nepochs = 1\nquiet = true\nlr = 0.5\n')
    by_file = duet.said("train", *SMALL, "--config", "run.toml", "--lr", "0.05")
    by_hand = duet.said("train", *SMALL, "--mode", "dp", "--devices", "2", "--epochs", "1", "--quiet", "--lr", "0.05")
    assert by_file.split()[:6] == by_hand.split()[:6] and by_file.startswith("epoch 1/1  loss "), (by_file, by_hand)
    with open(os.path.join(duet.folder, "run.toml"), "a", encoding="utf-8") as file:
        file.write("ratio = 1\n")
    result = duet.run("train", "--config", "run.toml")
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "duet: run.toml: unknown key 'ratio'\n"), result


def check_quiet(duet):
    """--quiet leaves results, warnings and errors"""
    for mode in (("single",), ("dp", "--devices", "2"), ("ddp", "--devices", "2")):
        result = duet.run("train", *SMALL, "--epochs", "2", "--quiet", "--mode", *mode)
        lines = result.stdout.splitlines()
        assert result.returncode == 0 and not result.stderr, result
        assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]], result
    loud = duet.said("train", *SMALL, "--epochs", "1")
    assert loud.startswith("network: linear") and "\ndata: " in loud, loud
    result = duet.run(*COMPARED)
    assert result.returncode == 0 and result.stderr == "" and result.stdout.startswith("\nduet "), result


def check_warnings(duet):
    """unlikely settings are warned of once, also with --progress and under a launcher"""
    train = ("train", "--quiet", *SMALL, "--epochs", "1", "--lr", "50")
    for command in (train, (*train, "--progress", "file"), (*train, "--mode", "ddp", "--devices", "2"), (*COMPARED, "--lr", "50"),
                    ("launch", "-n", "2", "--", duet.path, *train, "--mode", "ddp")):
        result = duet.run(*command)
        assert result.returncode == 0 and result.stderr.count("warning: --lr is 50") == 1, result


def check_nccl(duet):
    """where there is no GPU, --backend nccl is a wrong command line, and no rank starts"""
    for arguments in (("train", "--mode", "ddp"), ("compare", "--modes", "ddp")):
        for device in ("cpu", "cuda"):
            result = duet.run(*arguments, "--devices", "2", "--backend", "nccl", "--device", device)
            if "cannot be used" not in result.stderr and device == "cuda":
                continue  # this machine has a GPU
            assert result.returncode == 2 and not result.stdout, result
            assert result.stderr.startswith("duet: --backend nccl ") and result.stderr.count("\n") == 1, result


def check_training_options(duet):
    """each option of the optimizer, the order and the weights changes the parameters"""
    def trained(*options):
        duet.said("train", "--quiet", *SMALL, "--epochs", "1", "--fingerprints", "hashes", *options)
        with open(os.path.join(duet.folder, "hashes"), encoding="utf-8") as hashes:
            return hashes.read().splitlines()[-1]

    options = ((), ("--momentum", "0.9"), ("--weight-decay", "0.1"), ("--lr", "0.5"), ("--optimizer", "adam"),
               ("--optimizer", "adamw"), ("--optimizer", "adam", "--weight-decay", "0.1"), ("--seed", "2"), ("--batch", "64"))
    assert len({trained(*each) for each in options}) == len(options), "two of them end with the same parameters"


def main(program):
    failed = 0
    checks = (check_show, check_show_refuses, check_config, check_quiet, check_warnings, check_nccl, check_training_options)
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Program(os.path.abspath(program), folder))
            except AssertionError as error:
                failed += 1
                print(f"{check.__doc__}: {error}")
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
