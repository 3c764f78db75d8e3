#!/usr/bin/env python3
"""PyTorch's side of duet's speed tables: the step of SimpleCNN on random images that lie on the device.

    torch_peer.py --way eager|compiled|graph --precision fp32|tf32|bf16 [--batch 128] [--steps 200]

A GPU, for tools/gpu_check.sh. Prints times of a step in microseconds, gather to update, a line each, as duet's own clock
takes them: of "eager" every step, the device awaited after each; of "compiled" and "graph" the mean of each group of
10 steps, the device awaited after the last. "graph" is a CUDA graph of the whole step captured by hand, the strongest
peer.

    torch_peer.py --device cpu --bursts FILES [--ranks 1] [--threads 1] [--tuned] [--batch 128]

The CPU, for `duet compare --vs-torch`, which carries a copy of this file. --model NAME is a network of torchvision
in place of SimpleCNN, with --image-size, --classes and --stem as duet has them. More than one rank is
DistributedDataParallel over Gloo, or --backend duet (the package duet_torch), a process and `threads` threads for
each, which share the batch. "tuned" lays images and weights out channels_last and lets malloc keep freed memory;
otherwise everything is as it comes. Every rank R reads commands from the FIFO FILES.R.commands, a line each, until
nothing has it open: a number of steps to time, or 0 to rest. It answers each with a line of JSON on FILES.R.answers,
as it does when it is ready; {} where there is nothing to tell. Rank 0 tells when it is ready: PyTorch's version, and
the seconds from the start of the process to the end of the first step (the drawing of the images not counted). And of
steps, in microseconds: its median step, the means over all ranks of a step and of its parts ("exposed": communication
that backward did not hide, as DistributedDataParallel logs it; "moving": the least over the ranks of each step, as the
rank that comes last waits for none), and of several ranks the median of as many steps under no_sync().

    torch_peer.py --device cpu --export FILE [--batch 128] [--model NAME ...]

Writes the network as TorchScript, and to FILE.json what its steps are made of.
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

IMAGES = 60000
WARM_UP = 20
GROUP = 10  # steps between two readings of the loss in a training of 200 steps
BURST_WARM_UP = 4
LONG_WARM_UP = 1  # of torchvision's networks, whose steps are long
# Blocks of up to 32 MiB (the most that glibc takes) stay in the heap, and the heap does not shrink.
MALLOC = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=67108864"


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


def make_network(options):
    """The network, and its loss."""
    if options.model == "simple_cnn":
        return SimpleCNN(), F.nll_loss
    import torchvision

    model = torchvision.models.get_model(options.model, num_classes=options.classes)
    if options.stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model, F.cross_entropy


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


def run_gpu(options):
    plain = make_step(options)  # kept while a graph reads its images and weights
    step = captured(plain, options.batch) if options.way == "graph" else plain
    order = torch.randperm(IMAGES, device="cuda")
    group = 1 if options.way == "eager" else GROUP
    for begin in range(0, WARM_UP + options.steps, group):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(begin, begin + group):
            first = i * options.batch % (IMAGES - options.batch)
            step(order[first : first + options.batch])
        torch.cuda.synchronize()
        if begin >= WARM_UP:
            print(f"{(time.perf_counter() - start) * 1e6 / group:.1f}")


def settings_of(options):
    """What the steps of the CPU's peers are made of."""
    small = options.model == "simple_cnn"
    return {
        "nll_loss": small,
        "images": IMAGES if small else 4 * options.batch,
        "sample_shape": [1, 28, 28] if small else [3, options.image_size, options.image_size],
        "classes": options.classes,
        "warm_up": WARM_UP if small else LONG_WARM_UP,
        "burst_warm_up": BURST_WARM_UP if small else LONG_WARM_UP,
    }


def export(options):
    torch.jit.script(make_network(options)[0]).save(options.export)
    with open(options.export + ".json", "w", encoding="utf-8") as file:
        json.dump(settings_of(options), file)


def communication(model):
    """Of DistributedDataParallel's step before the last, in microseconds: what backward did not hide, and all."""
    log = model._get_ddp_logging_data() if hasattr(model, "_get_ddp_logging_data") else {}
    whole = log.get("backward_comm_time", 0)
    return (whole - log.get("backward_compute_comm_overlap_time", 0)) / 1e3, whole / 1e3


