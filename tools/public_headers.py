#!/usr/bin/env python3
"""The headers that are installed: all but those of programs, of the backends' insides and of single source files.

    public_headers.py                  prints them
    public_headers.py --install DIR    copies them to DIR under the installation's prefix, called by `meson install`
"""
import os
import re
import shutil
import sys

FOLDERS = ("lib", "samplers", "dp", "ddp")
PRIVATE = re.compile(r"lib/backend/(arithmetic|cpu|cuda)/.*|ddp/(gloo|nccl)/.*|ddp/(asio|tcp_store_server)\.h|(cli|examples|tests)/.*")


def is_public(path):
    return path.endswith(".h") and not PRIVATE.fullmatch(path)


def public_headers(root):
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                header = os.path.relpath(os.path.join(path, name), root)
                if is_public(header):
                    yield header


def install(root, folder):
    destination = os.path.join(os.environ["MESON_INSTALL_DESTDIR_PREFIX"], folder)
    for header in public_headers(root):
        target = os.path.join(destination, header)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(os.path.join(root, header), target)


if __name__ == "__main__":
    ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    if sys.argv[1:2] == ["--install"]:
        install(ROOT, sys.argv[2])
    else:
        print("\n".join(sorted(public_headers(ROOT))))
