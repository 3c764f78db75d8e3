#!/usr/bin/env python3
"""Lets tools/find_cuda.py look at made-up toolkits: the order of places, and what is said of incomplete ones."""
import os
import subprocess
import sys

from gpu_check import report

FIND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/find_cuda.py")
HEADERS = ("cuda_runtime.h", "crt/host_defines.h", "nv/target", "cublas_v2.h", "cudnn.h", "nccl.h")
LIBRARIES = ("libcudart_static.a", "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2")


def write(file, text=""):
    os.makedirs(os.path.dirname(file), exist_ok=True)
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)


def toolkit(root, version="13.1", headers=HEADERS, libraries=LIBRARIES):
    nvcc = os.path.join(root, "bin/nvcc")
    write(nvcc, f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.0'\n")
    os.chmod(nvcc, 0o755)
    for header in headers:
        write(os.path.join(root, "include", header))
    for library in libraries:
        write(os.path.join(root, "lib", library))
    return root


def run(home, *arguments, **variables):
    environment = {"PATH": "/usr/bin:/bin", "HOME": home, **variables}
    command = [sys.executable, FIND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def found(result):
    values = dict(line.split("\t") for line in result.stdout.splitlines())
    return values.get("root"), values.get("version")


def cases(folder):
    home = os.path.join(folder, "home")
    good = toolkit(os.path.join(folder, "good"))
    other = toolkit(os.path.join(folder, "other"), version="13.2")
    old = toolkit(os.path.join(folder, "old"), version="12.4")
    bare = toolkit(os.path.join(folder, "bare"), headers=[h for h in HEADERS if h != "cublas_v2.h"])
    wheels = toolkit(os.path.join(home, ".cache/duet/cuda/lib/python3.11/site-packages/nvidia/cu13"), version="13.9",
                     libraries=[name for name in LIBRARIES if "nccl" not in name])
    write(os.path.join(os.path.dirname(wheels), "nccl/lib/libnccl.so.2"))
    yield "CUDA_HOME goes first", found(run(home, CUDA_HOME=good, CUDA_PATH=other)) == (good, "13.1")
    yield "CUDA_PATH is next", found(run(home, CUDA_HOME="/nowhere", CUDA_PATH=other)) == (other, "13.2")
    yield "nvcc on PATH", found(run(home, PATH=f"{other}/bin:/usr/bin:/bin")) == (other, "13.2")
    yield "one's own environment goes before all", found(run(home, CUDA_HOME=good, DUET_CUDA_ENV=other))[0] == other
    yield "an old toolkit is passed over", found(run(home, CUDA_HOME=old, CUDA_PATH=good))[0] == good
    yield "wheels in one folder", found(run(home, os.path.join(home, ".cache/duet/cuda"))) == (wheels, "13.9")
    yield "a place named twice keeps its first rank", found(
        run(home, DUET_CUDA_ENV=good, CUDA_HOME=other, CUDA_PATH=good))[0] == good
    compiler = toolkit(os.path.join(folder, "compiler"), headers=[h for h in HEADERS if h not in ("cudnn.h", "nccl.h")],
                       libraries=[name for name in LIBRARIES if "cudnn" not in name and "nccl" not in name])
    site = os.path.join(folder, "python")
    for name, library in (("cudnn", "libcudnn.so.9"), ("nccl", "libnccl.so.2")):
        write(os.path.join(site, "nvidia", name, "include", name + ".h"))
        write(os.path.join(site, "nvidia", name, "lib", library))
    write(os.path.join(folder, "bin/python3"), f"#!/bin/sh\necho {site}\n")
    os.chmod(os.path.join(folder, "bin/python3"), 0o755)
    ways = {"given": lambda: run(os.path.join(folder, "nobody"), compiler, site)}
    if not os.path.exists("/usr/local/cuda"):  # which is complete where it is
        ways["found"] = lambda: run(os.path.join(folder, "nobody"), CUDA_HOME=compiler, PATH=f"{folder}/bin:/usr/bin:/bin")
    for way, find in ways.items():
        lines = find().stdout.splitlines()
        yield f"cuDNN and NCCL of a Python environment join a toolkit, {way}", {
            f"root\t{compiler}", f"library.nccl\t{site}/nvidia/nccl/lib/libnccl.so.2",
            f"include\t{site}/nvidia/cudnn/include"} <= set(lines)
    for name in ("cudnn", "nccl"):
        write(os.path.join(site, f"nvidia_{name}_cu12-9.9.dist-info/METADATA"))
    result = run(os.path.join(folder, "nobody"), compiler, site)
    yield "wheels for another CUDA do not join", result.returncode == 1 and "cudnn" in result.stderr
    for name in ("cudnn", "nccl"):
        write(os.path.join(site, f"nvidia_{name}_cu13-9.9.dist-info/METADATA"))
    yield "wheels for this CUDA join", found(run(os.path.join(folder, "nobody"), compiler, site))[0] == compiler
    joined = found(run(home, CUDA_HOME=compiler, CUDA_PATH=good, PATH=f"{folder}/bin:/usr/bin:/bin"))
    yield "a complete place goes before a joined one", joined[0] == good
    result = run(home, old)
    yield "too old, said so", result.returncode == 1 and "is of CUDA 12.4, 13 or newer is needed" in result.stderr
    result = run(home, bare)
    yield "what is missing is named", result.returncode == 1 and f"no cublas_v2.h in {bare}" in result.stderr
    result = run(home, "/nowhere")
    yield "nothing there", result.returncode == 1 and "no /nowhere/bin/nvcc" in result.stderr and not result.stdout
    yield "wrong use", run(home, "--what").returncode == 2


if __name__ == "__main__":
    sys.exit(report(cases))
