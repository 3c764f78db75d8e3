#!/usr/bin/env python3
"""Finds LibTorch, PyTorch's C++ library, and prints what a build needs of it.

    find_torch.py [FOLDER]   FOLDER: a Python environment with PyTorch's wheel, an unpacked LibTorch, or a prefix such as
                             /usr; nothing else is looked at then

Without a folder the first complete one of these is taken: $LIBTORCH, /usr (Debian's libtorch-dev), /usr/local, and the
wheel of the python3 on PATH. Prints lines of a key, a tab and a value: version, include (two), folder (of the
libraries), library.torch_cpu, library.c10. Where nothing is found, the standard error says what each place lacks, and
the exit status is 1.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

OLDEST = (1, 13)
LIBRARIES = ("torch_cpu", "c10")  # the rest of LibTorch is for GPUs and Python


def first(paths):
    return next((path for path in paths if os.path.exists(path)), "")


def roots(folder):
    """A folder with include/ and lib/ as it is; of a Python environment, the package in it."""
    yield folder
    yield from sorted(glob.glob(os.path.join(folder, "lib", "python3*", "site-packages", "torch")))
    yield os.path.join(folder, "torch")  # of a folder site-packages


def places():
    """(where it was said, folder) in the order of search."""
    if os.environ.get("LIBTORCH"):
        yield "$LIBTORCH", os.environ["LIBTORCH"]
    yield "the system", "/usr"
    yield "the system", "/usr/local"
    python = shutil.which("python3")
    if python:
        run = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                             capture_output=True, text=True, check=False)
        if run.returncode == 0:
            yield "python3 on PATH", run.stdout.strip()


def version_of(include):
    """Of LibTorch's own header, as numbers; empty where there is none."""
    header = first(os.path.join(include, name) for name in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"))
    if not header:
        return ()
    with open(header, encoding="utf-8") as file:
        text = file.read()
    found = [re.search(rf"#define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return tuple(int(number[1]) for number in found) if all(found) else ()


def examine(root):
    """(lines to print, what is missing)"""
    include = os.path.join(root, "include")
    api = os.path.join(include, "torch", "csrc", "api", "include")
    if not os.path.exists(os.path.join(api, "torch", "torch.h")):
        return [], f"no torch/torch.h in {include}"
    version = version_of(include)
    if version < OLDEST:
        return [], f"{root} has version {'.'.join(map(str, version)) or 'unknown'}, 1.13 or newer is needed"
    config = os.path.join(root, "share", "cmake", "Torch", "TorchConfig.cmake")
    if os.path.exists(config):
        with open(config, encoding="utf-8") as file:
            if "_GLIBCXX_USE_CXX11_ABI=0" in file.read():
                return [], f"{root} was built for the old ABI of libstdc++: use 2.7 or newer, or a cxx11-abi build"
    lines = [f"version\t{'.'.join(map(str, version))}", f"include\t{include}", f"include\t{api}"]
    for name in LIBRARIES:
        patterns = [os.path.join(root, "lib", f"lib{name}.so"), os.path.join(root, "lib", "*-linux-gnu", f"lib{name}.so")]
        library = first(path for pattern in patterns for path in sorted(glob.glob(pattern)))
        if not library:
            return [], f"no lib{name}.so in {os.path.join(root, 'lib')}"
        if name == LIBRARIES[0]:
            lines.append(f"folder\t{os.path.dirname(library)}")
        lines.append(f"library.{name}\t{library}")
    return lines, ""


def find(folders):
    """(lines to print, why there are none)"""
    reasons = []
    for name, folder in [("the given folder", folder) for folder in folders] or places():
        found = [examine(os.path.abspath(root)) for root in roots(folder)]
        for lines, _ in found:
            if lines:
                return lines, ""
        # What lacks only a part says more than what lacks everything.
        reasons.append(f"{name}: {next((why for _, why in found if 'no torch/torch.h' not in why), found[0][1])}")
    return [], "; ".join(reasons)


def main(arguments):
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    lines, why = find(arguments)
    print("\n".join(lines) if lines else why, file=sys.stdout if lines else sys.stderr)
    return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
