#!/usr/bin/env python3
"""Times training steps of transformers and MLPs in duet and in PyTorch, by turns, and prints the ratios.

    network_steps.py BUILD [--python PYTHON] [--rounds 5] [--devices 1,2] [--networks transformer:128,mlp:512]

BUILD: a release build with tests. PYTHON: has PyTorch. N devices of duet's DataParallel stand against N threads of
PyTorch. Prints medians, and the median and range of the rounds' ratios.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

NETWORKS = "transformer:32,transformer:128,transformer:256,transformer:512,mlp:512,mlp:2048"
SYMBOLS = 80


def peer(network, width, threads, steps):
    """The median time of a step in PyTorch, in ms."""
    import torch
    from torch import nn
    from torch.nn import functional

    heads = 8 if width > 128 else 4
    length = 128 if width > 128 else 64 if width > 32 else 32
    batch = 8 if width > 256 else 16 if width > 128 else 32

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.inner, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            split = [part.view(batch, length, heads, width // heads).transpose(1, 2)
                     for part in self.inner(self.norm1(x)).split(width, 2)]
            seen = functional.scaled_dot_product_attention(*split, is_causal=True)
            y = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
            return y + self.narrow(functional.gelu(self.wide(self.norm2(y))))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(length, width)
            self.rest = nn.Sequential(Block(), Block(), nn.LayerNorm(width), nn.Linear(width, SYMBOLS))

        def forward(self, x):
            return self.rest(self.symbols(x) + self.places.weight).reshape(-1, SYMBOLS)

    torch.set_num_threads(threads)
    if network == "mlp":
        sizes = [784, width, width, width]
        layers = [layer for i in range(3) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
        net, x, y = nn.Sequential(*layers, nn.Linear(width, 10)), torch.rand(128, 784), torch.randint(0, 10, (128,))
    else:
        net = Transformer()
        x, y = torch.randint(0, SYMBOLS, (batch, length)), torch.randint(0, SYMBOLS, (batch * length,))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    times = []
    for _ in range(steps + 3):
        begin = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times[3:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", default="1,2")
    parser.add_argument("--networks", default=NETWORKS)
    options = parser.parse_args()
    own = os.path.join(options.build, "tests/benchmarks/network_step")
    print("| network | devices | duet, ms | PyTorch, ms | PyTorch / duet |\n|---|---:|---:|---:|---:|")
    for name in options.networks.split(","):
        network, width = name.split(":")
        steps = str(max(3, 6000 // int(width)) if network == "transformer" else 20)
        for devices in options.devices.split(","):
            arguments, rounds = [network, width, devices, steps], []
            commands = [[own], [options.python, os.path.abspath(__file__), "peer"]]
            for number in range(options.rounds):
                times = {c[0]: float(subprocess.run(c + arguments, capture_output=True, text=True, check=True).stdout)
                         for c in commands[::1 if number % 2 else -1]}
                rounds.append([times[c[0]] for c in commands])
            ratios = [theirs / ours for ours, theirs in rounds]
            ours, theirs = (statistics.median(column) for column in zip(*rounds))
            print(f"| {network} {width} | {devices} | {ours:.2f} | {theirs:.2f} | {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f}..{max(ratios):.2f}) |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        print(peer(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
    else:
        main()
