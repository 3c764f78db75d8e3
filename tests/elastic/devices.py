#!/usr/bin/env python3
"""Ranks of elastic jobs on simulated GPUs are struck, and the jobs end with the parameters of undisturbed ones.

    devices.py DUET PROGRAM                    each fault point with ranks, signals and backends in turn
    devices.py ... --cells                     each fault point with each rank
    devices.py ... --random N [--seed S]       N jobs, struck at random times; prints one line for each failure

NCCL adds up in an order that depends on the communicator, so values are compared within a tolerance; those of two ranks
over NCCL, and of any number over the host's memory, are equal bit by bit. The devices, and that ranks of NCCL are
processes (DUET_SIM_PROCESSES=1), come from the environment.
"""
import argparse
import array
import glob
import itertools
import json
import math
import os
import signal
import struct
import sys
import tempfile

import strikes
from strikes import STOPPED, Job

strikes.LIMIT = 180  # kernels are interpreted
# The distance of two trainings, over the length of either, in all values of parameters, buffers and the optimizer.
# Trainings that differ in the order of sums alone are up to 2e-6 apart, one with a step too many 1e-2.
TOLERANCE = 1e-5
SGD = ("--model", "linear", "--lr", "0.01", "--momentum", "0.9")
TRAINED = {"trained_linear": SGD, "trained_cnn": ("--model", "simple_cnn", "--lr", "0.01"),
           "trained_directly": SGD}  # without duet launch
NETWORKS = ("cnn", "plain", "accumulated", "undone")
ANY_NUMBER = ("trained_linear", "cnn")  # of ranks


def command(options, network, ranks, folder, least=0, spares=0, backend="nccl"):
    elastic = ["--elastic", "--max-failures", "50", "--stop-limit", "0.5", "--replace-timeout", "60", "--min-ranks", str(least),
               "--spares", str(spares)]
    launch = [options.duet, "launch", "-n", str(ranks), *elastic, "--"]
    if network in NETWORKS:
        return launch + [options.program, network]
    cnn = network == "trained_cnn"
    train = [options.duet, "train", "--mode", "ddp", "--device", "cuda", "--data", "synthetic", "--train-images",
             "72" if cnn else "240", "--test-images", "20", "--batch", "24", "--epochs", "2" if cnn else "3", *TRAINED[network],
             "--backend", backend, "--result", f"{folder}/result.json", "--checkpoint", f"{folder}/checkpoints",
             "--checkpoint-every", "7"]
    return train + ["--devices", str(ranks), *elastic] if network == "trained_directly" else launch + train


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    return values


def values_of(network, _, folder):
    """All that the training has made, or None."""
    newest = sorted(glob.glob(f"{folder}/checkpoints/checkpoint-*"))
    try:
        with open(f"{folder}/values" if network in NETWORKS else newest[-1], "rb") as file:
            data = file.read()
        if network in NETWORKS:
            return floats(data)
        with open(f"{folder}/result.json", encoding="ascii") as file:
            result = json.load(file)
    except (OSError, IndexError):
        return None
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    values = array.array("f")
    for name in sorted(header):
        if header[name].get("dtype") == "F32":
            begin, end = header[name]["data_offsets"]
            values += floats(data[8 + length + begin:8 + length + end])
    return values + array.array("f", result["train_loss"] + result["test_accuracy"])


def distance(some, others):
    if some is None or others is None or len(some) != len(others):
        return math.inf
    far = math.sqrt(sum((a - b) ** 2 for a, b in zip(some, others)))
    return far / math.sqrt(sum(b * b for b in others)) if far else 0.0


