#!/usr/bin/env python3
"""Compiles every file with device code for sm_90 and fails where ptxas reports a kernel that spills registers.

    no_spills.py --kernels FILE... -- NVCC [ARGUMENT...]
    no_spills.py --skip REASON

A spill is a variable that found no register and lives in memory. A planted kernel that must spill is seen to be found.
"""
import os
import re
import subprocess
import sys
import tempfile

KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_90'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")

# 32 registers cannot hold 64 values that are all read at the end.
PLANTED = """
__global__ void __launch_bounds__(1024, 2) planted(const float* x, float* y) {
  float value[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) value[i] = x[threadIdx.x + 1024 * i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) y[threadIdx.x + 1024 * i] = value[i] * value[63 - i] + x[i];
}
"""


def readable(name):
    run = subprocess.run(["c++filt", name], capture_output=True, text=True, check=False)
    return run.stdout.strip() or name


def spills(file, compiler, folder):
    """(kernels in the file, lines about those that spill)"""
    target = ["-gencode=arch=compute_90,code=sm_90", "-Xptxas=-v", "-cubin", "-o", os.path.join(folder, "out.cubin")]
    run = subprocess.run([*compiler, *target, file], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{file} does not compile:\n{run.stderr[-2000:]}")
    kernels, found, kernel = 0, [], ""
    for line in run.stderr.splitlines():
        entry = KERNEL.search(line)
        numbers = SPILLS.search(line)
        if entry:
            kernel = entry.group(1)
            kernels += 1
        elif numbers and (int(numbers.group(1)) or int(numbers.group(2))):
            found.append(f"{os.path.basename(file)}: {readable(kernel)}: {numbers.group()}")
    return kernels, found


def main(arguments):
    if arguments[0] == "--skip":
        print(f"skipped: no CUDA toolkit: {arguments[1]}")
        return 77
    end = arguments.index("--")
    files, compiler = arguments[1:end], arguments[end + 1 :]
    kernels, failed = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        planted = os.path.join(folder, "planted.cu")
        with open(planted, "w", encoding="utf-8") as out:
            out.write(PLANTED)
        if not spills(planted, compiler, folder)[1]:
            print("a planted spill was not found", file=sys.stderr)
            failed += 1
        for file in files:
            count, found = spills(file, compiler, folder)
            kernels += count
            failed += bool(found)
            for line in found:
                print(line, file=sys.stderr)
    print(f"{kernels} kernels in {len(files)} files")
    print(f"{len(files) + 1 - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed or (files and kernels == 0) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
