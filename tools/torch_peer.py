#!/usr/bin/env python3
"""PyTorch's side of the speed table of tools/gpu_check.sh: the step of SimpleCNN on random images that lie on the GPU.

    torch_peer.py --way eager|compiled|graph --precision fp32|tf32|bf16 [--batch 128] [--steps 200]

Prints one number: the median of a step in microseconds, gather to update, the device awaited after every step as duet's
own clock does it. "graph" is a CUDA graph of the whole step captured by hand, the strongest peer.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

IMAGES = 60000
WARM_UP = 20


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.reshape(-1, 64 * 7 * 7))
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def make_step(options):
    """A function of a batch's indices, and whether it may be captured."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1234)
    images = torch.randn(IMAGES, 1, 28, 28, device="cuda")
    labels = torch.randint(0, 10, (IMAGES,), device="cuda")
    model = SimpleCNN().cuda()
    network = torch.compile(model, mode="reduce-overhead") if options.way == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def step(rows):
        optimizer.zero_grad(set_to_none=options.way != "graph")
        with torch.autocast("cuda", torch.bfloat16, enabled=options.precision == "bf16"):
            loss = F.nll_loss(network(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()

    return step


def captured(step, batch):
    """The step as a graph: rows are copied to where the graph reads them."""
    rows = torch.zeros(batch, dtype=torch.long, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step(rows)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(rows)

    def replay(next_rows):
        rows.copy_(next_rows)
        graph.replay()

    return replay


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=("eager", "compiled", "graph"), default="eager")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    step = make_step(options)
    if options.way == "graph":
        step = captured(step, options.batch)
    order = torch.randperm(IMAGES, device="cuda")
    times = []
    for i in range(WARM_UP + options.steps):
        first = i * options.batch % (IMAGES - options.batch)
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(order[first : first + options.batch])
        torch.cuda.synchronize()
        if i >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e6)
    print(f"{statistics.median(times):.1f}")


if __name__ == "__main__":
    main()
