#!/usr/bin/env python3
"""Puts the code of the documentation into a test's source.

    pages.py SOURCE ROOT     prints SOURCE; a line "//> PAGE: START" becomes the block of the page, or the type of an example,
                             that begins so

Each C++ block of the pages has a place in the source, or stands in an example.
"""
import glob
import os
import re
import sys

PAGES = ("README.md", *(f"docs/howto/{name}.md" for name in ("own_network", "own_operator", "own_data", "ddp", "checkpoints")))
OPERATOR = "examples/own_operator.cpp"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def main(source, root):
    examples = "".join(read(path) for path in glob.glob(os.path.join(root, "examples/*.cpp")))
    blocks = {page: re.findall(r"^```(?:cpp|c\+\+)\n(.*?)^```", read(os.path.join(root, page)), re.M | re.S) for page in PAGES}
    blocks[OPERATOR] = re.findall(r"^struct.*?^};\n", read(os.path.join(root, OPERATOR)), re.M | re.S)

    def block(line):
        page, start = line[1], line[2]
        found = [text for text in blocks[page] if text.startswith(start)]
        if len(found) != 1:
            sys.exit(f"{page} has {len(found)} blocks that begin with '{start}', expected 1")
        blocks[page].remove(found[0])
        return re.sub(r"^\.\.\.$", "", found[0], flags=re.M)  # a line of dots leaves out other code

    text = re.sub(r"^ *//> (\S+): (.*)\n", block, read(source), flags=re.M)
    for page, left in blocks.items():
        for one in left:
            if one not in examples and not one.startswith("#include"):
                sys.exit(f"{source} has no place for the block of {page} that begins with '{one.splitlines()[0]}'")
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
