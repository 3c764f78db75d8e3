#!/usr/bin/env python3
"""Prints, for each architecture, the registers, shared memory and spills of duet's kernels, as ptxas reports them.

    kernel_resources.py [--kernels] [NUMBER...]

NUMBER: of an architecture, 90 for sm_90; otherwise 80, 90, 100 and 120. A table of the sources, in Markdown;
with --kernels a line for each kernel. Needs nvcc, as tools/find_cuda.py finds it, and no GPU.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def toolkit():
    """(nvcc, options for its headers)"""
    run = subprocess.run([os.path.join(ROOT, "tools/find_cuda.py")], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"no CUDA toolkit: {run.stderr.strip()}")
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    (nvcc,) = [value for key, value in lines if key == "nvcc"]
    return nvcc, [word for key, value in lines if key == "include" for word in ("-isystem", value)]


def resources(source, architectures):
    """{(kernel, architecture): (registers, bytes of shared memory, bytes that are spilled)}"""
    nvcc, includes = toolkit()
    targets = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in architectures]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([nvcc, "-std=c++20", "-O3", "-fmad=false", "-Xptxas=-v", *targets, "-I" + ROOT, *includes, "-c",
                              source, "-o", os.path.join(folder, "o")], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{source} does not compile:\n{run.stderr[-2000:]}")
    found, key, spilled = {}, None, 0
    for line in run.stderr.splitlines():
        if entry := ENTRY.search(line):
            key, spilled = entry.groups(), 0
        elif spills := SPILLS.search(line):
            spilled = int(spills[1])
        elif (used := USED.search(line)) and key:
            shared = SHARED.search(line)
            found[key] = (int(used[1]), int(shared[1]) if shared else 0, spilled)
    return found


def readable(name):
    text = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
    return re.sub(r"^void ", "", re.sub(r"\(.*", "", re.sub(r"duet::cuda::kernels::(\(anonymous namespace\)::)?", "", text)))


def main(arguments):
    each = "--kernels" in arguments
    architectures = [a for a in arguments if a != "--kernels"] or ["80", "90", "100", "120"]
    if not all(re.fullmatch(r"\d+", a) for a in architectures):
        raise SystemExit(__doc__)
    sources = sorted(glob.glob(os.path.join(ROOT, "lib/backend/cuda/kernels/*.cu")))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tables = list(pool.map(lambda source: resources(source, architectures), sources))
    print("| Source | Kernels | Registers on " + " | ".join(f"sm_{n}" for n in architectures) + " | Shared memory | Spills |")
    print("|---" * (len(architectures) + 4) + "|")
    for source, table in zip(sources, tables):
        kernels = sorted({name for name, _ in table})
        groups = [[name] for name in kernels] if each else [kernels]
        for group in groups:
            of = {n: [table[name, n] for name in group if (name, n) in table] for n in architectures}
            title = readable(group[0]) if each else os.path.basename(source)
            registers = " | ".join(str(max(used[0] for used in of[n])) for n in architectures)
            shared = max(used[1] for n in architectures for used in of[n])
            most = {n: max(used[2] for used in of[n]) for n in architectures}
            spills = ", ".join(f"{spilled} on sm_{n}" for n, spilled in most.items() if spilled)
            print(f"| `{title}` | {len(group)} | {registers} | {shared} | {spills or 0} |")


if __name__ == "__main__":
    main(sys.argv[1:])
