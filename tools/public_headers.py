#!/usr/bin/env python3
"""Prints the headers that are installed: all but those of programs, of the backends' insides and of single source files."""
import os
import re
import sys

FOLDERS = ("lib", "samplers", "dp", "ddp")
PRIVATE = re.compile(r"lib/backend/(cpu|cuda)/.*|ddp/(gloo|nccl)/.*|ddp/(asio|tcp_store_server)\.h|(cli|examples|tests)/.*")


def is_public(path):
    return path.endswith(".h") and not PRIVATE.fullmatch(path)


def public_headers(root):
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                header = os.path.relpath(os.path.join(path, name), root)
                if is_public(header):
                    yield header


if __name__ == "__main__":
    print("\n".join(sorted(public_headers(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "..")))))