def run_cpu_rank(rank, options, store):
    """One process of the CPU's peer."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(1234)
    drawing = time.perf_counter()
    settings = settings_of(options)
    count = settings["images"]
    images = torch.randn(count, *settings["sample_shape"])
    labels = torch.randint(0, options.classes, (count,))
    drawing = time.perf_counter() - drawing
    model, loss_of = make_network(options)
    if options.tuned:
        images = images.to(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
    if options.ranks > 1:
        if options.backend == "duet":
            import duet_torch  # registers it
        torch.distributed.init_process_group(
            options.backend, init_method=f"file://{store}", rank=rank, world_size=options.ranks
        )
        model = nn.parallel.DistributedDataParallel(model)
        if hasattr(model, "_set_ddp_runtime_logging_sample_rate"):
            model._set_ddp_runtime_logging_sample_rate(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    order = torch.randperm(count)[rank :: options.ranks]
    rows = options.batch // options.ranks
    total = torch.zeros(())
    done = 0

    def run_steps(count):
        nonlocal done, total
        times, exposures = [], []
        parts = dict.fromkeys(("forward", "backward", "exposed", "communication"), 0)
        for _ in range(count):
            begin = done * rows % (len(order) - rows)
            done += 1
            start = time.perf_counter()
            picked = order[begin : begin + rows]
            optimizer.zero_grad()
            loss = loss_of(model(images[picked]), labels[picked])
            forward_end = time.perf_counter()
            loss.backward()
            backward_end = time.perf_counter()
            optimizer.step()
            total += loss.detach()
            times.append((time.perf_counter() - start) * 1e6)
            exposed, whole = communication(model)
            exposures.append(exposed)
            backward = (backward_end - forward_end) * 1e6 - exposed
            for part, us in zip(parts, ((forward_end - start) * 1e6, backward, exposed, whole)):
                parts[part] += us / count
        return times, parts, exposures

    def burst(steps):
        run_steps(settings["burst_warm_up"])
        times, parts, exposures = run_steps(steps)
        numbers = {"mean_us": sum(times) / steps, **parts}
        measured = {"median_us": statistics.median(times), "alone_us": None, "moving": 0}
        if options.ranks > 1:
            with model.no_sync():
                measured["alone_us"] = statistics.median(run_steps(steps)[0])
            medians = torch.tensor([measured["median_us"], measured["alone_us"]], dtype=torch.float64)
            torch.distributed.all_reduce(medians, torch.distributed.ReduceOp.MAX)  # of the slowest rank, as duet's own
            measured["median_us"], measured["alone_us"] = medians.tolist()
            means, least = torch.tensor(list(numbers.values())) / options.ranks, torch.tensor(exposures)
            torch.distributed.all_reduce(means)
            torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
            measured["moving"] = least.mean().item()
            numbers = dict(zip(numbers, means.tolist()))
        return measured | numbers if rank == 0 else {}

    run_steps(1)
    first_end = time.monotonic_ns()
    startup = (first_end - int(os.environ.get("DUET_STARTED_NS", first_end))) / 1e9 - drawing
    run_steps(settings["warm_up"])
    fifos = f"{options.bursts}.{rank}"
    with open(fifos + ".commands", encoding="utf-8") as commands, open(fifos + ".answers", "w", encoding="utf-8") as answers:
        print(json.dumps({"torch": torch.__version__, "startup_s": startup}), file=answers, flush=True)
        for steps in map(int, iter(commands.readline, "")):
            print(json.dumps(burst(steps) if steps > 0 else {}), file=answers, flush=True)
    if options.ranks > 1:
        torch.distributed.destroy_process_group()


def run_cpu(options):
    if options.tuned and os.environ.get("GLIBC_TUNABLES") != MALLOC:  # glibc reads it when a process starts
        os.environ["GLIBC_TUNABLES"] = MALLOC
        os.execv(sys.executable, [sys.executable] + sys.argv)
    store = options.bursts + ".store"
    if options.ranks == 1:
        run_cpu_rank(0, options, store)
    else:
        torch.multiprocessing.spawn(run_cpu_rank, args=(options, store), nprocs=options.ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--way", choices=("eager", "compiled", "graph"), default="eager")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--backend", choices=("gloo", "duet"), default="gloo")
    parser.add_argument("--bursts")
    parser.add_argument("--export")
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--stem", choices=("imagenet", "cifar"), default="imagenet")
    options = parser.parse_args()
    if options.batch < options.ranks:
        parser.error(f"--batch is {options.batch}, smaller than the {options.ranks} ranks that share it")
    if options.export:
        export(options)
    else:
        if options.device == "cpu" and not options.bursts:
            parser.error("--device cpu needs --bursts")
        run_cpu(options) if options.device == "cpu" else run_gpu(options)


if __name__ == "__main__":
    main()
