#!/usr/bin/env python3
"""duet's DistributedDataParallel for LibTorch modules against PyTorch's in Python: parity.py TEST_TORCH

Trains the networks of networks.h for 20 steps under PyTorch's DDP over Gloo, a process per rank, and lets the program
TEST_TORCH do the same from the same values and batches; it compares every element of parameters, gradients and buffers.
"""
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from c10d_ranks import ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    import torch._dynamo  # noqa: F401, once here instead of in every rank, where DDP needs it
except ImportError:  # before 2.0
    pass

ROWS, STEPS, SIZES = 12, 20, (1, 2, 3, 4)


class SimpleCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 7 * 7, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.relu(F.max_pool2d(self.conv1(x), 2))
        x = torch.relu(F.max_pool2d(self.conv2(x), 2))
        return F.log_softmax(self.fc2(torch.relu(self.fc1(x.flatten(1)))), 1)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.a = nn.Linear(8, 3)
        self.b = nn.Linear(8, 3)
        self.never = nn.Linear(8, 3)

    def forward(self, x, which):
        hidden = torch.tanh(self.first(x))
        return self.a(hidden) if which == 0 else self.b(hidden)


class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(torch.relu(self.bn(self.conv(x))).flatten(1)), 1)


class Transformer(nn.Module):
    """Rows are dimension 1."""

    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(x))


class Script(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(6, 16))
        self.b1 = nn.Parameter(torch.randn(16))
        self.w2 = nn.Parameter(torch.randn(16, 3))

    def forward(self, x):
        return torch.tanh(x @ self.w1 + self.b1) @ self.w2


# By network: the shapes of a step's inputs and targets; without the second, targets are classes.
BATCHES = {
    SimpleCnn: ((ROWS, 1, 28, 28), None),
    Branches: ((ROWS, 6), (ROWS, 3)),
    BatchNorm: ((ROWS, 2, 6, 6), None),
    Transformer: ((5, ROWS, 8), (5, ROWS, 3)),
    Script: ((ROWS, 6), (ROWS, 3)),
}


class Training:
    """A network with its first values, and the batches of all steps."""

    def __init__(self, network):
        torch.manual_seed(3)
        self.name = network.__name__
        inputs, targets = BATCHES[network]
        self.net = torch.jit.script(network()) if network is Script else network()
        self.x = torch.randn(STEPS, *inputs)
        self.y = torch.randn(STEPS, *targets) if targets else torch.randint(10, (STEPS, ROWS))
        self.dim = 1 if network is Transformer else 0
        self.loss = F.mse_loss if targets else F.nll_loss

    def values(self):
        """Parameters, gradients where there are some, and buffers by name."""
        values = {}
        for name, parameter in self.net.named_parameters():
            values["parameter." + name] = parameter.detach()
            if parameter.grad is not None:
                values["gradient." + name] = parameter.grad
        values.update(("buffer." + name, buffer) for name, buffer in self.net.named_buffers())
        return values

    def run(self, rank, size):
        branches = self.name == "Branches"
        ddp = DistributedDataParallel(self.net, find_unused_parameters=branches)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.5)
        for step in range(STEPS):
            x, y = (batch[step].chunk(size, self.dim)[rank] for batch in (self.x, self.y))
            optimizer.zero_grad(set_to_none=True)
            self.loss(ddp(x, *([(rank + step) % 3 // 2] if branches else [])), y).backward()
            optimizer.step()


def main(program):
    torch.set_num_threads(1)
    torch._C._jit_set_texpr_fuser_enabled(False)  # pylint: disable=protected-access; see networks.h
    trainings = [Training(network) for network in BATCHES]
    with tempfile.TemporaryDirectory() as folder:
        for training in trainings:
            torch.save({"x": training.x, "y": training.y, **training.values()}, os.path.join(folder, training.name + ".pt"))
            if training.name == "Script":
                training.net.save(os.path.join(folder, "module.pt"))

        def body(rank, size):
            for training in trainings:
                training.run(rank, size)
                if rank == 0:
                    torch.save(training.values(), os.path.join(folder, f"{training.name}.{size}.pt"))
        for size in SIZES:
            ranks(size, body, "gloo")
        return subprocess.run([program, "[python]"], env={**os.environ, "DUET_PARITY": folder}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
