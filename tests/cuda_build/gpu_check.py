#!/usr/bin/env python3
"""Runs tools/gpu_check.sh as a bundle does, with stand-ins for its programs and NVIDIA's tools: which part calls what, in
which order, what is left behind, and how a part ends that takes too long."""
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools")
DUET = r"""#!/bin/sh
echo "duet $1" >>"$CALLS"
case " $* " in
  *' --json '*) echo '"why_no_cuda": ""' ;;
  *' --step-times '*) while [ "$1" != --step-times ]; do shift; done; seq 100 160 >"$2" ;;
  *' --epochs 10 '*) echo 'epoch 10: 0.03 s  loss 0.02  accuracy 99.01 %' ;;
esac
"""
TEST_CUDA = r"""#!/bin/sh
case " $* " in
  *' --list-tags '*) echo '  2  [#test_hangs]'; echo '  3  [#test_losses]' ;;
  *) echo "test_cuda $2" >>"$CALLS"
     [ -z "$HANG" ] || exec sleep 600
     echo "3 passed, 0 failed, 0 skipped" ;;
esac
"""
SANITIZER = r"""#!/bin/sh
echo "sanitizer $*" >>"$CALLS"
tool=$2
case " $* " in
  *' --report-api-errors no '*) [ "$tool" = memcheck ] || { echo "unknown option of $tool"; exit 1; } ;;
  *) [ "$tool" != memcheck ] || { echo '========= Program hit cudaErrorNotSupported in cuDNN'; exit 9; } ;;
esac
"""
NCU = r"""#!/bin/sh
echo ncu >>"$CALLS"
echo '"ID","Kernel Name","gpu__time_duration.sum"'
echo '"","","ns"'
for step in 1 2 3; do echo '"0","gather","1,000"'; echo '"1","sgd","2,000"'; done
"""
PARTS = ("tests", "speed", "sanitizers", "kernels")
PROGRAMS = {"bundle/bin/duet": DUET, "bundle/bin/test_cuda": TEST_CUDA, "tools/compute-sanitizer": SANITIZER, "tools/ncu": NCU}


class Check:
    """A folder that looks like a bundle, and the tools of a machine with a GPU."""

    def __init__(self, folder, programs=PROGRAMS):
        self.folder, self.out, self.calls = folder, os.path.join(folder, "out"), os.path.join(folder, "calls")
        bundle = os.path.join(folder, "bundle")
        for name, text in programs.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        with tarfile.open(os.path.join(bundle, "programs.tar.gz"), "w:gz") as tar:
            tar.add(os.path.join(bundle, "bin"), "bin")
        os.makedirs(os.path.join(bundle, "mnist"))
        open(os.path.join(bundle, "mnist/train-images-idx3-ubyte"), "w", encoding="utf-8").close()
        shutil.copy(os.path.join(TOOLS, "gpu_check.sh"), os.path.join(bundle, "check.sh"))
        shutil.copy(os.path.join(TOOLS, "kernel_times.py"), bundle)
        self.script = os.path.join(bundle, "check.sh")

    def run(self, *arguments, **variables):
        """Exit status, what was printed, and the programs that were called, in order and each once in a row."""
        open(self.calls, "w", encoding="utf-8").close()
        environment = {**os.environ, "PATH": f"{self.folder}/tools:/usr/bin:/bin", "CALLS": self.calls, **variables}
        done = subprocess.run(["bash", self.script, "--out", self.out, *arguments], capture_output=True, text=True,
                              env=environment, check=False, timeout=1800)
        with open(self.calls, encoding="utf-8") as file:
            self.lines = file.read().splitlines()
        called = []
        for line in self.lines:
            if line != "duet info" and called[-1:] != [line.split()[0]]:
                called.append(line.split()[0])
        return done.returncode, done.stdout + done.stderr, called

    def lines_of(self, *arguments):
        self.run(*arguments)
        return [line for line in self.lines if line != "duet info"]

    def left(self):
        return sorted(os.listdir(self.out))


def cases(folder):
    check = Check(folder)
    status, text, called = check.run()
    yield "all parts pass", status == 0 and re.search(r"\n\d+ passed, 0 failed\n$", text), text
    yield "sanitizers go before profilers", called == ["test_cuda", "duet", "sanitizer", "ncu"], called
    left = check.left()
    yield "at most 8 files are left", 0 < len(left) <= 8, left
    yield "names are of letters, digits, dot and dash", all(re.fullmatch(r"[A-Za-z0-9.-]+", name) for name in left), left
    for part, programs in zip(PARTS, (["test_cuda"], ["duet"], ["sanitizer"], ["ncu"])):
        status, text, called = check.run("--only", part)
        yield f"--only {part} does that alone", status == 0 and called == programs, (status, called, text)
    yield "a part leaves the other parts' files", check.left() == left, check.left()
    checks = [line.split() for line in check.lines_of("--only", "sanitizers")]
    yield "memcheck is told not to count API calls that fail", all(
        ("--report-api-errors" in words) == ("memcheck" in words) for words in checks) and len(checks) == 3, checks
    status, text, _ = check.run("--only", "tests", "--limit", "2", HANG="1")
    yield "a part that hangs is ended in time, and what it left out is said", (
        status == 1 and "test_hangs was ended" in text and "test_losses was not run" in text), text
    for wrong in (("--only", "all"), ("--limit", "0"), ("--limit", "1h"), ("--what",)):
        status, text, called = check.run(*wrong)
        yield f"{' '.join(wrong)} is refused", status == 2 and not called and "gpu_check.sh" in text, (status, text)
    for name in ("compute-sanitizer", "ncu"):
        os.remove(os.path.join(folder, "tools", name))
    status, text, _ = check.run("--only", "sanitizers")
    yield "a part whose tool is missing has checked nothing, and fails", status == 1 and "is not installed" in text, text
    status, text, _ = check.run()
    yield "of all parts it is left out", status == 0 and "is not installed" in text, text


def report(cases_of, *arguments):
    """Prints the name of each case that is false, and the counts; the exit status. The cases share an empty folder."""
    failed = passed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, good, *shown in cases_of(os.path.realpath(folder), *arguments):
            passed += bool(good)
            failed += not good
            if not good:
                print(f"FAILED: {name}:", *shown)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(report(cases))
