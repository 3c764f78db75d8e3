#!/usr/bin/env python3
"""The headers that are installed: duet.h, and all that it includes, directly or not; with LibTorch also those of torch/.

    public_headers.py [--torch]                  prints them, relative to the root of the tree; with --torch what the
                                                 headers for LibTorch include, instead
    public_headers.py --qualify DIR [--torch]    called by `meson install`, after it has copied them to DIR under its
                                                 prefix: makes #include "lib/tensor.h" in them #include
                                                 <duet/lib/tensor.h>, so that a folder lib/ of another project is not
                                                 taken for duet's
"""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
UMBRELLA = "duet.h"
FOR_TORCH = ("torch/ddp.h", "torch/dp.h", "torch/module_adapter.h", "torch/c10d/backend.h")
# Never installed: of programs, of the backends' insides, of single source files.
PRIVATE = re.compile(r"lib/backend/(arithmetic\.h|(cpu|cuda)/.*)|ddp/(gloo|mpi|nccl)/.*|ddp/store/(connection|tcp_store_wire)\.h|(cli|examples|tests)/.*")
INCLUDE = re.compile(r'^(\s*#\s*include\s*)"([^"\n]+)"', re.M)
ONCE = "#pragma once\n"
# An older standard is reported once, not once more by every line that needs this one.
NEEDS_CPP20 = f"""{ONCE}
#if __cplusplus < 202002L
#error "duet needs C++20: compile with -std=c++20 or newer"
#else
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def public_headers(root, first=(UMBRELLA,)):
    """Sorted paths; one that does not exist is among them, so that a check can say so. LibTorch's own are not."""
    found, waiting = set(), list(first)
    while waiting:
        header = waiting.pop()
        if header not in found:
            found.add(header)
            path = os.path.join(root, header)
            waiting += [name for _, name in INCLUDE.findall(read(path))] if os.path.exists(path) else []
    return sorted(found)


def qualify(folder, first):
    prefix = os.environ["MESON_INSTALL_DESTDIR_PREFIX"]
    folder = os.environ.get("DESTDIR", "") + folder if os.path.isabs(folder) else os.path.join(prefix, folder)
    for header in public_headers(ROOT, first):
        path = os.path.join(folder, header)
        if not os.path.exists(path):
            sys.exit(f"public_headers: {header} was not installed: run meson setup --reconfigure, then install again")
        text = INCLUDE.sub(r"\1<duet/\2>", read(os.path.join(ROOT, header)))
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(ONCE, NEEDS_CPP20, 1) + "#endif\n")


if __name__ == "__main__":
    entries = FOR_TORCH if sys.argv[-1] == "--torch" else (UMBRELLA,)
    if sys.argv[1:2] == ["--qualify"]:
        qualify(sys.argv[2], entries)
    else:
        print("\n".join(public_headers(ROOT, entries)))
