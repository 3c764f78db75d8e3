#!/usr/bin/env python3
"""Injects faults into duet's kernels, one at a time, and fails if the suite ptx does not find one. A third of them is drawn.

    planted.py [--only NUMBER]... PROGRAM OBJECT... -- NVCC [ARGUMENT...]

PROGRAM is test_ptx, the OBJECTs are its kernels. Each fault is compiled by nvcc into one of them; the program then runs
the cases of that source with a library of the objects in place of its own. What it printed is summed up: wrong values,
bits that differ, and the interpreter's findings.
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from drawn import is_drawn, note

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
KERNELS = "lib/backend/cuda/kernels"

# (fault, file, what stands there, what stands there instead, source that is compiled, test case)
FAULTS = (
    ("no barrier in block_reduce", "reduce.h", "  part[threadIdx.x] = value;\n  __syncthreads();",
     "  part[threadIdx.x] = value;", "update", "updates of parameters"),
    ("no barrier in block_sum_for_all", "reduce.h", "the next but one the total.\n  __syncthreads();",
     "the next but one the total.", "batch_norm", "batch norms"),
    ("no barrier in small_linear's forward", "linear.cu", "part[warp][o][lane] = sum[o];\n  __syncthreads();",
     "part[warp][o][lane] = sum[o];", "linear", "small linear layers"),
    ("no barrier in the convolution's partial sums", "conv_one_channel.cu",
     "part[i][threadIdx.x] = sum[i];\n  __syncthreads();", "part[i][threadIdx.x] = sum[i];", "conv_one_channel",
     "convolutions of one channel"),
    ("no barrier before the next channels of a 3x3 convolution", "conv3x3.cu",
     "__syncthreads();\n    stage.store(patch, taps);", "stage.store(patch, taps);", "conv3x3",
     "convolutions with 3x3 filters"),
    ("a product of matrices in a branch", "conv3x3.cu", "          multiply_add(sums[j], a, b);",
     "          if (outer != 0) multiply_add(sums[j], a, b);", "conv3x3", "convolutions with 3x3 filters"),
    ("an output channel too far in a 3x3 convolution", "conv3x3.cu", "if (row < c.outputs) place[0]",
     "if (row <= c.outputs) place[0]", "conv3x3", "convolutions with 3x3 filters"),
    ("no bound in gather", "elementwise.cu", "if (i >= batch.threads) return;", "", "elementwise", "gathering images"),
    ("a bound one too far in relu_backward", "elementwise.cu", "if (i < n) dx[i] =", "if (i <= n) dx[i] =",
     "elementwise", "elementwise kernels"),
    ("fours without a look at the alignment", "update.cu",
     "const bool alike = ((offset(others) == offset(first)) && ...);",
     "const bool alike = true; (void)sizeof...(others);", "update", "updates of parameters"),
    ("pairs without a look at the alignment", "conv_epilogue.cu",
     "shape.width % 2 == 0 && aligned(image, sizeof(float2));", "shape.width % 2 == 0;", "conv_epilogue",
     "convolutions' biases and pools"),
    ("a shuffle in a branch", "loss.cu", "from[c]);\n  largest = warp_max(largest);",
     "from[c]);\n  if (lane < classes) largest = warp_max(largest);", "loss", "losses"),
    ("a barrier in a branch", "linear.cu", "  part[group][lane] = total;\n  __syncthreads();",
     "  part[group][lane] = total;\n  if (column < columns) __syncthreads();", "linear",
     "linear layers' biases and roundings"),
    ("__restrict__ where arrays overlap", "loss.cu", "log_softmax_forward_kernel(const float* x,",
     "log_softmax_forward_kernel(const float* __restrict__ x,", "loss", "losses"),
    ("a place without its outermost loop", "pointwise.cu", "place.at[t] = outer * walk.strides[t][0]", "place.at[t] = 0", "pointwise",
     "functions of elements"),
    ("the last term of a sum left out", "pointwise.cu", "term < terms;", "term + 1 < terms;", "pointwise", "functions of elements"),
    ("no bound of a table's index", "pointwise.cu", "index >= 0 && index < rows ?", "index >= 0 ?", "pointwise",
     "functions of elements"),
    ("the mask's last column left out", "elementwise.cu", "if (e < columns) mask", "if (e < columns - 1) mask", "elementwise",
     "dropout"),
    ("the first step of shuffles left out", "reduce.h",
     "  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);",
     "  for (int step = kWarp / 4; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);",
     "conv_one_channel", "convolutions of one channel"),
    ("two blocks write one place", "conv_one_channel.cu",
     "(static_cast<int>(blockIdx.y) * g.channels + channel) * kSums + i] = total", "channel * kSums + i] = total",
     "conv_one_channel", "convolutions of one channel"),
    ("partial sums that are not written", "conv_one_channel.cu", "if (lane == 0) partials[",
     "if (lane == 0 && i != 4) partials[", "conv_one_channel", "convolutions of one channel"),
    ("the counter ignored", "reduce.h", "if (counted.counter != nullptr) draw.step += *counted.counter;", "", "elementwise",
     "dropout"),
    ("products that ptxas may fuse", "", "", "", "update", "ptxas may fuse no product of the kernels"),
)


def compiled(folder, fault, compiler):
    """The object of a source with the fault in it."""
    _, file, old, new, source, _ = fault
    path = os.path.join(ROOT, KERNELS, source + ".cu")
    if file:
        with open(os.path.join(ROOT, KERNELS, file), encoding="utf-8") as original:
            text = original.read()
        if old not in text:
            raise SystemExit(f"{file} has no {old!r}: the planted fault must follow the source")
        changed = os.path.join(folder, KERNELS, file)
        os.makedirs(os.path.dirname(changed))
        with open(changed, "w", encoding="utf-8") as copy:
            copy.write(text.replace(old, new))
        path = changed if file.endswith(".cu") else path
    else:
        compiler = [argument for argument in compiler if argument != "-fmad=false"]
    out = os.path.join(folder, source + ".ptx.o")
    run = subprocess.run([compiler[0], "-I" + folder, *compiler[1:], "-c", path, "-o", out], capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{fault[0]}: does not compile:\n{run.stderr[-2000:]}")
    return out


def found(fault, program, objects, compiler):
    """What the program says of the kernels with a fault; empty when nothing."""
    with tempfile.TemporaryDirectory() as folder:
        made = compiled(folder, fault, compiler)
        library = os.path.join(folder, "libptx_kernels.so")
        others = [o for o in objects if os.path.basename(o) != os.path.basename(made)]
        if len(others) != len(objects) - 1:
            raise SystemExit(f"no object of {fault[4]}")
        # The program takes a library of this name for its own.
        subprocess.run(["g++", "-shared", "-Wl,-soname,libptx_kernels.so", "-o", library, made, *others], check=True)
        run = subprocess.run([program, "ptx: " + fault[5]], capture_output=True, text=True, check=False,
                             env=os.environ | {"LD_PRELOAD": library, "DUET_PTX_ORDERS": "2"})
    kinds = re.findall(r"^fault: (.*) x \d+$", run.stdout, re.M)
    if "fusible_products" in run.stdout:
        kinds.append("products that may be fused")
    if run.returncode == 0 or not re.search(r"[1-9]\d* failed", run.stderr):
        return []
    return kinds or ["a failure of another kind:\n" + run.stdout[-2000:]]


def main(arguments):
    only = []
    while arguments and arguments[0] == "--only":
        only.append(int(arguments[1]))
        arguments = arguments[2:]
    end = arguments.index("--")
    program, objects = arguments[0], arguments[1:end]
    compiler = [a for a in arguments[end + 1 :] if not a.startswith("-gencode") or "compute_90" in a]
    missed = 0
    chosen = [(n, fault) for n, fault in enumerate(FAULTS) if (n in only if only else is_drawn(n))]
    for number, fault in chosen:
        kinds = found(fault, program, objects, compiler)
        missed += not kinds
        print(f"{number:2} {fault[0]}: {'; '.join(kinds) or 'NOT FOUND'}", flush=True)
    print(note())
    print(f"{len(chosen) - missed} passed, {missed} failed, 0 skipped")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
