#!/usr/bin/env python3
"""torch.distributed over duet against Gloo: times of all_reduce by size, and of a step under DistributedDataParallel.

    c10d_backends.py [--ranks 2,4] [--bytes 64,4096,...] [--rounds 31] [--seconds 0.05]

Needs a Python with duet_torch. A rank is a process of one thread, and has a group of each backend. In a round both run
a burst of --seconds, one after the other, the first of them by turns. Prints tables in Markdown: medians of rank 0's
rounds, quartiles in brackets, and the median of the rounds' ratios.
"""
import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path[:0] = [os.path.join(ROOT, "tests/torch"), os.path.join(ROOT, "tools")]
from c10d_ranks import ranks  # noqa: E402
from torch_peer import SimpleCNN  # noqa: E402

BATCH = 128  # of all ranks
WARM_UP = 3


def groups():
    return {"gloo": dist.new_group(backend="gloo"), "duet": dist.group.WORLD}


def rounds_of(calls, options, group):
    """Name -> seconds of a call in each round. All ranks make as many calls, which rank 0 chooses."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    begin = time.perf_counter()
    for call in calls.values():
        call()
    count = torch.tensor([max(1, int(options.seconds * len(calls) / (time.perf_counter() - begin)))])
    dist.broadcast(count, 0)
    times = {name: [] for name in calls}
    for number in range(options.rounds):
        for name in sorted(calls, reverse=number % 2 == 1):
            dist.barrier(group=group)
            begin = time.perf_counter()
            for _ in range(count.item()):
                calls[name]()
            times[name].append((time.perf_counter() - begin) / count.item())
    return times


def all_reduces(options):
    """Bytes -> what rounds_of() gives."""
    over, found = groups(), {}
    for size in options.bytes:
        tensor = torch.zeros(size // 4)
        found[size] = rounds_of(
            {name: lambda group=group: dist.all_reduce(tensor, group=group) for name, group in over.items()}, options, over["duet"])
    return found


def steps(options, size):
    over, calls = groups(), {}
    torch.manual_seed(1)
    images, labels = torch.randn(BATCH // size, 1, 28, 28), torch.randint(0, 10, (BATCH // size,))
    for name, group in over.items():
        model = DistributedDataParallel(SimpleCNN(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            F.nll_loss(model(images), labels).backward()
            optimizer.step()

        calls[name] = step
    return rounds_of(calls, options, over["duet"])


def text(seconds):
    """'12.3 µs (11.9..12.8)'"""
    low, middle, high = statistics.quantiles(seconds, n=4)
    unit, factor = ("ms", 1e3) if middle >= 1e-3 else ("µs", 1e6)
    return f"{middle * factor:.3g} {unit} ({low * factor:.3g}..{high * factor:.3g})"


def row(times):
    ratio = statistics.median(gloo / duet for gloo, duet in zip(times["gloo"], times["duet"]))
    return f"{text(times['gloo'])} | {text(times['duet'])} | {ratio:.2f}"


def numbers(value):
    return [int(word) for word in value.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--bytes", type=numbers, default=[64, 4 << 10, 64 << 10, 1 << 20, 16 << 20])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--seconds", type=float, default=0.05)
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {os.cpu_count()} cores\n")
    print("| ranks | all_reduce of | Gloo | duet | times as fast |\n|---|---|---|---|---|")
    for size in options.ranks:
        for length, times in ranks(size, lambda rank, size: all_reduces(options), seconds=600)[0].items():
            print(f"| {size} | {length:,} bytes | {row(times)} |", flush=True)
    print(f"\n| ranks | a step of SimpleCNN, batch {BATCH}: Gloo | duet | times as fast |\n|---|---|---|---|")
    for size in options.ranks:
        print(f"| {size} | {row(ranks(size, lambda rank, size: steps(options, size), seconds=600)[0])} |", flush=True)


if __name__ == "__main__":
    main()
