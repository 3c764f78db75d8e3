#!/usr/bin/env python3
"""Compiles every file with device code for sm_90 and fails where ptxas reports a kernel that spills registers, or where
it is free to fuse a product with a sum.

    device_code.py --kernels FILE... -- NVCC [ARGUMENT...]
    device_code.py --skip REASON

A spill is a variable that found no register and lives in memory. A product or a sum without a rounding mode in PTX may
become part of an fma, in one path of a kernel and not in another that must have its bits. A planted kernel of each kind
is seen to be found.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_90'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
ENTRY = re.compile(r"\.entry (\w+)\(")
FUSIBLE = re.compile(r"\b(?:add|sub|mul)(?:\.ftz|\.sat)*\.f(?:16|32|64)(?:x2)?\b")

# 32 registers cannot hold 64 values that are all read at the end.
SPILLING = """
__global__ void __launch_bounds__(1024, 2) planted(const float* x, float* y) {
  float value[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) value[i] = x[threadIdx.x + 1024 * i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) y[threadIdx.x + 1024 * i] = value[i] * value[63 - i] + x[i];
}
"""
FUSED = "__global__ void planted(float a, float b, float* y) { *y = a * b + *y; }"


def readable(name):
    run = subprocess.run(["c++filt", name], capture_output=True, text=True, check=False)
    return run.stdout.strip() or name


def fusible(ptx):
    """The lines of PTX that ptxas may fuse, each with its kernel."""
    found, kernel = [], ""
    for line in ptx.splitlines():
        entry = ENTRY.search(line)
        kernel = entry.group(1) if entry else kernel
        if FUSIBLE.search(line):
            found.append(f"{readable(kernel)}: {line.strip()}")
    return found


def compiled(file, compiler, folder):
    """(kernels in the file, lines about those that spill, lines about what may be fused, the PTX)"""
    target = ["-gencode=arch=compute_90,code=sm_90", "-Xptxas=-v", "-cubin", "-o", os.path.join(folder, "out.cubin"),
              "-keep", "-keep-dir", folder]
    run = subprocess.run([*compiler, *target, file], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{file} does not compile:\n{run.stderr[-2000:]}")
    kernels, spills, kernel, name = 0, [], "", os.path.basename(file)
    for line in run.stderr.splitlines():
        entry = KERNEL.search(line)
        numbers = SPILLS.search(line)
        if entry:
            kernel = entry.group(1)
            kernels += 1
        elif numbers and (int(numbers.group(1)) or int(numbers.group(2))):
            spills.append(f"{name}: spill: {readable(kernel)}: {numbers.group()}")
    (made,) = glob.glob(os.path.join(folder, os.path.splitext(name)[0] + "*.ptx"))
    with open(made, encoding="utf-8") as text:
        ptx = text.read()
    return kernels, spills, [f"{name}: may be fused: {line}" for line in fusible(ptx)], ptx


def unfound(compiler, folder):
    """What is planted and not found, and fusing where the arguments should forbid it."""
    def planted(name, text, arguments):
        file = os.path.join(folder, name)
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
        return compiled(file, arguments, folder)

    free = [argument for argument in compiler if not argument.startswith("-fmad")]
    if not planted("spilling.cu", SPILLING, compiler)[1]:
        yield "a planted spill was not found"
    if "fma.rn.f32" not in planted("fused.cu", FUSED, free)[3]:
        yield "a planted product and sum were not fused"
    if not fusible("add.f32 \t%f3, %f1, %f2;"):
        yield "a planted sum without a rounding mode was not found"
    if "fma.rn.f32" in planted("apart.cu", FUSED, compiler)[3]:
        yield "nvcc's arguments let it fuse products with sums: -fmad=false is missing"


def main(arguments):
    if arguments[0] == "--skip":
        print(f"skipped: no CUDA toolkit: {arguments[1]}")
        return 77
    end = arguments.index("--")
    files, compiler = arguments[1:end], arguments[end + 1 :]
    kernels = 0
    with tempfile.TemporaryDirectory() as folder:
        missed = list(unfound(compiler, folder))
        print(*missed, sep="\n", file=sys.stderr)
        failed = 1 if missed else 0
        for file in files:
            count, spills, fuses, _ = compiled(file, compiler, folder)
            kernels += count
            failed += bool(spills or fuses)
            for line in (*spills, *fuses[:5]):
                print(line, file=sys.stderr)
    print(f"{kernels} kernels in {len(files)} files")
    print(f"{len(files) + 1 - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed or (files and kernels == 0) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
