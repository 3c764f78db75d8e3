#!/usr/bin/env python3
"""A dress rehearsal of tools/gpu_check.sh: the whole script with the real programs, on simulated devices.

    rehearsal.py DUET TEST_CUDA CUDA_MODULE NCCL_MODULE

Names of tests, options of the programs, files, limits and exit codes are those of a GPU machine. Trainings are shorter, of
a linear model where the script times steps; compute-sanitizer and Nsight Compute only run the program, and the latter
prints a table of two kernels; the accuracy of ten epochs is made up. Then a kernel fails, which every part must say.
"""
import os
import re
import sys

from gpu_check import Check, report

SIMULATED = """#!/bin/bash
export DUET_CUDA_MODULE={module} DUET_NCCL_MODULE={nccl} OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive UCX_VFS_ENABLE=n
"""
DUET = r"""
[[ " $* " == *' --step-times '* ]] && set -- "$@" --model linear --batch 16 --train-images 512
[[ " $* " == *' --train-images 1280 '* ]] && set -- "$@" --model linear --train-images 256
if [[ " $* " == *' --epochs 10 '* ]]; then
  "{duet}" train --quiet --device cuda --precision tf32 --graph on --data synthetic --model linear --epochs 1 --train-images 128 --test-images 64 || exit
  echo 'epoch 10: 0.03 s  loss 0.02  accuracy 99.01 %'
  exit
fi
exec "{duet}" "$@"
"""
# Runs what stands behind the options, the first word that is a program.
TOOL = r"""#!/bin/bash
while [ $# -gt 0 ] && [ ! -x "$1" ]; do shift; done
"$@" || exit
"""
NCU_TABLE = r"""
echo '"ID","Kernel Name","gpu__time_duration.sum"'
echo '"","","ns"'
for step in 1 2 3; do echo '"0","gather","1,000"'; echo '"1","sgd","2,000"'; done
"""


def cases(folder, duet, tests, module, nccl):
    simulated = SIMULATED.format(module=module, nccl=nccl)
    check = Check(folder, {"bundle/bin/duet": simulated + DUET.replace("{duet}", duet),
                           "bundle/bin/test_cuda": simulated + f'exec "{tests}" "$@"\n',
                           "tools/compute-sanitizer": TOOL, "tools/ncu": TOOL + NCU_TABLE})
    status, text, _ = check.run()
    print(text)
    yield "all parts pass", status == 0 and re.search(r"\n\d+ passed, 0 failed\n$", text), text
    yield "every group of tests is run", len(re.findall(r"^  test_\w+ +\d+ passed, 0 failed", text, re.M)) >= 15, text
    yield "rows of all precisions are timed", len(re.findall(r"^  round \d  duet", text, re.M)) == 21, text
    yield "all sanitizers find nothing", text.count("nothing found") == 3, text
    left = check.left()
    expected = ["epochs.log", "kernels-bf16.log", "kernels-tf32.log", "sanitizers.log", "speed.log", "step-times.tsv", "tests.log"]
    yield "the logs are left", left == expected, left
    for part in ("speed", "sanitizers"):
        status, text, _ = check.run("--only", part, DUET_SIM_FAIL="kernel:20+")
        yield f"a kernel that fails fails the {part}", status == 1 and "FAILED" in text and "kernel" in text, text
    status, text, _ = check.run("--only", "tests", "--limit", "1")
    yield "tests that take too long are said", status == 1 and "was not run: the tests' 1 s are over" in text, text


if __name__ == "__main__":
    sys.exit(report(cases, *map(os.path.realpath, sys.argv[1:])))