class Strikes(strikes.Strikes):
    command = staticmethod(command)
    state_of = staticmethod(values_of)
    default_backend = "nccl"
    furthest = 0.0

    def undisturbed(self, network, ranks, backend):
        return network, ranks, backend

    def wrong_with(self, state, expected, errors, faults, ranks, least, backend, environment):
        if not all(map(math.isfinite, expected)):
            return "the undisturbed training has values that are not finite"
        apart = distance(state, expected)
        self.furthest = max(self.furthest, apart)
        same_order = "DUET_SIM_SEED" not in environment and least == 0 and (ranks == 2 or backend != "nccl")
        if not apart <= (0 if same_order else TOLERANCE):
            return f"{apart:.1e} from the undisturbed training"
        if any(fault.split(":")[3] == str(int(signal.SIGSTOP)) for fault in faults) and STOPPED not in errors:
            return f"not: {STOPPED}"
        return ""

    def run_points(self):
        signals = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)
        points = [("init", 1), ("all_reduce", 1), ("collective", 15), ("input", 9), ("forward", 12), ("backward", 10),
                  ("all_reduce", 7), ("update", 20), ("commit", 8), ("evaluation", 1), ("checkpoint", 1), ("end", 1)]
        for i, ((point, times), rank) in enumerate(itertools.product(points, (0, 1, 2))):
            if not self.options.cells and rank != i // 3 % 3:
                continue
            network = ("trained_linear", "trained_directly")[(i + i // 3) % 2]
            fault = f"{point}:{rank}:{times}:{int(signals[(i + i // 3) % 3])}"
            self.run(network, fault)
        # Of two ranks, so with equal bits: what is on the device beside parameters.
        for i, (network, times) in enumerate((("plain", 9), ("accumulated", 9), ("undone", 24), ("cnn", 15))):
            fault = f"all_reduce:{i % 2}:{times}:{int(signals[i % 2])}"
            self.run(network, fault, 2)
        self.run("trained_cnn", "all_reduce:1:5:9")
        # A second rank, or the new process, during the recovery from the loss of rank 1.
        points = [("joining", (1,)), ("arriving", (0, 2)), ("agreement", (0, 1, 2)), ("state", (0, 1, 2))]
        for i, (point, rank) in enumerate((point, rank) for point, ranks_of in points for rank in ranks_of):
            fault = f"all_reduce:1:9:9,{point}:{rank}:1:{int(signals[i % 3])}:{int(rank == 1)}"
            self.run("trained_linear", fault)

    def run_others(self):
        for i, (point, times) in enumerate((("forward", 12), ("all_reduce", 15), ("commit", 8), ("evaluation", 1))):
            fault = f"{point}:{i % 3}:{times}:{int((signal.SIGKILL, signal.SIGSTOP)[i % 2])}"
            self.run("trained_linear", fault, spares=1)
            self.run("trained_linear", fault, least=1 + i % 2)
            self.run("trained_linear", fault, backend=("shm", "tcp")[i % 2])  # over the host's memory
        fault = "all_reduce:0:10:9"
        self.run("plain", fault, 2, spares=1)
        self.run("cnn", fault, 2, least=1)

    def refuse(self):
        """What an elastic job cannot do on GPUs is an error that says so."""
        for text, more in (("--graph on: an elastic job", ("--graph", "on")),
                           ("a spare process has a GPU of its own", ("--spares", "9"))):
            with tempfile.TemporaryDirectory() as folder:
                job = Job(command(self.options, "trained_directly", 2, folder) + list(more))
                self.require_refused(more, text, job)

    def drawn_job(self, draw, number):
        network, ranks = draw.choice((*TRAINED, "trained_linear", "trained_directly", *NETWORKS)), draw.choice((2, 3))
        least = draw.randrange(ranks) if network in ANY_NUMBER else 0
        slow = network in NETWORKS or network == "trained_cnn"
        backend = "nccl" if slow else draw.choice(("nccl", "nccl", "shm", "tcp"))
        return {"network": network, "ranks": ranks, "least": least, "spares": draw.choice((0, 0, 1)), "backend": backend,
                "DUET_SIM_SEED": str(number), "DUET_DELAY": f"all_reduce:*:{draw.choice((0, 1000, 4000))}"}, \
            (0.1, 3.0 if slow else 0.7)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("duet")
    parser.add_argument("program")
    parser.add_argument("--cells", action="store_true", help="each fault point with each rank")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["DEVICE"] = "cuda"
    campaign = Strikes(options, 6, options.random or options.cells)
    if options.random:
        campaign.run_random(options.random, options.seed)
    else:
        campaign.run_points()
        campaign.run_others()
        campaign.refuse()
    print(f"at most {campaign.furthest:.1e} from the undisturbed trainings")
    return campaign.finish()


if __name__ == "__main__":
    sys.exit(main())
